"""AMQP field tables as JSON and back, without loss.

JSON has no bytes, decimals or times, and does not know them from text. So every JSON object here is
a tag with one value; text, numbers, booleans, null and arrays stand for themselves:

    {"table": {…}}       {"bytes": "base64"}
    {"decimal": "1.50"}  {"time": "2030-01-31T12:00:00+00:00"}
    {"integer": [5, "long"]}, where the value does not tell the wire type

Keys are sorted: equal tables give equal text, which makes the text usable as a key.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from leveret.ports.fields import WireInteger

if TYPE_CHECKING:
    from leveret.ports.definitions import Arguments, Json

__all__ = ["decode_arguments", "encode_arguments", "encode_json"]


def encode_arguments(arguments: Arguments) -> str:
    """Return the JSON text of a field table. Raises TypeError for an unsupported value."""
    return encode_json(_tag(arguments)["table"])


def encode_json(value: Json) -> str:
    """Return canonical JSON text: the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def decode_arguments(text: str) -> Arguments:
    """Return the field table that `encode_arguments` was given. Raises ValueError."""
    table = _untag({"table": json.loads(text)})
    assert isinstance(table, dict)
    return table


def _tag(value: Any) -> Any:  # noqa: PLR0911 - a line for each tag
    match value:
        case WireInteger():
            return {"integer": [int(value), value.wire_type]}
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {"table": {key: _tag(inner) for key, inner in value.items()}}
        case list() | tuple():
            return [_tag(inner) for inner in value]
        case bytes() | bytearray():
            return {"bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case datetime():
            return {"time": value.isoformat()}
    raise TypeError(f"a field table cannot hold {type(value).__name__}")


def _untag(value: Any) -> Any:  # noqa: PLR0911 - a line for each tag
    match value:
        case {"table": dict(table)}:
            return {key: _untag(inner) for key, inner in table.items()}
        case list():
            return [_untag(inner) for inner in value]
        case {"bytes": str(text)}:
            return base64.b64decode(text, validate=True)
        case {"integer": [int(number), str(wire_type)]}:
            return WireInteger(number, wire_type)
        case {"decimal": str(text)}:
            return Decimal(text)
        case {"time": str(text)}:
            return datetime.fromisoformat(text)
        case dict():
            raise ValueError(f"unknown tag in {sorted(value)}")
    return value
