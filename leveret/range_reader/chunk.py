"""Chunks as their reader sees them: docs/range-reads.md draws the layout.

Columns are memoryviews into the chunk; nothing is copied. An Arrow array is made of one with
`Array.from_buffers`: numbers have the buffers [None, values], bytes [None, table, values].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "COLUMNS",
    "ChunkColumn",
    "MalformedChunkError",
    "ReadChunk",
    "chunk_bytes",
    "parse_chunk",
]

MAGIC: Final = b"LVRC"
VERSION: Final = 1
MORE: Final = 1
COMPACTED: Final = 2
HEAD: Final = struct.Struct("<4sHHIIQQQQQQQII")
PLACE: Final = struct.Struct("<HHIQQQ")
NUMBERS, BYTES = 0, 1  # kinds of columns
TABLE_ENTRY_BYTES: Final = 4
FRONT_BYTES: Final = 24  # that tell how long a chunk is
CHUNK_BYTES_MAX: Final = 1 << 31  # no node sends more: columns have 32-bit tables
# In the order of their numbers; later versions may have more.
COLUMNS: Final = (
    *("offset", "timestamp", "flags", "exchange", "routing_key", "key", "header", "value"),
)
NUMBER_BYTES: Final = {"offset": 8, "timestamp": 8, "flags": 4}


class MalformedChunkError(ValueError):
    """Bytes that should be a chunk are not, or are of a version that is not known here."""


@dataclass(frozen=True, slots=True)
class ChunkColumn:
    """One column. Numbers have `values` of their type; bytes have a `table` of int32 as well.

    Value n of bytes is `values[table[n] : table[n + 1]]`.
    """

    values: memoryview
    table: memoryview | None = None

    def __len__(self) -> int:
        return len(self.values) if self.table is None else len(self.table) - 1

    def __getitem__(self, row: int) -> int | bytes:
        if self.table is None:
            number: int = self.values[row]
            return number
        return bytes(self.values[self.table[row] : self.table[row + 1]])


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Rows of a partition, by column. Offsets [offset, next_offset) were looked at.

    `missing` of them had records that were removed or lost; where the log `is_compacted`, or that a
    later record of their key has superseded. `first` and `end` are the bounds of
    what can be read, `has_more` whether there was something at `next_offset`; `log` is a number
    that another queue of the same name would not have.
    """

    rows: int
    offset: int
    next_offset: int
    first: int
    end: int
    missing: int
    log: int
    partition: int
    has_more: bool
    is_compacted: bool
    columns: Mapping[str, ChunkColumn]


class ColumnPlace(NamedTuple):
    """ColumnPlace of a column in its chunk, as the layout has it."""

    number: int
    kind: int
    width: int
    at: int
    blob_at: int
    size: int


def chunk_bytes(front: bytes | bytearray) -> int:
    """Return the size of the chunk that begins with these bytes. Raises MalformedChunkError."""
    if len(front) < FRONT_BYTES or front[:4] != MAGIC:
        raise MalformedChunkError(f"no chunk begins with {bytes(front)!r}")
    size = int.from_bytes(front[16:24], "little")
    if not HEAD.size <= size <= CHUNK_BYTES_MAX:
        raise MalformedChunkError(f"a chunk of {size} bytes")
    return size


def parse_chunk(data: bytes | bytearray | memoryview) -> ReadChunk:
    """Return the chunk at the beginning of `data`. Raises MalformedChunkError."""
    view = memoryview(data).cast("B")
    if len(view) < HEAD.size:
        raise MalformedChunkError(f"{len(view)} bytes hold no chunk's header")
    magic, version, head_bytes, flags, rows, size, *told, column_count = HEAD.unpack_from(view)
    if magic != MAGIC or version != VERSION:
        raise MalformedChunkError(f"no chunk of version {VERSION}: {magic!r}, {version}")
    if not HEAD.size + column_count * PLACE.size <= head_bytes <= size <= len(view):
        raise MalformedChunkError(f"a chunk of {size} bytes in {len(view)}")
    columns: dict[str, ChunkColumn] = {}
    for at in range(HEAD.size, HEAD.size + column_count * PLACE.size, PLACE.size):
        place = ColumnPlace(*PLACE.unpack_from(view, at))
        if place.number < len(COLUMNS):
            columns[COLUMNS[place.number]] = _column(view[:size], place, rows)
    offset, next_offset, first, end, missing, log, partition = told
    return ReadChunk(
        rows=rows,
        offset=offset,
        next_offset=next_offset,
        first=first,
        end=end,
        missing=missing,
        log=log,
        partition=partition,
        has_more=bool(flags & MORE),
        is_compacted=bool(flags & COMPACTED),
        columns=columns,
    )


def _column(view: memoryview, place: ColumnPlace, rows: int) -> ChunkColumn:
    name = COLUMNS[place.number]
    if place.kind == NUMBERS and name in NUMBER_BYTES:
        values = _part(view, place.at, place.size)
        wide = values.cast("q") if NUMBER_BYTES[name] == 8 else values.cast("I")
        if place.width != wide.itemsize or len(wide) != rows:
            raise MalformedChunkError(f"column {name} has {len(wide)} values in {rows} rows")
        return ChunkColumn(wide)
    if place.kind != BYTES or place.width != TABLE_ENTRY_BYTES or name in NUMBER_BYTES:
        raise MalformedChunkError(f"column {name} is of kind {place.kind}")
    table = _part(view, place.at, (rows + 1) * TABLE_ENTRY_BYTES).cast("i")
    if table[0] != 0 or table[rows] != place.size:
        raise MalformedChunkError(f"the table of column {name} does not fit its values")
    return ChunkColumn(_part(view, place.blob_at, place.size), table)


def _part(view: memoryview, at: int, size: int) -> memoryview:
    if at % 8 or at + size > len(view):
        raise MalformedChunkError(f"{size} bytes at {at} are not in the chunk")
    return view[at : at + size]
