"""Damage found while reading: its extent in a segment, and a copy of what it hit.

A segment is surveyed as a whole: at the first batch that is not sound, the next one that is sound
and whose offset can follow is looked for, and so on to the end. The stretches between are copied
into files beside the segment. The segment itself is not changed: its index gets an entry behind
each stretch, and the offsets in it are not read any more once they are settled.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import HEADER_BYTES, MAGIC, Batch, BatchAttribute
from leveret.storage.files import FileSystem, copy_range, read_exactly, same_content, write_file
from leveret.storage.index import OFFSET_MAX, SparseIndex
from leveret.storage.scan import FRONT, has_no_offsets, scan, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from leveret.storage.segment import Segment

__all__ = [
    "DamagedRange",
    "Survey",
    "find_following",
    "find_sound",
    "keep_aside",
    "keep_damaged",
    "survey",
]

MAGIC_BYTES = MAGIC.to_bytes(4, "little")
SEARCH_BYTES = 1 << 20  # one read while looking for the next batch
# Bytes that checking candidates may read of one segment: bodies full of what looks like batches
# must not keep a thread busy for hours. Four times the default segment, and some.
SEARCH_BYTES_MAX = 1 << 28
SECTOR_BYTES = 4096  # the least a device gives or refuses
RECORD_BYTES_MIN = 20  # no record is smaller: so few offsets at most are in a damaged stretch


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [position, limit) of a segment without a sound batch, so that [first, stop) are lost.

    The byte range is empty where a file is too short.
    """

    position: int
    limit: int
    first: int
    stop: int


@dataclass(slots=True)
class Survey:
    """Result of reading a whole segment: the damaged stretches, and an index that skips them.

    `compacted` are the offsets that compaction has removed.
    """

    index: SparseIndex = field(default_factory=SparseIndex)
    damaged: list[DamagedRange] = field(default_factory=list)
    compacted: RangeSet = field(default_factory=RangeSet)


class UnreadableAsZeros:
    """File system whose bad sectors read as zeros, so that the bytes around them can be read."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read(self, handle: int, buffer: bytearray, position: int, *, wait: bool) -> int:
        """Read as FileSystem does, but with zeros instead of EIO."""
        try:
            return self._files.read(handle, buffer, position, wait=wait)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        sector = bytearray(min(len(buffer), SECTOR_BYTES - position % SECTOR_BYTES))
        try:
            got = self._files.read(handle, sector, position, wait=wait)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            got, sector = len(sector), bytearray(len(sector))
        buffer[:got] = sector[:got]
        return got


def survey(
    files: FileSystem,
    handle: int,
    base: int,
    stop: int,
    size: int,
    *,
    gapless: bool,
    check: Callable[[Batch], None] = verify,
) -> Survey:
    """Read a segment of `size` bytes that should hold the offsets [base, stop).

    `gapless` says that each batch must begin where its predecessor ends, as in all logs that are
    kept. `check` raises CorruptBatchError for a batch that is not sound. Waits for the device.
    Raises OSError.
    """
    return _Surveyor(files, handle, base, stop, size, gapless=gapless, check=check).run()


def find_sound(files: FileSystem, handle: int, begin: int, size: int) -> int | None:
    """Return the position of the first sound batch behind damage at `begin`, or None."""
    surveyor = _Surveyor(files, handle, 0, OFFSET_MAX, size, gapless=False, check=verify)
    found = surveyor.next_sound(begin)
    return None if found is None else found[0]


def sound_batches(
    files: FileSystem, handle: int, position: int, size: int, damaged: Callable[[Exception], None]
) -> Iterator[Batch]:
    """Yield the sound batches from `position` on; `damaged(error)` is told of each damage.

    Waits for the device. Raises OSError.
    """
    at: int | None = position
    while at is not None:
        try:
            for begin, batch in scan(files, handle, at, size):
                at = begin + batch.size
                yield batch
        except CorruptBatchError as error:
            damaged(error)
            at = find_sound(files, handle, at, size)
        else:
            return


def find_following(
    files: FileSystem, handle: int, begin: int, size: int, *, expected: int, stop: int
) -> tuple[int, int] | None:
    """Return position and offset of the first sound batch behind damage at `begin`, or None.

    `expected` is the offset that should stand at `begin`, `stop` where the segment ends. Waits for
    the device. Raises OSError.
    """
    surveyor = _Surveyor(files, handle, expected, stop, size, gapless=True, check=verify)
    return surveyor.next_sound(begin)


class _Surveyor:
    """One pass over a segment: `expected` is the next offset, `position` the next byte."""

    def __init__(
        self,
        files: FileSystem,
        handle: int,
        base: int,
        stop: int,
        size: int,
        *,
        gapless: bool,
        check: Callable[[Batch], None],
    ) -> None:
        self._check = check
        self._files = files
        self._handle = handle
        self._stop = stop
        self._size = size
        self._gapless = gapless
        self._position = 0
        self._expected = base
        self._begin = 0  # of the damage that is being passed over
        self._budget = SEARCH_BYTES_MAX
        self._found = Survey()

    def run(self) -> Survey:
        """Survey the segment (see `survey`)."""
        while self._walk():
            begin, first = self._position, self._expected
            batch = self.next_sound(begin)
            limit, stop = (self._size, self._stop) if batch is None else batch
            self._found.damaged.append(DamagedRange(begin, limit, first, stop))
            self._position, self._expected = limit, stop
            if batch is None:
                break
            self._found.index.note(stop, limit)
        return self._found

    def _walk(self) -> bool:
        """Pass over sound batches. Returns whether damage ended it."""
        index = self._found.index
        try:
            for position, batch in scan(
                self._files, self._handle, self._position, self._size, self._check
            ):
                if self._expected == self._stop and not has_no_offsets(batch):
                    return False  # left over, and the next segment has it; or its own end
                if not self._follows(batch):
                    return True
                if batch.attributes & BatchAttribute.COMPACTED:
                    self._found.compacted.add(self._expected, batch.base_offset)
                if position >= index.due and not batch.is_control:
                    index.note(batch.base_offset, position)
                self._position = position + batch.size
                self._expected = batch.stop_offset
        except CorruptBatchError:
            return True
        return self._gapless and self._expected < self._stop

    def _follows(self, batch: Batch) -> bool:
        if self._gapless and not batch.attributes & BatchAttribute.COMPACTED:
            return batch.base_offset == self._expected
        return self._can_follow(batch)

    def _can_follow(self, batch: Batch) -> bool:
        return self._expected <= batch.base_offset and batch.stop_offset <= self._stop

    def next_sound(self, begin: int) -> tuple[int, int] | None:
        """Return position and offset of the first sound batch behind damage at `begin`, or None.

        The place given by the damaged batch's length is tried first: a body may hold what looks
        like a batch.
        """
        self._begin = begin
        front = read_exactly(self._files, self._handle, begin, FRONT.size)
        if len(front) == FRONT.size:
            behind = begin + int(FRONT.unpack_from(front)[1])
            offset = self._sound_offset(behind) if behind > begin else None
            if offset is not None:
                return behind, offset
        position = begin + 1
        while position < self._size and self._budget > 0:
            window = read_exactly(
                self._files, self._handle, position, min(SEARCH_BYTES, self._size - position)
            )
            at = window.find(MAGIC_BYTES)
            while at >= 0 and self._budget > 0:
                offset = self._sound_offset(position + at)
                if offset is not None:
                    return position + at, offset
                at = window.find(MAGIC_BYTES, at + 1)
            position += max(len(window) - len(MAGIC_BYTES) + 1, 1)
        return None

    def _sound_offset(self, position: int) -> int | None:
        """Return the offset of the batch at `position` if a sound one is there, else None."""
        if position + HEADER_BYTES > self._size:
            return None
        front = read_exactly(self._files, self._handle, position, FRONT.size)
        magic, length = FRONT.unpack_from(front)
        if magic != MAGIC or not HEADER_BYTES <= length <= self._size - position:
            return None
        self._budget -= length
        try:
            batch = Batch.parse(read_exactly(self._files, self._handle, position, length))
            self._check(batch)
        except CorruptBatchError:
            return None
        if not self._can_follow(batch):
            return None
        passed = batch.base_offset - self._expected
        is_compacted = batch.attributes & BatchAttribute.COMPACTED  # records in front were removed
        fit = passed * RECORD_BYTES_MIN <= position - self._begin
        if self._gapless and not fit and not is_compacted:
            return None  # that many records do not fit there
        return int(batch.base_offset)


def keep_aside(
    files: FileSystem,
    segment: Segment,
    *,
    gapless: bool,
    indexed: bool,
    check: Callable[[Batch], None] = verify,
) -> tuple[Survey, list[str], bool]:
    """Survey a sealed segment and copy its damage into files beside it: durable on return.

    Rewrites the index file if `indexed`. Returns the survey, the names of the copies, and whether
    any of them is new. Waits for the device. Raises OSError; copies that were made stay, and are
    reused.
    """
    patient: Any = UnreadableAsZeros(files)
    path = segment.path
    stop, size = segment.stop, segment.size
    handle = files.open(path)
    try:
        found = survey(patient, handle, segment.base, stop, size, gapless=gapless, check=check)
        names = set(files.list_names(segment.directory))
        kept = [
            keep_damaged(patient, handle, stretch.position, stretch.limit, path).name
            for stretch in found.damaged
            if stretch.position < stretch.limit
        ]
    finally:
        files.close(handle)
    files.sync_directory(segment.directory)
    if indexed:
        with suppress(OSError):
            before = segment.read_index(files)
            compacted = before.compacted if before else None
            content = found.index.to_bytes(size, before.stop if before else stop, compacted)
            write_file(files, segment.index_path, content, flush=True)
    return found, kept, not names.issuperset(kept)


def keep_damaged(files: FileSystem, handle: int, start: int, stop: int, path: Path) -> Path:
    """Copy bytes [start, stop) of the segment at `path` to the next free `*.damaged-N`.

    Returns that file, or an earlier copy of the same bytes. Raises OSError, without leaving a new
    file.
    """
    number = 1
    while files.exists(target := path.with_name(f"{path.name}.damaged-{number}")):
        if same_content(files, handle, start, stop, target):
            return target
        number += 1
    try:
        copy_range(files, handle, start, stop, target)
    except OSError:
        if files.exists(target):
            files.unlink(target)
        raise
    return target
