"""Conversion of field tables to JSON and back, as RabbitMQ's tools do it.

JSON has fewer types than a field table: times become numbers, byte arrays text. A second round trip
changes nothing more. (`leveret.storage.tagged_json` is lossless, but private to the store.)

    {"$base64": "/w=="}     octets that are not UTF-8
    {"$$base64": "/w=="}    a table with the one key `$base64`, and so on with each `$` more
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from leveret.ports.definitions import Json
from leveret.ports.fields import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, WireInteger

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["InvalidFieldError", "decode_json", "field_of", "parse_integer", "plain", "table_of"]

DEPTH_MAX: Final = 32  # far above what is written by hand; the wire allows 64
KEY_BYTES_MAX: Final = 255  # a key is a short string
OCTETS: Final = "$base64"  # the only key of an object that stands for octets
LIKE_OCTETS: Final = re.compile(r"\$+base64")
INT64_DIGITS_MAX: Final = 20  # longer ones are rejected unread: int() takes quadratic time


class InvalidFieldError(ValueError):
    """Raised for a JSON value that no field table can hold; `path` is its location."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem


def decode_json(text: str | bytes, **hooks: Any) -> Json:
    """Parse JSON text, large numbers included. Raises ValueError and RecursionError.

    For long texts in a thread: other threads run between two objects, while the parser alone would
    hold the interpreter to the end of the text.
    """
    return json.loads(text, parse_int=parse_integer, object_hook=lambda made: made, **hooks)


def plain(value: Any) -> Json:  # noqa: PLR0911 - a line for each kind of field
    """Convert a field table's value to JSON."""
    match value:
        case bytes() | bytearray():
            return _octets_shown(value)
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            table = {_shown(str(key)): plain(item) for key, item in value.items()}
            return {f"${key}": table[key] for key in table} if _is_like_octets(table) else table
        case str():
            return _shown(value)
        case list() | tuple():
            return [plain(item) for item in value]
        case int() if not isinstance(value, bool):
            return int(value)
        case _:
            return value


def _octets_shown(octets: bytes | bytearray) -> Json:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return {OCTETS: b64encode(octets).decode()}


def _is_like_octets(table: Mapping[str, Any]) -> bool:
    """Whether an object with this key needs escaping, so as not to be confused with octets."""
    return len(table) == 1 and LIKE_OCTETS.fullmatch(next(iter(table))) is not None


def _octets(text: Any, path: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise InvalidFieldError(f"{path}.{OCTETS}", "not base64") from None


def _shown(text: str) -> str:
    """Replace surrogates, which stand for octets that are not UTF-8 and are not valid JSON."""
    if text.isascii():
        return text
    return text.encode(errors="surrogatepass").decode(errors="replace")


def field_of(value: Json, path: str = "", depth: int = 0) -> Any:
    """Convert a JSON value to a field: every integer becomes a `long`, as in RabbitMQ.

    Raises InvalidFieldError.
    """
    if depth > DEPTH_MAX:
        raise InvalidFieldError(path, f"nested deeper than {DEPTH_MAX}")
    match value:
        case bool() | None:
            return value
        case int():
            return _long(value, path)
        case float():
            if not math.isfinite(value):
                raise InvalidFieldError(path, "not a finite number")
            return value
        case str():
            return _text(value, path)
        case list():
            return [field_of(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
        case dict():
            return _object(value, path, depth)
    raise InvalidFieldError(path, f"not JSON: {type(value).__name__}")


def _object(value: dict[str, Json], path: str, depth: int) -> bytes | dict[str, Any]:
    """Convert a JSON object to a table or to octets."""
    if value.keys() == {OCTETS}:
        return _octets(value[OCTETS], path)
    if _is_like_octets(value):
        value = {key[1:]: inner for key, inner in value.items()}
    return {
        _key(key, path): field_of(inner, f"{path}.{key}", depth + 1) for key, inner in value.items()
    }


def table_of(value: dict[str, Json], path: str = "") -> dict[str, Any]:
    """Convert a JSON object to a field table. Raises InvalidFieldError."""
    table = field_of(value, path)
    if not isinstance(table, dict):
        raise InvalidFieldError(path, "octets are no table")
    return table


def parse_integer(digits: str) -> int:
    """Parse an integer in JSON text, for json.loads. Raises ValueError beyond 64 bits."""
    value = int(digits) if len(digits) <= INT64_DIGITS_MAX else INT64_MAX + 1
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError("a whole number does not fit into 64 bits")
    return value


def _long(value: int, path: str) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise InvalidFieldError(path, "does not fit into 64 bits")
    return WireInteger(value, "long") if INT32_MIN <= value <= INT32_MAX else value


def _text(value: str, path: str) -> str:
    """Refuse lone surrogates, which JSON can express but neither disk nor wire can hold."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidFieldError(path, "not Unicode text")
    return value


def _key(key: str, path: str) -> str:
    if len(_text(key, path).encode()) > KEY_BYTES_MAX:
        raise InvalidFieldError(path, f"a key is longer than {KEY_BYTES_MAX} bytes")
    return key
