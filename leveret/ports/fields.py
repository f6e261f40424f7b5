"""A field table's integers, which know more than their value where it matters."""

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
# The largest numbers of a field table, and so of whatever says the same in JSON: what counts in
# whole numbers of 64 bits meets no other.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class WireInteger(int):
    """An integer that came as another wire type than its value suggests: a 5 in 64 bits.

    Equal to the plain integer everywhere; only error texts name its `wire_type`.
    """

    wire_type: str

    def __new__(cls, value: int, wire_type: str) -> WireInteger:  # noqa: PYI034 - never subclassed
        """`wire_type` is RabbitMQ's name for it: byte, unsignedbyte, short, … long."""
        made = super().__new__(cls, value)
        made.wire_type = wire_type
        return made

    def __reduce__(self) -> tuple[type[WireInteger], tuple[int, str]]:
        """For copy and pickle."""
        return type(self), (int(self), self.wire_type)


def integer_type(value: int) -> str:
    """Name an integer's wire type; a plain one's is the narrower of the two that clients like."""
    if isinstance(value, WireInteger):
        return value.wire_type
    return "signedint" if INT32_MIN <= value <= INT32_MAX else "long"


def field_type(letter: int) -> str:
    """Name the type that a value's letter on the wire stands for."""
    return FIELD_TYPES[chr(letter)]
