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
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from itertools import chain

from crc32c import crc32c

from leveret.errors import CorruptBatchError

__all__ = ["INDEX_INTERVAL_BYTES", "OFFSET_MAX", "SparseIndex"]

INDEX_INTERVAL_BYTES = 64 * 1024  # a jump reads this much too much; 16 kB of index for 64 MiB
OFFSET_MAX = 2**63  # beyond every offset: where an active segment stops
MAGIC = 0x3149564C  # b"LVI1"
HEADER = struct.Struct("<IIQQ")
CHECKED_FROM = 8


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

    def to_bytes(self, segment_bytes: int, stop: int) -> bytes:
        """Return the content of the index file."""
        pairs = array("Q", chain.from_iterable(zip(self.offsets, self.positions, strict=True)))
        if sys.byteorder == "big":
            pairs.byteswap()
        body = struct.pack("<QQ", segment_bytes, stop) + pairs.tobytes()
        return struct.pack("<II", MAGIC, crc32c(body)) + body

    @staticmethod
    def from_bytes(content: bytes | bytearray) -> tuple[SparseIndex, int, int]:
        """Return the index, the segment's size and its stop. Raises CorruptBatchError."""
        if len(content) < HEADER.size or (len(content) - HEADER.size) % 16:
            raise CorruptBatchError("index file of an impossible size")
        magic, checksum, segment_bytes, stop = HEADER.unpack_from(content)
        if magic != MAGIC or crc32c(memoryview(content)[CHECKED_FROM:]) != checksum:
            raise CorruptBatchError("index file does not match its checksum")
        pairs = array("Q", bytes(memoryview(content)[HEADER.size :]))
        if sys.byteorder == "big":
            pairs.byteswap()
        index = SparseIndex()
        index.offsets = pairs[0::2]
        index.positions = pairs[1::2]
        index.due = index.positions[-1] + INDEX_INTERVAL_BYTES if index.positions else 0
        return index, segment_bytes, stop
