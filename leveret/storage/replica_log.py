"""The log of a node that follows: its leader's bytes, appended as they come and flushed together.

Files that the leader has compacted come as a whole, and files that it has removed are removed, by
the flush that covers all that came before (`replica_files` has what is done to them at rest).
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, StorageError
from leveret.storage.batch_walk import BatchWalk
from leveret.storage.files import storage_error, write_all
from leveret.storage.flush import Flush
from leveret.storage.index import SparseIndex
from leveret.storage.replica_files import ReplicaEnd
from leveret.storage.segment import Segment
from leveret.storage.segment_walk import SegmentEnd, ensure_index, note_walk
from leveret.storage.segment_writer import GROWTH_BYTES
from leveret.storage.segments import FILE, remove_files
from leveret.storage.written_log import LOOP_FLUSH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leveret.ports.replication import LogPlace
    from leveret.storage.commit import Committer, FlushFigures
    from leveret.storage.files import FileSystem

__all__ = ["FileReplicaLog"]


@dataclass(slots=True)
class CopiedFile:
    """A compacted file that is being copied: its segment, and the end of what was copied so far.

    Until it is whole and on the disk, its name is that of a draft.
    """

    segment: Segment
    end: ReplicaEnd
    handle: int
    is_open: bool = True

    def close(self, files: FileSystem) -> None:
        """Close the file, unless that was done."""
        if self.is_open:
            self.is_open = False
            files.close(self.handle)

    def discard(self, files: FileSystem) -> None:
        """Close the file, and remove it if it is a draft still; what cannot be goes later."""
        self.close(files)
        with suppress(OSError):
            files.unlink(self.segment.draft_path)


class FileReplicaLog:
    """Log of a node that follows: its files, which are not read for any client.

    Used on the event loop. Opened with what `open_replica` has found; unless it is still sound
    after an error, it must be opened anew.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        committer: Committer,
        end: ReplicaEnd,
        figures: FlushFigures,
    ) -> None:
        self._files = files
        self._directory = directory
        self._committer = committer
        self._figures = figures  # of all logs
        self._end = end
        self._unflushed_bytes = 0
        self._file_bytes = end.place.position  # of the newest file, zeros at its end included
        self._dirty: list[Segment] = []
        self._before_gaps: list[Segment] = []  # not known as whole by a durable index file yet
        self._draft: CopiedFile | None = None
        self._changes: list[CopiedFile | tuple[int, int]] = []  # files to be added and removed
        self.is_sound = True

    @property
    def place(self) -> LogPlace:
        """End of what was appended."""
        return self._end.place

    @property
    def end(self) -> ReplicaEnd:
        """Files, and what stands at their end."""
        return self._end

    def append(self, place: LogPlace, data: bytes | bytearray | memoryview) -> None:
        """Append batches, which begin at the log's end or are the first of the file that follows.

        They stay as they are. Each is checked: raises CorruptBatchError unless they are sound,
        follow in offset and epoch, and end with the data. Raises DiskFullError, StorageError.
        Nothing has changed then.
        """
        self._check_sound()
        end = self._end
        begins = place != end.place or not end.segments
        if begins and not self._may_begin(place):
            raise CorruptBatchError(f"{place} does not follow {end.place} in {self._directory}")
        walk = self._checked(place, data, begins=begins)
        if begins:
            self._end_file()
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
        self._unflushed_bytes += len(data)
        self._follow(end, segment, walk, len(data))

    @staticmethod
    def _follow(end: ReplicaEnd, segment: Segment, walk: BatchWalk, size: int) -> None:
        """Move an end behind batches that were written at the end of its segment."""
        note_walk(segment, walk, segment.size)
        last = segment.size + walk.last
        end.follow(segment, SegmentEnd(walk.offset, walk.epoch, walk.checksum, last))
        segment.size += size

    def _check_sound(self) -> None:
        if not self.is_sound:
            raise StorageError(f"the replica in {self._directory} must be opened anew")

    def _may_begin(self, place: LogPlace) -> bool:
        """Whether a file may begin here: it follows, or is the first.

        Files in between may have been removed; or it was compacted from the newest one, and a crash
        has left both.
        """
        end = self._end
        if not end.segments:
            return place.position == 0
        follows = place.base >= end.offset or place.base == end.place.base
        return place.position == 0 and place > end.place and follows

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
        try:
            if begins:
                segment.release(self._files)
                self._files.unlink(segment.path)
            elif segment.handle is not None:
                self._files.truncate(segment.handle, segment.size)
                self._file_bytes = segment.size
        except OSError:
            self.is_sound = False

    def _end_file(self) -> None:
        """Have the newest file end where its content does. Raises StorageError.

        With zeros behind, it would be taken for a file of which something was not flushed.
        """
        segments = self._end.segments
        if not segments or self._file_bytes <= segments[-1].size:
            return
        newest = segments[-1]
        try:
            if newest.handle is None:
                newest.handle = self._files.open(newest.path)
            self._files.truncate(newest.handle, newest.size)
        except OSError as error:
            raise storage_error("truncate", newest.path, error) from error
        self._file_bytes = newest.size

    def _seal(self, stop: int) -> None:
        """Have the newest file flushed for the last time, since another one begins.

        Where the leader has removed files in between, whoever opens these without a note of them
        would take the gap for a loss.
        """
        if not self._end.segments:
            return
        sealed = self._end.segments[-1]
        sealed.stop = stop
        if self._end.offset < stop:
            self._before_gaps.append(sealed)
        if sealed.index is not None:  # else it was a file in the middle, and has its index file
            self._mark_dirty(sealed)

    def _mark_dirty(self, segment: Segment) -> None:
        if not segment.dirty:
            segment.dirty = True
            segment.pins += 1
            self._dirty.append(segment)

    # -- files that are copied or removed as a whole

    def copy(self, place: LogPlace, data: bytes | bytearray | memoryview, *, is_last: bool) -> None:
        """Take bytes of a compacted file, which is added by the flush behind its last ones.

        Raises CorruptBatchError unless they are sound and follow, StorageError.
        """
        self._check_sound()
        try:
            draft = self._copied_file(place)
            if data:
                end, segment = draft.end, draft.segment
                assert segment.index is not None
                due = max(segment.index.due - place.position, 0)
                walk = BatchWalk(data, end.offset, end.epoch, due)
                if walk.reason is not None:
                    raise CorruptBatchError(f"bytes for {segment.path}: {walk.reason}")
                write_all(self._files.pwrite, draft.handle, data, segment.size)
                self._follow(end, segment, walk, len(data))
        except OSError as error:
            raise storage_error("copy a file into", self._directory, error) from error
        if is_last:
            self._draft = None
            self._changes.append(draft)

    def _copied_file(self, place: LogPlace) -> CopiedFile:
        """Return the draft that a place is the end of. Raises CorruptBatchError, OSError."""
        if place.position == 0:
            self._forget_draft()
            segment = Segment(self._directory, place.base, place.revision)
            segment.index = SparseIndex()
            self._files.make_directory(self._directory)
            if self._files.exists(segment.draft_path):
                self._files.unlink(segment.draft_path)
            handle = self._files.open(segment.draft_path, create=True)
            self._draft = CopiedFile(segment, ReplicaEnd([segment], place.base), handle)
        draft = self._draft
        if draft is None or draft.end.place != place:
            raise CorruptBatchError(f"no file in {self._directory} is copied up to {place}")
        return draft

    def _forget_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.discard(self._files)

    def remove(self, base: int, revision: int) -> None:
        """Have a file removed by the next flush, if there is such a one."""
        self._changes.append((base, revision))

    def forget_unfinished(self) -> None:
        """Remove drafts, and forget files that were to be removed or added."""
        self._forget_draft()
        changes, self._changes = self._changes, []
        _discard(self._files, changes)

    # -- flushing

    def flush(
        self, done: Callable[[StorageError | None], None], *, may_block: bool = False
    ) -> None:
        """Make all that was appended so far durable.

        Calls `done` on the loop, with the error if it failed: the log is to be opened anew then.
        Otherwise files are added and removed of which that was told before. `may_block`: nothing
        else is to be done now, so that a quick disk is waited for here (decision 0061).
        """
        dirty, self._dirty = self._dirty, []
        newest = self._end.segments[-1] if self._end.segments else None
        sealed = [(segment, segment.stop) for segment in dirty if segment is not newest]
        for segment in dirty:
            segment.dirty = False
        changes, self._changes = self._changes, []
        before_gaps, self._before_gaps = self._before_gaps, []
        flush = Flush(self._files, dirty, sealed)
        flushed = partial(self._flushed, flush, before_gaps, changes, done)
        size, self._unflushed_bytes = self._unflushed_bytes, 0
        if may_block and flush.is_plain and self._may_flush_on_loop(size):
            flushed(_failure_of(flush.run))
        else:
            flush.start(self._committer, flushed)

    def _may_flush_on_loop(self, size: int) -> bool:
        """Whether the disk is quick, and a flush of so many bytes is short (decision 0061)."""
        return size <= LOOP_FLUSH_BYTES_MAX and self._figures.are_quick()

    def _flushed(
        self,
        flush: Flush,
        before_gaps: list[Segment],
        changes: list[CopiedFile | tuple[int, int]],
        done: Callable[[StorageError | None], None],
        error: OSError | None,
    ) -> None:
        if flush.segments:
            self._figures.ended(flush.took_us, 0, failed=error is not None)
        sealed = [segment for segment, _ in flush.sealed]
        for segment in flush.segments:
            segment.pins -= 1
            if segment in sealed:
                segment.index = None  # it is in its file now
            if segment in sealed or segment.retired:
                segment.release(self._files)
        if error is not None:
            for segment in flush.segments:
                segment.mark_suspect(self._files)
            _discard(self._files, changes)
        if error is not None or not (before_gaps or changes):
            self._end_flush(done, error)
            return
        # The flush before may have removed one: the file in front of it is known as whole then.
        gapped = [each for each in before_gaps if each in self._end.segments]
        works: list[Callable[[], None]] = [partial(ensure_index, self._files, s) for s in gapped]
        works += [work for change in changes for work in self._change(change)]
        work = partial(_do_all, works, partial(_discard, self._files, changes))
        self._committer.submit(work, partial(self._end_flush, done))

    def _end_flush(
        self, done: Callable[[StorageError | None], None], error: OSError | None
    ) -> None:
        self.is_sound = self.is_sound and error is None
        done(None if error is None else storage_error("flush", self._directory, error))

    def _change(self, change: CopiedFile | tuple[int, int]) -> list[Callable[[], None]]:
        """Add or remove a file; return what is to be done on the disk, in a worker thread."""
        return self._add(change) if isinstance(change, CopiedFile) else self._remove(change)

    def _add(self, draft: CopiedFile) -> list[Callable[[], None]]:
        segments, segment, end = self._end.segments, draft.segment, self._end
        segment.stop = draft.end.offset
        at = bisect_left(segments, segment.file, key=FILE)
        if at < len(segments) and segments[at].file == segment.file:
            segments.pop(at).release(self._files)  # it comes again
        segments.insert(at, segment)
        if segments[-1] is segment:
            end.offset, end.epoch = max(end.offset, draft.end.offset), draft.end.epoch
            end.last, end.checksum = draft.end.last, draft.end.checksum
        return [partial(_publish, self._files, draft)]

    def _remove(self, file: tuple[int, int]) -> list[Callable[[], None]]:
        segments = self._end.segments
        for at, segment in enumerate(segments):
            if segment.file == file:
                before = segments[at - 1] if at else None
                del segments[at]
                segment.release(self._files)
                return [partial(remove_files, self._files, segment, before)]
        return []

    def rest(self) -> None:
        """Close the files until they are written to, those that are being flushed behind that."""
        for segment in self._end.segments:
            segment.release(self._files)

    def close(self) -> None:
        """Close the files, and forget those that are not whole."""
        self.forget_unfinished()
        self.rest()


def _failure_of(work: Callable[[], None]) -> OSError | None:
    """Do work here; return its error as if a thread of the committer had done it."""
    try:
        work()
    except OSError as error:
        return error
    except Exception as bug:  # noqa: BLE001  # or whoever waits for the flush would wait for ever
        return OSError(f"internal error: {bug!r}")
    return None


def _do_all(works: list[Callable[[], None]], discard: Callable[[], None]) -> None:
    """Do works in their order; discard what is left of them if one fails. Raises OSError."""
    try:
        for work in works:
            work()
    except OSError:
        discard()
        raise


def _discard(files: FileSystem, changes: list[CopiedFile | tuple[int, int]]) -> None:
    """Discard drafts of changes that are not made."""
    for change in changes:
        if isinstance(change, CopiedFile):
            change.discard(files)


def _publish(files: FileSystem, draft: CopiedFile) -> None:
    """Give a file that was copied its name, durably. Raises OSError."""
    segment = draft.segment
    try:
        files.fdatasync(draft.handle)
    finally:
        draft.close(files)
    segment.write_index(files, segment.stop, flush=True)
    files.rename(segment.draft_path, segment.path)
    files.sync_directory(segment.directory)
    segment.index = None  # it is read when it is needed
