"""The files of a log that another node leads: its bytes, appended as they come, and cut.

A replica is opened for what its files hold. A machine that dies may leave the files that were not
flushed with gaps and torn batches: all from the first of them on is cut off, and what is left is
flushed. In front of what is known to have been flushed that would be damage, and is refused: such a
replica must not count as one that has what it once acknowledged.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.replication import START, EpochEnd, LogFiles, LogPlace
from leveret.storage.batch_walk import BatchWalk
from leveret.storage.encryption import HEAD_BYTES, leader_epoch_of
from leveret.storage.files import read_exactly, storage_error, write_all
from leveret.storage.flush import Flush
from leveret.storage.index import SparseIndex
from leveret.storage.recovery import remove_drafts
from leveret.storage.segment import Segment, list_segments
from leveret.storage.segment_writer import GROWTH_BYTES
from leveret.storage.segments import remove_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leveret.errors import StorageError
    from leveret.storage.commit import Committer
    from leveret.storage.files import FileSystem

__all__ = ["FileReplicaLog", "ReplicaEnd", "cut_replica", "describe_log", "open_replica"]

WALK_BYTES = 1 << 20  # one read while a file is walked over


@dataclass(slots=True)
class ReplicaEnd:
    """Files of a replica, oldest first, and what stands at their end (see ports.ReplicaLog)."""

    segments: list[Segment]
    offset: int = 0
    epoch: int = 0
    checksum: int = 0
    last: LogPlace = START

    @property
    def place(self) -> LogPlace:
        """End of the files."""
        if not self.segments:
            return START
        newest = self.segments[-1]
        return LogPlace(newest.base, newest.revision, newest.size)

    def describe(self, files: FileSystem, log: str) -> LogFiles:
        """Return what the files of a log hold. Waits for the device. Raises StorageError."""
        found = describe_log(files, log, self.segments, self.place, self.offset)
        return found._replace(last=self.last, checksum=self.checksum)

    def follow(self, walk: BatchWalk, segment: Segment, position: int) -> None:
        """Move behind batches of a segment, which begin at `position`; its index is of this run."""
        if not walk.size:
            return
        assert segment.index is not None
        for offset, at in walk.entries:
            segment.index.note(offset, position + at)
        self.last = LogPlace(segment.base, segment.revision, position + walk.last)
        self.offset, self.epoch, self.checksum = walk.offset, walk.epoch, walk.checksum


def describe_log(
    files: FileSystem, log: str, segments: list[Segment], place: LogPlace, offset: int
) -> LogFiles:
    """Return what the files of a log hold, which ends at a place; the next record has the `offset`.

    The batches of a file are of one epoch, that of its first one. Waits for the device. Raises
    StorageError.
    """
    epochs: dict[int, LogPlace] = {}
    for segment in segments:
        end = LogPlace(segment.base, segment.revision, segment.size)
        try:
            handle = files.open(segment.path)
            try:
                head = read_exactly(files, handle, 0, HEAD_BYTES)
            finally:
                files.close(handle)
        except OSError as error:
            raise storage_error("read", segment.path, error) from error
        epochs[leader_epoch_of(head)] = place if segment is segments[-1] else end
    return LogFiles(
        log,
        tuple((segment.base, segment.revision) for segment in segments),
        tuple(EpochEnd(epoch, end) for epoch, end in epochs.items()),
        place,
        offset,
    )


def open_replica(files: FileSystem, directory: Path, flushed: LogPlace = START) -> ReplicaEnd:
    """Return the end of the log in `directory`, which is on the disk; an empty one if none is.

    It is known to have been flushed up to the place `flushed`. Waits for the device. Raises
    CorruptBatchError if what is sound ends in front of that, StorageError.
    """
    try:
        segments = list_segments(files, directory)
        if segments:
            remove_drafts(files, directory, segments)
        place = ReplicaEnd(segments).place
        end = _sound_end(files, segments, flushed)
        if end.place < flushed:
            raise CorruptBatchError(f"{directory} is damaged at {end.place}, before {flushed}")
        if end.place != place:
            cut_replica(files, directory, end.place)
        for segment in end.segments:
            if segment.index is not None:
                segment.listed = False
                segment.flush(files)
    except OSError as error:
        raise storage_error("open the replica in", directory, error) from error
    return end


def _sound_end(files: FileSystem, segments: list[Segment], flushed: LogPlace) -> ReplicaEnd:
    """Return the files up to the first that is not whole, with as much of that as is sound.

    A file that has an index file was flushed as a whole; those behind the last one are read. Raises
    OSError.
    """
    end = ReplicaEnd([])
    for segment in segments:
        end.segments.append(segment)
        is_newest, size = segment is segments[-1], segment.size
        if not is_newest and segment.read_index(files) is not None:
            continue
        _walk(files, segment, end)
        # Behind what is known to be flushed, offsets may be missing because they were not flushed;
        # in front of it only because the files that had them were removed before they came here.
        misses = end.offset < segment.stop and end.place >= flushed and not is_newest
        if misses or not segment.size or segment.size < size:
            break
    if segments and not end.segments[-1].size:  # not even its first batch was written
        end = ReplicaEnd(end.segments[:-1])
        for segment in end.segments[-1:]:
            _walk(files, segment, end)
    return end


def _walk(files: FileSystem, segment: Segment, end: ReplicaEnd) -> None:
    """Move the end behind the sound batches of a segment, which make its size. Raises OSError."""
    position, wanted = 0, WALK_BYTES
    index = segment.index = SparseIndex()
    end.offset, end.epoch = segment.base, 0
    handle = files.open(segment.path)
    try:
        while position < segment.size:
            window = read_exactly(files, handle, position, min(wanted, segment.size - position))
            walk = BatchWalk(window, end.offset, end.epoch, max(index.due - position, 0))
            if not walk.size and (not walk.wanted or position + walk.wanted > segment.size):
                break
            end.follow(walk, segment, position)
            position += walk.size
            wanted = WALK_BYTES if walk.size else walk.wanted
    finally:
        files.close(handle)
    segment.size = position


def cut_replica(files: FileSystem, directory: Path, place: LogPlace) -> None:
    """Cut off what stands behind a place at which a batch ends: it never comes back.

    A crash in between leaves a log that ends later. Waits for the device. Raises StorageError.
    """
    try:
        for segment in reversed(list_segments(files, directory)):
            if (segment.base, segment.revision) < place[:2]:
                break
            with suppress(FileNotFoundError):
                files.unlink(segment.index_path)  # it says where the file ended
            if (segment.base, segment.revision) > place[:2] or not place.position:
                remove_files(files, segment)
                files.sync_directory(directory)
            else:
                _truncate(files, segment, place.position)
    except OSError as error:
        raise storage_error("cut the replica in", directory, error) from error


def _truncate(files: FileSystem, segment: Segment, size: int) -> None:
    handle = files.open(segment.path)
    try:
        files.truncate(handle, size)
        files.fdatasync(handle)
    finally:
        files.close(handle)
    segment.size = size


class FileReplicaLog:
    """`ports.ReplicaLog` in files. Used on the event loop.

    Opened with what `open_replica` has found; after an error of a flush it must be opened anew.
    """

    def __init__(
        self, files: FileSystem, directory: Path, committer: Committer, end: ReplicaEnd
    ) -> None:
        self._files = files
        self._directory = directory
        self._committer = committer
        self._end = end
        self._file_bytes = end.place.position  # of the newest file, zeros at its end included
        self._dirty: list[Segment] = []

    @property
    def place(self) -> LogPlace:
        """End of what was appended (see ports.ReplicaLog)."""
        return self._end.place

    @property
    def offset(self) -> int:
        """Offset that the next record will get (see ports.ReplicaLog)."""
        return self._end.offset

    @property
    def epoch(self) -> int:
        """Epoch of the last batch (see ports.ReplicaLog)."""
        return self._end.epoch

    @property
    def checksum(self) -> int:
        """Checksum of the last batch (see ports.ReplicaLog)."""
        return self._end.checksum

    @property
    def last(self) -> LogPlace:
        """Beginning of the last batch (see ports.ReplicaLog)."""
        return self._end.last

    def append(self, place: LogPlace, data: bytes | bytearray | memoryview) -> None:
        """Append batches as they are (see ports.ReplicaLog)."""
        end = self._end
        begins = place != end.place or not end.segments
        if begins and not self._may_begin(place):
            raise CorruptBatchError(f"{place} does not follow {end.place} in {self._directory}")
        walk = self._checked(place, data, begins=begins)
        segment = self._begin(place) if begins else end.segments[-1]
        try:
            self._write(segment, data)
        except OSError as error:
            self._undo(segment, begins=begins)
            raise storage_error("write to", segment.path, error) from error
        if begins:
            self._seal(place.base)
            end.segments.append(segment)
        self._mark_dirty(segment)
        end.follow(walk, segment, segment.size)
        segment.size += len(data)

    def _may_begin(self, place: LogPlace) -> bool:
        """Whether a file may begin here: it follows, or is the first.

        Files in between may have been removed.
        """
        end = self._end
        if not end.segments:
            return place.position == 0
        return place.position == 0 and place > end.place and place.base >= end.offset

    def _checked(
        self, place: LogPlace, data: bytes | bytearray | memoryview, *, begins: bool
    ) -> BatchWalk:
        index = None if begins else self._end.segments[-1].index
        due = 0 if index is None else max(index.due - place.position, 0)
        offset = place.base if begins else self._end.offset
        walk = BatchWalk(data, offset, self._end.epoch, due)
        if walk.reason is not None:
            raise CorruptBatchError(f"bytes for {place} of {self._directory}: {walk.reason}")
        return walk

    def _begin(self, place: LogPlace) -> Segment:
        """Return a new file. Raises StorageError."""
        segment = Segment(self._directory, place.base, place.revision)
        segment.listed = False
        segment.index = SparseIndex()
        try:
            self._files.make_directory(self._directory)
            segment.handle = self._files.open(segment.path, create=True)
        except OSError as error:
            raise storage_error("create", segment.path, error) from error
        return segment

    def _write(self, segment: Segment, data: bytes | bytearray | memoryview) -> None:
        """Write behind a segment's content. Raises OSError."""
        if segment.handle is None:
            segment.handle = self._files.open(segment.path)
        stop = segment.size + len(data)
        if segment.size and self._file_bytes < stop and len(data) < GROWTH_BYTES:
            with suppress(OSError):  # as in the leader's own file (SegmentWriter)
                self._files.truncate(segment.handle, stop + GROWTH_BYTES)
                self._file_bytes = stop + GROWTH_BYTES
        write_all(self._files.pwrite, segment.handle, data, segment.size)
        self._file_bytes = max(self._file_bytes, stop) if segment.size else stop

    def _undo(self, segment: Segment, *, begins: bool) -> None:
        """Take back what was written of a batch. Should that fail, opening the replica does it."""
        with suppress(OSError):
            if begins:
                segment.release(self._files)
                self._files.unlink(segment.path)
            elif segment.handle is not None:
                self._files.truncate(segment.handle, segment.size)
                self._file_bytes = segment.size

    def _seal(self, stop: int) -> None:
        """End the newest file, since another one begins."""
        if not self._end.segments:
            return
        sealed = self._end.segments[-1]
        sealed.stop = stop
        with suppress(OSError):
            if sealed.handle is None:
                sealed.handle = self._files.open(sealed.path)
            self._files.truncate(sealed.handle, sealed.size)
        self._mark_dirty(sealed)  # its index is not in its file yet

    def _mark_dirty(self, segment: Segment) -> None:
        if not segment.dirty:
            segment.dirty = True
            segment.pins += 1
            self._dirty.append(segment)

    def flush(self, done: Callable[[StorageError | None], None]) -> None:
        """Make all that was appended so far durable (see ports.ReplicaLog)."""
        dirty, self._dirty = self._dirty, []
        newest = self._end.segments[-1] if self._end.segments else None
        sealed = [(segment, segment.stop) for segment in dirty if segment is not newest]
        for segment in dirty:
            segment.dirty = False
        flush = Flush(self._files, dirty, sealed)
        self._committer.submit(flush.run, partial(self._flushed, flush, done))

    def _flushed(
        self, flush: Flush, done: Callable[[StorageError | None], None], error: OSError | None
    ) -> None:
        sealed = [segment for segment, _ in flush.sealed]
        for segment in flush.segments:
            segment.pins -= 1
            if segment in sealed:
                segment.index = None  # it is in its file now
            if segment in sealed or segment.retired:
                segment.release(self._files)
        failure = None if error is None else storage_error("flush", self._directory, error)
        done(failure)

    def close(self) -> None:
        """Close the files (see ports.ReplicaLog)."""
        for segment in self._end.segments:
            segment.release(self._files)
