"""Decoding of a segment file, damaged or not: `leveret dump`.

Reads only, a batch at a time; the files may belong to a running node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.records import Batch
from leveret.storage.checkpoint import RecoveredState, apply_payload, is_part
from leveret.storage.damage import find_sound
from leveret.storage.files import read_exactly, storage_error
from leveret.storage.scan import FRONT, batch_bytes, scan
from leveret.storage.segment import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leveret.ports.ranges import RangeSet
    from leveret.storage.encryption import Unsealer
    from leveret.storage.files import FileSystem

__all__ = ["DumpedBatch", "DumpedRecord", "dump_records", "dump_segment", "segment_head"]


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One entry of a dump: a sound batch, or a damaged place with its reason in `damage`.

    A damaged batch whose header can be read is included: it may show what was lost.
    """

    position: int
    batch: Batch | None = None
    settled: RangeSet | None = None
    damage: str = ""


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record of a batch. `time_ms` is milliseconds since 1970; `flags` are RecordFlags."""

    offset: int
    flags: int
    time_ms: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes


def segment_head(files: FileSystem, path: Path) -> tuple[int, int, int]:
    """Return a segment file's size, its first offset, and its number among files with that one.

    For a quarantined file these are the segment's. Raises StorageError for a name of another form.
    """
    match = NAME.match(path.name)
    if match is None:
        raise StorageError(
            f"{path.name} is not the name of a segment: those are called "
            "00000000000000000000.log, and 00000000000000000000.log.damaged-1 quarantined parts"
        )
    try:
        return files.size(path), int(match[1]), int(match[2] or 0)
    except OSError as error:
        raise storage_error("read", path, error) from error


def dump_segment(files: FileSystem, path: Path) -> Iterator[DumpedBatch]:
    """Yield the batches of a segment file or a quarantined part of one. Raises StorageError."""
    try:
        handle = files.open(path)
        try:
            yield from _dump(files, handle, files.size(path))
        finally:
            files.close(handle)
    except OSError as error:
        raise storage_error("read", path, error) from error


def dump_records(batch: Batch, first: int, stop: int, unsealer: Unsealer) -> Iterator[DumpedRecord]:
    """Yield the records of a batch with offsets in [first, stop).

    Raises MissingKeyError if it is sealed with a key that is not available, CorruptBatchError.
    """
    for fields in unsealer.open(batch).records():
        if first <= fields[0] < stop:
            yield DumpedRecord(*fields)


def _dump(files: FileSystem, handle: int, size: int) -> Iterator[DumpedBatch]:
    position: int | None = 0
    while position is not None and position < size:
        begin = position
        try:
            for at, batch in scan(files, handle, begin, size):
                yield _dumped(at, batch)
                begin = at + batch.size
        except CorruptBatchError as error:
            yield DumpedBatch(begin, _what_remains(files, handle, begin, size), damage=str(error))
            position = find_sound(files, handle, begin, size)
        else:
            return


def _dumped(position: int, batch: Batch) -> DumpedBatch:
    if not batch.is_control:
        return DumpedBatch(position, batch)
    told = RecoveredState()
    try:
        apply_payload(batch.payload, told)
    except CorruptBatchError as error:
        return DumpedBatch(position, batch, damage=str(error))
    for part in told.unresolved.values() if is_part(batch) else ():
        return DumpedBatch(position, batch, part.settles)
    return DumpedBatch(position, batch, told.settled)


def _what_remains(files: FileSystem, handle: int, position: int, size: int) -> Batch | None:
    """Return the damaged batch at `position` of a file of `size` bytes; None without a header."""
    front = read_exactly(files, handle, position, FRONT.size)
    try:
        length = min(batch_bytes(front, 0), size - position)  # the length may be what is damaged
        return Batch.parse(read_exactly(files, handle, position, length)) if length else None
    except CorruptBatchError:
        return None
