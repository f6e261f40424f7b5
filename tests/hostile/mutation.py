"""Values that an attacker may send, drawn from a seed: sizes, shapes and orders."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

SIZES = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 1000, 4095, 4096, 8000, 8192, 30_000, 65_536)
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, -(2**63))
FIELDS = {
    b"A": lambda rng: b"\0\0\0\0",
    b"F": lambda rng: b"\0\0\0\0",
    b"S": lambda rng: b"\0\0\0\0",
    b"V": lambda rng: b"",
    b"t": lambda rng: rng.choice((b"\0", b"\1", b"\xff")),
    b"b": lambda rng: rng.randbytes(1),
    b"I": lambda rng: rng.randbytes(4),
    b"l": lambda rng: rng.randbytes(8),
    b"d": lambda rng: rng.randbytes(8),
    b"D": lambda rng: rng.randbytes(5),
    b"T": lambda rng: rng.randbytes(8),
}


def long(data: bytes) -> bytes:
    """Octets behind their length."""
    return struct.pack(">I", len(data)) + data


def size(rng: random.Random, limit: int) -> int:
    """One at a boundary, or between."""
    return min(rng.choice((*SIZES, rng.randrange(limit + 1))), limit)


def word(rng: random.Random, length: int = 8, letters: str = "abcdefghijklmnop") -> str:
    return "".join(rng.choices(letters, k=length))


def wide_table(rng: random.Random, limit: int) -> bytes:
    """As many values as `limit` bytes hold, of one kind or of all."""
    kinds = rng.choice([[rng.choice(list(FIELDS))], list(FIELDS)])
    name_length = rng.choice((0, 1, 1, 4, 30))
    table = bytearray()
    while True:
        kind = rng.choice(kinds)
        name = rng.randbytes(name_length).hex()[:name_length].encode()
        field = bytes([len(name)]) + name + kind + FIELDS[kind](rng)
        if len(table) + len(field) + 4 > limit:
            return long(bytes(table))
        table += field


def deep_table(rng: random.Random, limit: int) -> bytes:
    """Tables in tables, or arrays in them, as deep as `limit` bytes allow."""
    table = b""
    while len(table) + 16 < limit:
        if rng.random() < 0.5:
            table = b"\1aF" + long(table)
        else:
            table = b"\1aA" + long(b"F" + long(table))
    return long(table)


def broken_table(rng: random.Random, limit: int) -> bytes:
    """One whose octets or lengths lie."""
    table = bytearray(wide_table(rng, limit))
    for _ in range(rng.randrange(1, 5)):
        table[rng.randrange(len(table))] = rng.randrange(256)
    return bytes(table)


def any_table(rng: random.Random, limit: int) -> bytes:
    limit = max(size(rng, limit), 4)
    return rng.choice((wide_table, wide_table, deep_table, broken_table))(rng, limit)


def like_condition(rng: random.Random, names: list[str], length: int = 4000) -> str:
    """A condition of as many LIKEs as its length holds, which match late or never."""
    parts: list[str] = []
    while sum(map(len, parts)) + 8 * len(parts) < length - 80:
        pattern = "".join(rng.choices("ab_%", weights=(3, 3, 2, 2), k=rng.randrange(3, 40)))
        negation = rng.choice(("", " NOT"))
        parts.append(f"{rng.choice(names)}{negation} LIKE '%{pattern}'")
    return rng.choice((" AND ", " OR ")).join(parts)
