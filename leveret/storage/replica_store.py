"""The logs of a shard at a node that does not lead it, which change by its leader's words alone.

Up to where each was flushed is noted (storage/replica_notes.py): what was noted and is not there
any more was damaged.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from leveret.errors import StorageError
from leveret.ports.replication import START, LogFiles, LogPlace, PlaceGoneError, RawBatches
from leveret.storage.commit import FlushFigures
from leveret.storage.names import list_logs
from leveret.storage.replica_files import (
    ReplicaEnd,
    cut_replica,
    has_last_batch,
    open_replica,
    read_segment,
    rewrite_suspect,
)
from leveret.storage.replica_log import FileReplicaLog
from leveret.storage.replica_notes import ReplicaNotes
from leveret.storage.trash import Trash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from leveret.ports import StateStore
    from leveret.storage.files import FileSystem
    from leveret.storage.threads import StorageThreads

__all__ = ["ReplicaStore"]

OPENERS = 3  # threads that open logs at once: one is left for reads

T = TypeVar("T")


@dataclass(slots=True)
class GroupFlush:
    """A flush of several logs, which end at `places` with it; then others are `dropped`."""

    done: Callable[[StorageError | None], None]
    end: asyncio.Future[None]
    places: Mapping[str, LogPlace] = field(default_factory=dict)
    dropped: Mapping[str, None] = field(default_factory=dict)
    left: int = 0  # logs whose flush has not ended
    failure: StorageError | None = None


class ReplicaStore:
    """Files of all logs of a shard below `data`. Made in any thread, used on the event loop.

    `described` is what `describe` has found last. What the last run was removing is removed behind
    the first `describe`. The files of the `open_segments_max` logs that were written to last stay
    open, and those of others until they are flushed. Raises StorageError.
    """

    def __init__(  # noqa: PLR0917  # what it works with
        self,
        data: Path,
        files: FileSystem,
        state: StateStore,
        loop: asyncio.AbstractEventLoop,
        threads: StorageThreads,
        flushes: FlushFigures | None = None,
        *,
        open_segments_max: int = 4096,
    ) -> None:
        self._topics = data / "topics"
        self._files = files
        self._trash = Trash(files, self._topics)
        self._loop = loop
        self._threads = threads
        self._logs: dict[str, FileReplicaLog] = {}
        self._dirty: dict[str, FileReplicaLog] = {}
        self._open_segments_max = open_segments_max
        self._written: OrderedDict[str, None] = OrderedDict()  # logs with open files, latest last
        self._dropped: dict[str, None] = {}
        self._flush: GroupFlush | None = None  # that is running
        self._figures = flushes or FlushFigures()  # say whether the disk is quick
        self._lock = asyncio.Lock()
        self._notes = ReplicaNotes(state, loop, threads.committer, self._trash)
        self._removals = self._trash.take_left(data / "transient")
        self.described: Mapping[str, LogFiles] = {}

    @property
    def oldest_flush_ms(self) -> int:
        """Time since the oldest flush that this node is running has begun; 0 while none is."""
        return self._threads.committer.oldest_flush_us // 1000

    # -- what the files hold

    async def describe(self, *, keeps: bool) -> Mapping[str, LogFiles]:
        """Flush all files, and return what each log holds that has some.

        What is not whole is forgotten: files that were to be copied or removed. Logs of which a
        flush has failed are written anew. If the node `keeps` what it has, raises CorruptBatchError
        if some of what was flushed is not there; otherwise, what is left is all. Raises
        StorageError.
        """
        async with self._lock:
            await self._stop_changing()
            await self._run(self._notes.forget_derived)
            await self._replace_marks()
            await self._open(keeps=keeps)
            self._remove_left()
            ends = {key: log.end.copy() for key, log in self._logs.items()}
            self.described = await self._run(partial(self._describe, ends))
            return self.described

    async def _replace_marks(self) -> None:
        """Note what a reign of this node has flushed, and have nobody believe its marks."""
        marks = self._notes.read_marks()
        void = await self._run(partial(self._trash.find_deleted, marks))
        await self._notes.replace_marks(marks, void)

    async def _run(self, work: Callable[[], T]) -> T:
        """Return what `work` does in a thread, which whoever is cancelled waits for all the same.

        The thread has the files as long as it works, and so nobody else may get the lock.
        """
        running = self._loop.run_in_executor(self._threads.pool, work)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            running.exception()  # nobody else asks for it
            raise cancelled
        return running.result()

    async def _stop_changing(self) -> None:
        """Flush what was appended, and forget files that are not whole.

        Logs of which the flush fails are not sound any more.
        """
        await self._flush_end()
        self._dropped.clear()
        for log in self._logs.values():
            log.forget_unfinished()
        if self._dirty:
            self.flush(lambda _: None)
            await self._flush_end()

    async def _flush_end(self) -> None:
        if self._flush is not None:
            await asyncio.wait([self._flush.end])  # which is not cancelled with who waits

    async def _open(self, *, keeps: bool) -> None:
        """Open logs that are not open, or not sound. Raises CorruptBatchError, StorageError."""
        found = await self._run(partial(list_logs, self._files, self._topics))
        keys = [
            key
            for key in dict.fromkeys([*found, *self._notes.flushed])
            if key not in self._logs or not self._logs[key].is_sound
        ]
        for key in keys:
            self._forget(key)
        parts = [keys[part::OPENERS] for part in range(OPENERS)]
        works = [self._run(partial(self._open_each, part, keeps=keeps)) for part in parts]
        for ends in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(ends, BaseException):
                raise ends
            self._logs |= {key: self._log(key, end) for key, end in ends.items()}
        # All that was opened is flushed. The index files that tell a gap from a loss need not be
        # durable yet, if a flush was interrupted that began behind one: the notes tell it, too.
        places, flushed = {key: self._logs[key].place for key in keys}, self._notes.flushed
        unnoted = {key: at for key, at in places.items() if at != flushed.get(key, START)}
        for key, place in unnoted.items():
            self._notes.note(key, place)
        if unnoted:
            await self._notes.written()

    def _open_each(self, keys: Iterable[str], *, keeps: bool) -> dict[str, ReplicaEnd]:
        """Open logs, in a worker thread. Raises CorruptBatchError, StorageError."""
        flushed = self._notes.flushed if keeps else {}
        return {
            key: open_replica(self._files, self._topics / key, flushed.get(key, START))
            for key in keys
        }

    def _log(self, key: str, end: ReplicaEnd) -> FileReplicaLog:
        committer = self._threads.committer
        return FileReplicaLog(self._files, self._topics / key, committer, end, self._figures)

    def _forget(self, key: str) -> None:
        log = self._logs.pop(key, None)
        self._written.pop(key, None)
        if log is not None:
            log.close()

    def _describe(self, ends: Mapping[str, ReplicaEnd]) -> dict[str, LogFiles]:
        """Describe logs, in a worker thread. Raises StorageError."""
        return {key: end.describe(self._files, key) for key, end in ends.items() if end.segments}

    def has_last(self, theirs: LogFiles) -> bool:
        """Whether a log has another node's last batch where that has it (see attaching.compare).

        For a worker thread, while nothing is written. Raises StorageError, also if the logs were
        left to a reign meanwhile.
        """
        log = self._logs.get(theirs.log)
        if log is None:  # neither answer would be true: the follower attaches anew to the reign
            raise StorageError(f"this node is about to lead and has closed {theirs.log}")
        return has_last_batch(self._files, log.end.segments, theirs)

    async def read(self, log: str, place: LogPlace, offset: int, bytes_max: int) -> RawBatches:
        """Return raw batches (see ports.ReplicatedLog.fetch_raw).

        Raises PlaceGoneError, CorruptBatchError, StorageError.
        """
        replica = self._logs.get(log)
        if replica is None:
            raise PlaceGoneError(f"there is no log {log}")
        segments = replica.end.copy().segments
        read = partial(read_segment, self._files, segments, place, offset, bytes_max)
        return await self._run(read)

    # -- what the leader says

    def append(self, log: str, place: LogPlace, data: bytes | bytearray | memoryview) -> None:
        """Append batches to a log (see FileReplicaLog.append).

        Raises CorruptBatchError, StorageError, which is also for one that is being deleted.
        """
        replica = self._changing(log)
        self._make_room(log)
        replica.append(place, data)

    def _make_room(self, key: str) -> None:
        """Have a log's file stay open from now on; close that of the log written longest ago."""
        self._written[key] = None
        self._written.move_to_end(key)
        if len(self._written) > self._open_segments_max:
            oldest, _ = self._written.popitem(last=False)
            self._logs[oldest].rest()

    def copy(
        self, log: str, place: LogPlace, data: bytes | bytearray | memoryview, *, is_last: bool
    ) -> None:
        """Copy a compacted file into a log (see FileReplicaLog.copy).

        Raises as `append` does.
        """
        self._changing(log).copy(place, data, is_last=is_last)

    def remove(self, log: str, base: int, revision: int) -> None:
        """Remove a file of a log, at the end of the next flush. Raises StorageError."""
        self._changing(log).remove(base, revision)

    def drop(self, log: str) -> None:
        """Remove a log, at the end of the next flush, if there is such a one."""
        if log in self._logs:
            self._dropped[log] = None

    def _changing(self, key: str) -> FileReplicaLog:
        """Return a log that is to be flushed next. Raises StorageError if it is being deleted.

        Another one of its name would be moved away with its files.
        """
        if key in self._dropped or (self._flush is not None and key in self._flush.dropped):
            raise StorageError(f"the log {key} comes again while it is being deleted")
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = self._log(key, ReplicaEnd([]))
        self._dirty[key] = log
        return log

    def flush(self, done: Callable[[StorageError | None], None]) -> None:
        """Make durable all that was said so far, and remove what is to be removed.

        Calls `done` on the loop, with the error if it failed. One flush runs at a time.
        """
        assert self._flush is None, "a flush is running"
        self._flush = GroupFlush(done, self._loop.create_future())
        # What the loop has read already is appended before, and needs no flush of its own.
        self._loop.call_soon(self._begin_flush, self._flush)

    def _begin_flush(self, flush: GroupFlush) -> None:
        logs, self._dirty = self._dirty, {}
        flush.dropped, self._dropped = self._dropped, {}
        flush.places = {key: log.place for key, log in logs.items()}
        flush.left = len(logs)
        if not logs:
            self._end_flush(flush)
        for log in logs.values():
            log.flush(partial(self._log_flushed, flush), may_block=len(logs) == 1)

    def _log_flushed(self, flush: GroupFlush, error: StorageError | None) -> None:
        flush.failure = flush.failure or error
        flush.left -= 1
        if not flush.left:
            self._end_flush(flush)

    def _end_flush(self, flush: GroupFlush) -> None:
        self._flush = None
        if flush.failure is None:
            for key, place in flush.places.items():
                self._notes.note(key, place)
            try:
                for key in flush.dropped:
                    self._drop(key)
            except StorageError as error:
                flush.failure = error
        flush.end.set_result(None)
        flush.done(flush.failure)

    def _drop(self, key: str) -> None:
        """Move a log's files away, to be removed behind its note. Raises StorageError."""
        self._forget(key)
        removal = self._trash.take(key.encode(), self._topics / key)
        if removal is not None:
            self._notes.note(key, START)
            self._notes.when_written(removal)

    def _remove_left(self) -> None:
        """Remove what the last run has left, once no note is left of it, nor a mark of a reign."""
        removals, self._removals = self._removals, []
        for removal in removals:
            self._notes.when_written(removal)

    async def cut(self, cuts: Iterable[tuple[str, LogPlace]]) -> None:
        """Cut off what stands behind places of logs, durably. Raises StorageError.

        The next `describe` opens them anew.
        """
        async with self._lock:
            await self._stop_changing()
            places = dict(cuts)
            for key, place in places.items():
                end = self._logs[key].end if key in self._logs else ReplicaEnd([])
                left = end.place_left(place)
                self._forget(key)
                # What is in front of the cut must be there still, what is behind it need not.
                self._notes.note(key, min(left, self._notes.flushed.get(key, START)))
            await self._notes.written()
            await self._run(partial(self._cut, places))

    def _cut(self, places: Mapping[str, LogPlace]) -> None:
        """Cut logs, in a worker thread. Raises StorageError."""
        for key, place in places.items():
            directory = self._topics / key
            cut_replica(self._files, directory, place)
            if place == START:
                with suppress(OSError):
                    self._files.remove_directory(directory)
                    self._files.remove_directory(directory.parent)

    async def close(self) -> None:
        """Close all files, once the flush that is running has ended."""
        async with self._lock:
            await self._stop_changing()
            for key in list(self._logs):
                self._forget(key)
            self._notes.stop()
            await self._notes.written()

    async def leave(self) -> None:
        """Leave the files to a store that opens them to lead.

        It takes for stored what it finds, so that files whose flush has failed are written anew
        before. Raises StorageError.
        """
        await self.close()
        await self._run(self._rewrite_suspect)

    def _rewrite_suspect(self) -> None:
        for key in list_logs(self._files, self._topics):
            rewrite_suspect(self._files, self._topics / key)
