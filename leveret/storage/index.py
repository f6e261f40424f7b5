"""The sparse index of a segment: positions in the file to begin looking for an offset.

While a segment is written its index lives in memory and gets an entry per `INDEX_INTERVAL_BYTES`.
It is kept in a file once the segment is sealed and flushed, so that a whole index file also says:
this segment was flushed, recovery need not check it. A missing or damaged one is rebuilt.

    .index file, little-endian
     0  u32  magic and version, b"LVI1"
     4  u32  CRC-32C over everything from byte 8
     8  u64  size of the segment in bytes
    16  u64  one past the segment's last offset
    24       entries: u64 offset, u64 position of a batch that begins there

A compacted segment's says in addition what the segment holds no more, so that opening a log reads
no segment for it. Without the file that is found again in the segment, except the two times.

    .index file of a compacted segment
     0       as above, but b"LVI2"
    24  u64  one past the last offset up to which it was compacted
    32  u64  first time at which a tombstone in it may go, milliseconds since 1970; 0: none does
    40  u64  count of ranges that were removed
    48       ranges: u64 first offset, u64 one past the last
             entries as above
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import chain

from crc32c import crc32c

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet

__all__ = ["INDEX_INTERVAL_BYTES", "OFFSET_MAX", "Compacted", "SparseIndex"]

INDEX_INTERVAL_BYTES = 64 * 1024  # a jump reads this much too much; 16 kB of index for 64 MiB
OFFSET_MAX = 2**63  # beyond every offset: where an active segment stops
MAGIC = 0x3149564C  # b"LVI1"
MAGIC_COMPACTED = 0x3249564C  # b"LVI2"
HEADER = struct.Struct("<IIQQ")
COMPACTED = struct.Struct("<QQQ")
PAIR_BYTES = 16
CHECKED_FROM = 8


@dataclass(slots=True)
class Compacted:
    """Effects of compaction on a segment.

    It was compacted below the offset `stop`; what it holds no more is `removed`. Its first
    tombstone may go at `due_ms`, 0 where none may yet.
    """

    stop: int = 0
    due_ms: int = 0
    removed: RangeSet = field(default_factory=RangeSet)


class SparseIndex:
    """Ascending (offset, position) pairs. `due` is the position from which the next is added."""

    __slots__ = ("due", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.due = 0

    def note(self, offset: int, position: int) -> None:
        """Add a batch that begins with `offset` at `position`."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.due = position + INDEX_INTERVAL_BYTES

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return offset and position of the last entry at or before `offset`, or None."""
        at = bisect_right(self.offsets, offset)
        return (self.offsets[at - 1], self.positions[at - 1]) if at else None

    def cut(self, position: int) -> None:
        """Drop entries at or behind `position`."""
        while self.positions and self.positions[-1] >= position:
            self.positions.pop()
            self.offsets.pop()
        self.due = self.positions[-1] + INDEX_INTERVAL_BYTES if self.positions else 0

    def to_bytes(self, segment_bytes: int, stop: int, compacted: Compacted | None = None) -> bytes:
        """Return the content of the index file."""
        pairs = array("Q", chain.from_iterable(zip(self.offsets, self.positions, strict=True)))
        if sys.byteorder == "big":
            pairs.byteswap()
        body = struct.pack("<QQ", segment_bytes, stop)
        if compacted is not None:
            removed = compacted.removed
            body += COMPACTED.pack(compacted.stop, compacted.due_ms, len(removed))
            body += removed.to_bytes()
        body += pairs.tobytes()
        magic = MAGIC if compacted is None else MAGIC_COMPACTED
        return struct.pack("<II", magic, crc32c(body)) + body

    @staticmethod
    def from_bytes(
        content: bytes | bytearray,
    ) -> tuple[SparseIndex, int, int, Compacted | None]:
        """Return the index, the segment's size and stop, and what compaction did to it.

        Raises CorruptBatchError.
        """
        if len(content) < HEADER.size:
            raise CorruptBatchError("index file of an impossible size")
        magic, checksum, segment_bytes, stop = HEADER.unpack_from(content)
        if magic not in (MAGIC, MAGIC_COMPACTED):
            raise CorruptBatchError("no index file")
        if crc32c(memoryview(content)[CHECKED_FROM:]) != checksum:
            raise CorruptBatchError("index file does not match its checksum")
        begin, compacted = HEADER.size, None
        if magic == MAGIC_COMPACTED:
            begin, compacted = _read_compacted(content)
        if (len(content) - begin) % PAIR_BYTES:
            raise CorruptBatchError("index file of an impossible size")
        pairs = array("Q", bytes(memoryview(content)[begin:]))
        if sys.byteorder == "big":
            pairs.byteswap()
        index = SparseIndex()
        index.offsets = pairs[0::2]
        index.positions = pairs[1::2]
        index.due = index.positions[-1] + INDEX_INTERVAL_BYTES if index.positions else 0
        return index, segment_bytes, stop, compacted


def _read_compacted(content: bytes | bytearray) -> tuple[int, Compacted]:
    """Return where the entries begin, and what stands before them."""
    begin = HEADER.size + COMPACTED.size
    if len(content) < begin:
        raise CorruptBatchError("index file of an impossible size")
    stop, due_ms, count = COMPACTED.unpack_from(content, HEADER.size)
    ranges = memoryview(content)[begin : begin + count * PAIR_BYTES]
    try:
        removed = RangeSet.from_bytes(ranges)
    except ValueError as error:
        raise CorruptBatchError(f"index file: {error}") from error
    return begin + len(ranges), Compacted(stop, due_ms, removed)
