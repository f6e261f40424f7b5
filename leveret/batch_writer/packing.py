"""Chunks to be staged: columns of bytes, packed as they lie (docs/range-reads.md draws the layout).

A column is a table of rows + 1 signed 32-bit integers and the bytes of all values: what Arrow's
`binary` arrays have as their second and third buffer.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    Buffer: TypeAlias = Any  # whatever has the buffer protocol, Arrow's buffers included

__all__ = ["PERSISTENT_HEADER", "RowBytes", "pack_chunk", "repeated", "row_bytes"]

HEAD: Final = struct.Struct("<4sHHIIQQQQQQQII")
PLACE: Final = struct.Struct("<HHIQQQ")
BYTES_KIND: Final = 1
TABLE_ENTRY_BYTES: Final = 4
ROWS_MAX: Final = 1_000_000
COLUMN_BYTES_MAX: Final = (1 << 31) - 1
NUMBERS: Final = {"exchange": 3, "routing_key": 4, "header": 6, "value": 7}
# Content header of a persistent message without other properties; the node writes the body's size.
PERSISTENT_HEADER: Final = struct.pack(">HHQHB", 60, 0, 0, 1 << 12, 2)


class RowBytes(NamedTuple):
    """Column: value n is `values[table[n] : table[n + 1]]`. The table has 32-bit integers."""

    table: Buffer
    values: Buffer


def row_bytes(values: Iterable[bytes]) -> RowBytes:
    """Return the column of these values."""
    values = list(values)
    table = array("i", accumulate(map(len, values), initial=0))
    return RowBytes(table, b"".join(values))


def repeated(value: bytes, rows: int) -> RowBytes:
    """Return a column with the same value in each row."""
    if not value:
        return RowBytes(bytes(TABLE_ENTRY_BYTES * (rows + 1)), b"")
    return RowBytes(array("i", range(0, len(value) * (rows + 1), len(value))), value * rows)


def pack_chunk(
    rows: int, *, exchange: RowBytes, routing_key: RowBytes, header: RowBytes, value: RowBytes
) -> bytes:
    """Return a chunk with these columns. Raises ValueError if they do not fit."""
    if not 0 <= rows <= ROWS_MAX:
        raise ValueError(f"a chunk has at most {ROWS_MAX} rows")
    given = {"exchange": exchange, "routing_key": routing_key, "header": header, "value": value}
    head_bytes = HEAD.size + PLACE.size * len(given)
    position = head_bytes
    places: list[bytes] = []
    parts: list[Buffer] = []
    for name, column in given.items():
        table, values = _checked(name, column, rows)
        table_at, position = position, _append(parts, table, position)
        values_at, position = position, _append(parts, values, position)
        places.append(
            PLACE.pack(
                NUMBERS[name], BYTES_KIND, TABLE_ENTRY_BYTES, table_at, values_at, len(values)
            )
        )
    head = HEAD.pack(b"LVRC", 1, head_bytes, 0, rows, position, 0, 0, 0, 0, 0, 0, 0, len(given))
    return b"".join([head, *places, *parts])


def _checked(name: str, column: RowBytes, rows: int) -> tuple[memoryview, memoryview]:
    """Return table and values of a column, so that the table begins with 0. Raises ValueError."""
    table = memoryview(column.table).cast("B")[: TABLE_ENTRY_BYTES * (rows + 1)].cast("i")
    values = memoryview(column.values).cast("B")
    if len(table) != rows + 1:
        raise ValueError(f"the table of column {name} has {len(table)} entries for {rows} rows")
    first, stop = table[0], table[rows]
    if not 0 <= first <= stop <= min(len(values), COLUMN_BYTES_MAX):
        raise ValueError(f"the table of column {name} does not fit its values")
    if first:  # a slice of a longer column
        table = memoryview(array("i", [entry - first for entry in table]))
    return table.cast("B"), values[first:stop]


def _append(parts: list[Buffer], data: memoryview, position: int) -> int:
    """Append bytes, and zeros up to a multiple of 8. Returns the position behind them."""
    padding = -len(data) % 8
    parts += [data, bytes(padding)]
    return position + len(data) + padding
