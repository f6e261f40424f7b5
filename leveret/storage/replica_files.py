"""The files of a log at a node that does not lead it: opened, described, compared, read and cut.

They are opened for what they hold. A machine that dies may leave the files that were not flushed
with gaps and torn batches: all from the first of them on is cut off, and what is left is flushed.
In front of what is known to have been flushed that would be damage, and is refused: such a replica
must not count as one that has what it once acknowledged. A file of which a flush has failed (its
segment is `suspect`) is written over itself before it is flushed again: the page cache may say that
the disk has what it does not have.

All functions wait for the device.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.records import HEADER_BYTES
from leveret.ports.replication import (
    START,
    EpochEnd,
    LogFiles,
    LogPlace,
    PlaceGoneError,
    RawBatches,
)
from leveret.storage.encryption import HEAD_BYTES, checksum_of, leader_epoch_of
from leveret.storage.files import read_exactly, storage_error
from leveret.storage.names import list_logs
from leveret.storage.reader import read_whole
from leveret.storage.recovery import remove_drafts
from leveret.storage.segment import OFFSET_MAX, Segment, list_segments
from leveret.storage.segment_walk import SegmentEnd, last_epoch, walk_segment
from leveret.storage.segments import remove_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = [
    "ReplicaEnd",
    "cut_replica",
    "describe_log",
    "find_end",
    "has_last_batch",
    "newest_epoch",
    "open_replica",
    "read_segment",
    "rewrite_suspect",
]

EVERYTHING = LogPlace(OFFSET_MAX)  # a place behind all others


@dataclass(slots=True)
class ReplicaEnd:
    """Files of a replica, oldest first, and what stands at their end."""

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

    def place_left(self, cut: LogPlace) -> LogPlace:
        """Return where the files end once they are cut at a place (see `cut_replica`)."""
        if cut.position:
            return cut
        left = [segment for segment in self.segments if segment.file < cut.file]
        return ReplicaEnd(left).place

    def copy(self) -> ReplicaEnd:
        """Return the same for a worker thread, which nothing changes that is written meanwhile.

        Sizes of files are as they are now, and only those that are read of.
        """
        return replace(self, segments=[copy(segment) for segment in self.segments])

    def describe(self, files: FileSystem, log: str) -> LogFiles:
        """Return what the files of a log hold. Raises StorageError."""
        found = describe_log(files, log, self.segments, self.place, self.offset)
        return found._replace(last=self.last, checksum=self.checksum)

    def follow(self, segment: Segment, end: SegmentEnd) -> None:
        """Move to the end of a segment."""
        self.last = LogPlace(segment.base, segment.revision, end.last)
        self.offset, self.epoch, self.checksum = end.offset, end.epoch, end.checksum


def has_last_batch(files: FileSystem, segments: Sequence[Segment], theirs: LogFiles) -> bool:
    """Whether files of a log have the last batch of another node's, where that has it.

    A file that was removed since both were described differs in nothing. Raises StorageError.
    """
    for segment in segments:
        if segment.file == theirs.last.file:
            head = _read_head(files, segment, theirs.last.position)
            return len(head) >= HEADER_BYTES and checksum_of(head) == theirs.checksum
    return True


def _read_head(files: FileSystem, segment: Segment, position: int) -> bytearray:
    """Return the head of the batch at a position of a segment, or less. Raises StorageError."""
    try:
        handle = files.open(segment.path)
        try:
            return read_exactly(files, handle, position, HEAD_BYTES)
        finally:
            files.close(handle)
    except OSError as error:
        raise storage_error("read", segment.path, error) from error


def read_segment(
    files: FileSystem,
    segments: Sequence[Segment],
    place: LogPlace,
    offset: int,
    bytes_max: int,
) -> RawBatches:
    """Return batches of a log that nobody writes to, as they stand in a file.

    As ports.ReplicatedLog.read_raw does. Raises PlaceGoneError,
    CorruptBatchError, StorageError.
    """
    if not segments:
        return RawBatches(bytearray(), START, 0)
    segment = next((each for each in segments if each.file == place.file), None)
    if segment is None or segment.size < place.position:
        raise PlaceGoneError(f"{segments[0].directory} has no {place}")
    try:
        handle = files.open(segment.path)
        try:
            data, offset = read_whole(
                *(files, handle, place.position, segment.size, offset, bytes_max), wait=True
            )
        finally:
            files.close(handle)
    except OSError as error:
        raise storage_error("read", segment.path, error) from error
    stop = place._replace(position=place.position + len(data))
    behind = [after for before, after in pairwise(segments) if before is segment]
    if stop.position == segment.size and behind:
        stop = LogPlace(behind[0].base, behind[0].revision)
    return RawBatches(data, stop, offset)


def describe_log(
    files: FileSystem, log: str, segments: Sequence[Segment], place: LogPlace, offset: int
) -> LogFiles:
    """Return what the files of a log hold, which ends at a place; the next record has the `offset`.

    The batches of a file are of one epoch, that of its first one. Raises StorageError.
    """
    epochs: dict[int, LogPlace] = {}
    for segment in segments:
        end = LogPlace(segment.base, segment.revision, segment.size)
        head = _read_head(files, segment, 0)
        epochs[leader_epoch_of(head)] = place if segment is segments[-1] else end
    return LogFiles(
        log,
        tuple(segment.file for segment in segments),
        tuple(EpochEnd(epoch, end) for epoch, end in epochs.items()),
        place,
        offset,
    )


def open_replica(files: FileSystem, directory: Path, flushed: LogPlace = START) -> ReplicaEnd:
    """Return the end of the log in `directory`, which is on the disk; an empty one if none is.

    It is known to have been flushed up to the place `flushed`. Raises
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
        # A file that was just being begun may be empty, and then ends where a log without any does.
        if end.place != place or len(end.segments) < len(segments):
            cut_replica(files, directory, end.place)
        for segment in end.segments:
            if segment.index is not None:
                segment.listed = False
                segment.flush(files)
                segment.clear_suspect(files)
                if segment is not end.segments[-1]:
                    segment.write_index(files, segment.stop)
                    segment.index = None
    except OSError as error:
        raise storage_error("open the replica in", directory, error) from error
    return end


def rewrite_suspect(files: FileSystem, directory: Path) -> None:
    """Flush files whose flush has failed, as far as they are sound. Raises StorageError."""
    try:
        for segment in list_segments(files, directory):
            if segment.suspect:
                size = segment.size
                walk_segment(files, segment)
                segment.size = size
                segment.listed = False
                segment.flush(files)
                segment.clear_suspect(files)
    except OSError as error:
        raise storage_error("write anew the log in", directory, error) from error


def find_end(files: FileSystem, directory: Path) -> ReplicaEnd:
    """Return the end of a log that nobody writes to, as it is. Waits for the device.

    Raises StorageError.
    """
    try:
        segments = list_segments(files, directory)
        for segment in segments:
            segment.suspect = False  # it is read as it is
        return _sound_end(files, segments, EVERYTHING)
    except OSError as error:
        raise storage_error("read the log in", directory, error) from error


def newest_epoch(files: FileSystem, topics: Path) -> int:
    """Return the highest epoch in which the newest file of a log was begun; 0 without any.

    No older file of a log has a higher one. Waits for the device. Raises StorageError.
    """
    try:
        logs = (list_segments(files, topics / key) for key in list_logs(files, topics))
        return max((last_epoch(files, segments) for segments in logs), default=0)
    except OSError as error:
        raise storage_error("read the logs in", topics, error) from error


def _sound_end(files: FileSystem, segments: list[Segment], flushed: LogPlace) -> ReplicaEnd:
    """Return the files up to the first that is not whole, with as much of that as is sound.

    A file that has an index file was flushed as a whole; those behind the last one are read. Raises
    OSError.
    """
    end = ReplicaEnd([])
    for segment in segments:
        end.segments.append(segment)
        is_newest, size = segment is segments[-1], segment.size
        is_whole = not segment.suspect and segment.read_index(files) is not None
        if is_whole and not is_newest:
            continue
        end.follow(segment, walk_segment(files, segment))
        # Behind what is known to be flushed, offsets may be missing because they were not flushed;
        # in front of it only because the files that had them were removed before they came here.
        misses = end.offset < segment.stop and end.place >= flushed and not is_newest
        if misses or not segment.size or segment.size < size:
            break
    if segments and not end.segments[-1].size:  # not even its first batch was written
        end = ReplicaEnd(end.segments[:-1])
        for segment in end.segments[-1:]:
            end.follow(segment, walk_segment(files, segment))
    return end


def cut_replica(files: FileSystem, directory: Path, place: LogPlace) -> None:
    """Cut off what stands behind a place at which a batch ends: it never comes back.

    A crash in between leaves a log that ends later. Raises StorageError.
    """
    try:
        for segment in reversed(list_segments(files, directory)):
            if segment.file < place.file:
                break
            with suppress(FileNotFoundError):
                files.unlink(segment.index_path)  # it says where the file ended
            if segment.file > place.file or not place.position:
                remove_files(files, segment)
            else:
                _truncate(files, segment, place.position)
            files.sync_directory(directory)
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
