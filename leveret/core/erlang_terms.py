"""Field values formatted for reply texts as RabbitMQ does: Erlang type names and terms.

Clients' test suites match on RabbitMQ's texts, which print Erlang terms: a value is named by
its wire type (`longstr`) and printed as an Erlang term (`<<"x">>`).
"""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from leveret.ports.fields import integer_type

if TYPE_CHECKING:
    from collections.abc import Hashable

    from leveret.ports.definitions import Json

PLAIN_ATOM = re.compile(r"[a-z][A-Za-z0-9_@]*\Z")
TEXT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def field_type(value: Any) -> str:  # noqa: PLR0911 - a line for each wire type
    """Return RabbitMQ's name for the wire type of a decoded field."""
    match value:
        case None:
            return "void"
        case bool():
            return "bool"
        case int():
            return integer_type(value)
        case float():
            return "double"
        case Decimal():
            return "decimal"
        case datetime():
            return "timestamp"
        case dict():
            return "table"
        case list() | tuple():
            return "array"
        case bytearray():
            return "binary"
        case _:  # str, or the bytes of a long string that is not UTF-8
            return "longstr"


def plain(value: Any) -> str:
    """Format a value as reply texts quote it: strings bare, everything else as a term."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return term(value)


def term(value: Any) -> str:  # noqa: PLR0911 - a line for each wire type
    """Format a value as an Erlang term."""
    match value:
        case None:
            return "undefined"
        case bool():
            return "true" if value else "false"
        case str() | bytes() | bytearray():
            return binary(value)
        case datetime():
            return str(int(value.timestamp()))
        case Decimal():
            scale, unscaled = decimal_parts(value)
            return f"{{{scale},{unscaled}}}"
        case dict():
            rows = (f"{{{term(key)},{field_type(v)},{term(v)}}}" for key, v in value.items())
            return f"[{','.join(rows)}]"
        case list() | tuple():
            return f"[{','.join(f'{{{field_type(v)},{term(v)}}}' for v in value)}]"
        case _:
            return str(value)


def json_term(value: Json) -> str:
    """Format a JSON value as an Erlang term."""
    match value:
        case None:
            return "null"
        case dict():
            rows = (f"{binary(key)} => {json_term(inner)}" for key, inner in value.items())
            return f"#{{{','.join(rows)}}}"
        case list():
            return f"[{','.join(json_term(inner) for inner in value)}]"
        case _:
            return term(value)


def binary(value: str | bytes | bytearray) -> str:
    """Format a string or bytes as an Erlang binary: text if printable, else numbers."""
    if not value:
        return "<<>>"
    if not isinstance(value, str):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"<<{','.join(map(str, value))}>>"
    if not all(char.isprintable() or char in TEXT_ESCAPES for char in value):
        return f"<<{','.join(map(str, value.encode()))}>>"
    text = "".join(TEXT_ESCAPES.get(char, char) for char in value)
    return f'<<"{text}">>' if value.isascii() else f'<<"{text}"/utf8>>'


def charlist(value: bytes) -> str:
    """Format octets as an Erlang string: text if printable, else a list of numbers."""
    if not all(32 <= octet < 127 or chr(octet) in TEXT_ESCAPES for octet in value):
        return f"[{','.join(map(str, value))}]"
    text = "".join(TEXT_ESCAPES.get(chr(octet), chr(octet)) for octet in value)
    return f'"{text}"'


def atom(name: str) -> str:
    """Format a name as an Erlang atom, quoted if necessary (`'x-random'`)."""
    return name if PLAIN_ATOM.match(name) else f"'{name}'"


def decimal_parts(value: Decimal) -> tuple[int, int]:
    """Split a decimal into scale and unscaled value, as on the wire."""
    _, digits, exponent = value.as_tuple()
    scale = -exponent if isinstance(exponent, int) else 0
    return scale, int(value.scaleb(scale)) if digits else 0


EMPTY_TABLE: Hashable = ("table", frozenset())


def frozen(value: Any) -> Hashable:  # noqa: PLR0911 - a line for each wire type
    """Return a hashable value that is equal exactly for fields with the same meaning.

    Integers of all widths are one class, floats another, booleans a third (Python would call 1, 1.0
    and True equal); a string and raw bytes of the same octets are the same.
    """
    match value:
        case bool() | float() | None:
            return type(value).__name__, value
        case int():
            return "int", int(value)
        case str():
            return "text", value.encode(errors="surrogateescape")
        case bytes() | bytearray():
            return "text", bytes(value)
        case datetime():
            return "int", int(value.timestamp())
        case dict() if not value:
            return EMPTY_TABLE  # most tables are, and each would take 270 bytes
        case dict():
            return "table", frozenset((key, frozen(v)) for key, v in value.items())
        case list() | tuple():
            return "array", tuple(frozen(v) for v in value)
        case _:
            return type(value).__name__, value
