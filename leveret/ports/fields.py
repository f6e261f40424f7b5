"""Integers of field tables that remember their wire type."""

from __future__ import annotations

# RabbitMQ's names of a table's types by their letters on the wire.
FIELD_TYPES = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "x": "binary",
    "T": "timestamp",
    "A": "array",
    "F": "table",
    "V": "void",
}
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
# Range of integers in field tables, and of the same values in JSON: 64-bit arithmetic meets no
# others.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class WireInteger(int):
    """An integer received as another wire type than its value suggests, e.g. a 5 in 64 bits.

    Equal to the plain integer everywhere; only error texts name its `wire_type`.
    """

    wire_type: str

    def __new__(cls, value: int, wire_type: str) -> WireInteger:  # noqa: PYI034 - never subclassed
        """Create an integer with RabbitMQ's name of its type: byte, unsignedbyte, short, … long."""
        made = super().__new__(cls, value)
        made.wire_type = wire_type
        return made

    def __reduce__(self) -> tuple[type[WireInteger], tuple[int, str]]:
        """Support copy and pickle."""
        return type(self), (int(self), self.wire_type)


def integer_type(value: int) -> str:
    """Return the name of an integer's wire type; signedint or long, by size, for a plain int."""
    if isinstance(value, WireInteger):
        return value.wire_type
    return "signedint" if INT32_MIN <= value <= INT32_MAX else "long"


def field_type(letter: int) -> str:
    """Return RabbitMQ's name of the field type with this wire letter."""
    return FIELD_TYPES[chr(letter)]
