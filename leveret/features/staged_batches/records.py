"""Records of the topic `leveret.batches`: staged parts, and the last commit of each writer.

Each has the writer as its routing key, no exchange and no content header. Integers are
little-endian.

    body of a part   u8 1 | u64 number | u64 rows | u64 bytes | u8 size, user | u8 size, name |
                     u32 count, for each range: u64 first, u64 stop |
                     u32 count, for each exchange: u8 size, name |
                     u32 CRC-32C of what was uploaded; earlier releases end before it
    body of a note   u8 2 | u64 number of the batch that the writer has committed last |
                     u64 when, milliseconds since 1970 | u8 size, user

A part is there once its record is: its ranges are offsets in the topic `leveret.staged`, whose
records are messages as they will be published, with the flags of a publish (RecordFlag), those
above STORED included. A record is settled when its part is published or dropped, or the writer has
a later note; another kind would take another number.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from leveret.errors import StorageError

__all__ = ["CommitNote", "StagedPart", "WriterId", "pack_note", "pack_part", "unpack"]

PART: Final = 1
NOTE: Final = 2
PART_HEAD: Final = struct.Struct("<BQQQ")
NOTE_BODY: Final = struct.Struct("<BQQ")
COUNT: Final = struct.Struct("<I")
CHECKSUM: Final = struct.Struct("<I")
RANGE: Final = struct.Struct("<QQ")


class WriterId(NamedTuple):
    """A writer: names of different users are different writers."""

    name: str
    user: str


@dataclass(slots=True)
class StagedPart:
    """A part of a batch. `offset` is that of its record; `ranges` have its messages.

    `checksum` is that of the upload's bytes; None if an earlier release has staged it.
    """

    writer: WriterId
    number: int
    name: str
    rows: int = 0
    bytes: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    exchanges: list[str] = field(default_factory=list)
    time_ms: int = 0
    offset: int = 0
    checksum: int | None = None

    @property
    def key(self) -> tuple[WriterId, int, str]:
        """Key that tells it from other parts."""
        return self.writer, self.number, self.name


@dataclass(slots=True)
class CommitNote:
    """The last batch that a writer has committed. `offset` is that of the note's record."""

    writer: WriterId
    number: int
    time_ms: int
    offset: int = 0


def pack_part(part: StagedPart) -> bytes:
    """Return the body of a part's record."""
    head = PART_HEAD.pack(PART, part.number, part.rows, part.bytes)
    parts = [head, _short(part.writer.user), _short(part.name)]
    parts.append(COUNT.pack(len(part.ranges)))
    parts += [RANGE.pack(*each) for each in part.ranges]
    parts.append(COUNT.pack(len(part.exchanges)))
    parts += map(_short, part.exchanges)
    if part.checksum is not None:
        parts.append(CHECKSUM.pack(part.checksum))
    return b"".join(parts)


def pack_note(note: CommitNote) -> bytes:
    """Return the body of a note's record."""
    return NOTE_BODY.pack(NOTE, note.number, note.time_ms) + _short(note.writer.user)


def unpack(writer: bytes, body: bytes, offset: int, time_ms: int) -> StagedPart | CommitNote:
    """Return what a record tells. Raises StorageError."""
    name = writer.decode(errors="surrogateescape")
    try:
        if body[:1] == bytes([NOTE]):
            _, number, committed_ms = NOTE_BODY.unpack_from(body)
            user, _ = _text(body, NOTE_BODY.size)
            return CommitNote(WriterId(name, user), number, committed_ms, offset)
        if body[:1] == bytes([PART]):
            _, number, rows, size = PART_HEAD.unpack_from(body)
            user, at = _text(body, PART_HEAD.size)
            part_name, at = _text(body, at)
            part = StagedPart(WriterId(name, user), number, part_name, rows, size)
            part.time_ms, part.offset = time_ms, offset
            at = _unpack_lists(part, body, at)
            if at < len(body):
                (part.checksum,) = CHECKSUM.unpack_from(body, at)
            return part
    except (struct.error, IndexError) as error:
        raise StorageError(f"a record about a staged batch is cut off: {error}") from None
    raise StorageError(f"a record about a staged batch is of the unknown kind {body[:1]!r}")


def _unpack_lists(part: StagedPart, body: bytes, at: int) -> int:
    """Read ranges and exchanges; return the position behind them."""
    (count,) = COUNT.unpack_from(body, at)
    at += COUNT.size
    for _ in range(count):
        first, stop = RANGE.unpack_from(body, at)
        part.ranges.append((first, stop))
        at += RANGE.size
    (count,) = COUNT.unpack_from(body, at)
    at += COUNT.size
    for _ in range(count):
        exchange, at = _text(body, at)
        part.exchanges.append(exchange)
    return at


def _short(text: str) -> bytes:
    raw = text.encode(errors="surrogateescape")
    return bytes([len(raw)]) + raw


def _text(body: bytes, at: int) -> tuple[str, int]:
    """Return a short text, and the position behind it. Raises IndexError."""
    stop = at + 1 + body[at]
    if stop > len(body):
        raise IndexError("a name")
    return body[at + 1 : stop].decode(errors="surrogateescape"), stop
