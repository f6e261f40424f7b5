"""The logs of a store at the node that leads them, as replication copies them.

Some are open, and tell what happens to them; others lie in their files, and do not change. Used on
the event loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports.callbacks import call_each
from leveret.ports.replication import LogPlace, RawBatches
from leveret.storage.files import storage_error
from leveret.storage.names import list_logs
from leveret.storage.replica_files import describe_log, find_end, has_last_batch, read_segment
from leveret.storage.segment import list_segments

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from leveret.ports.replication import LogEnd, LogEvents, LogFiles
    from leveret.storage.files import FileSystem
    from leveret.storage.log import PartitionLog
    from leveret.storage.segment import Segment
    from leveret.storage.threads import StorageThreads

    OpenEnd = tuple[list[Segment], LogPlace, int]  # files, place and offset of the end

__all__ = ["LedLogs"]


class LedLogs:
    """Logs below `data`. What is written is told to `events` once in a turn of the loop."""

    def __init__(
        self,
        data: Path,
        files: FileSystem,
        loop: asyncio.AbstractEventLoop,
        threads: StorageThreads,
        events: LogEvents,
    ) -> None:
        self._topics = data / "topics"
        self._files = files
        self._loop = loop
        self._threads = threads
        self._events = events
        self._open: dict[str, PartitionLog] = {}
        self._written: dict[str, LedLog] = {}
        self._in_sync = self._ever_in_sync = 0  # nodes; nothing is known yet
        self._ends_of_refusing: dict[str, LogEnd] = {}  # up to where copies have logs that refuse

    # -- what the store tells

    def opened(self, key: str, log: PartitionLog) -> None:
        """Have a log copied from now on."""
        self._open[key] = log
        log.copy_to(LedLog(self, key, log))
        self.check_in_sync(key, log)

    def deleted(self, key: str) -> None:
        """Note that a log was deleted."""
        self._open.pop(key, None)
        self._written.pop(key, None)
        self._ends_of_refusing.pop(key, None)
        self._events.dropped(key)

    def wrote(self, log: LedLog) -> None:
        """Note that something was written to a log."""
        if not self._written:
            self._loop.call_soon(self._tell_written)
        self._written[log.key] = log

    def _tell_written(self) -> None:
        written, self._written = self._written, {}
        # What is sent below is on its way when the loop comes to this: the disks work together.
        self._loop.call_soon(self._flush_sent, list(written.values()))
        for log in written.values():
            log.tell_end(self._events)

    def _flush_sent(self, logs: list[LedLog]) -> None:
        call_each([log.sent_to_copies for log in logs], self._complain)

    def _complain(self, flush: object, error: Exception) -> None:
        self._loop.call_exception_handler({"message": f"{flush!r} failed", "exception": error})

    @property
    def events(self) -> LogEvents:
        """Whom is told what happens."""
        return self._events

    # -- what replication asks for

    def replicated(self, key: str, place: LogPlace, offset: int) -> None:
        """Tell a log up to where its copies have it (see ports.ReplicatedLog).

        One that refuses is told again once it does not any more, to commit what it has.
        """
        log = self._opened(key)
        if log is None:
            return
        if log.is_refusing:
            self._ends_of_refusing[key] = place, offset
        log.replicated(place, offset)

    def set_in_sync_counts(self, in_sync: int, ever_in_sync: int) -> None:
        """Have logs that need more nodes in sync store nothing (see effects.SetInSyncCounts)."""
        self._in_sync, self._ever_in_sync = in_sync, ever_in_sync
        for key, log in list(self._open.items()):
            self.check_in_sync(key, log)

    @property
    def in_sync_count(self) -> int | None:
        """Number of nodes in sync; None if all are that have been it, so that no log refuses."""
        return self._in_sync if self._in_sync < self._ever_in_sync else None

    def check_in_sync(self, key: str, log: PartitionLog) -> None:
        """Have a log store what comes, unless too few nodes are in sync for it."""
        needed, count = min(log.copies_min, self._ever_in_sync), self._in_sync
        if log.is_closed or log.is_refusing == (needed > count):
            return
        if needed > count:
            log.refuse(NotEnoughCopiesError(f"it needs {needed} nodes in sync, and has {count}"))
            return
        log.refuse(None)
        end = self._ends_of_refusing.pop(key, None)
        if end is not None:
            log.replicated(*end)

    def _opened(self, key: str) -> PartitionLog | None:
        log = self._open.get(key)
        return None if log is None or log.is_closed else log

    async def describe(self) -> Mapping[str, LogFiles]:
        """Return what each log holds that has files. Raises StorageError."""
        opened = [(key, log) for key, log in self._open.items() if not log.is_closed]
        held = [(log, log.hold_files()) for _, log in opened]
        ends = {
            key: (segments, log.place, log.end)
            for (key, log), (_, segments) in zip(opened, held, strict=True)
        }
        try:
            return await self._loop.run_in_executor(
                self._threads.pool, partial(self._describe_all, ends)
            )
        finally:
            for log, segments in held:
                log.release_files(segments)

    def _describe_all(self, ends: dict[str, OpenEnd]) -> dict[str, LogFiles]:
        """Describe the open logs, and those that are not; in a worker thread.

        Raises StorageError.
        """
        keys = dict.fromkeys([*ends, *list_logs(self._files, self._topics)])
        found = [self._describe(key, ends.get(key)) for key in keys]
        return {log.log: log for log in found if log is not None and log.files}

    def _describe(self, key: str, open_end: OpenEnd | None) -> LogFiles | None:
        """Describe a log; None if it was deleted meanwhile. Raises StorageError."""
        directory = self._topics / key
        try:
            if open_end is not None:
                return describe_log(self._files, key, *open_end)
            return find_end(self._files, directory).describe(self._files, key)
        except StorageError:
            if self._files.exists(directory):
                raise
            return None

    def has_last(self, theirs: LogFiles) -> bool:
        """Whether a log has another node's last batch where that has it (see attaching.compare).

        Nothing is to be cut of one that was deleted meanwhile. In a worker thread. Raises
        StorageError.
        """
        log = self._opened(theirs.log)
        directory = self._topics / theirs.log
        try:
            segments = self._list(directory) if log is None else list(log.segments)
            return has_last_batch(self._files, segments, theirs)
        except StorageError:
            if self._files.exists(directory):
                raise
            return True

    def read_raw(self, key: str, place: LogPlace, offset: int, bytes_max: int) -> RawBatches | None:
        """Return raw batches of a log, None if a device must be waited for (ports.ReplicatedLog).

        Raises PlaceGoneError, CorruptBatchError, StorageError.
        """
        log = self._opened(key)
        return None if log is None else log.read_raw(place, offset, bytes_max)

    async def fetch_raw(self, key: str, place: LogPlace, offset: int, bytes_max: int) -> RawBatches:
        """Return raw batches of a log, and wait for the device (ports.ReplicatedLog).

        Raises PlaceGoneError, CorruptBatchError, StorageError.
        """
        log = self._opened(key)
        if log is not None:
            return await log.fetch_raw(place, offset, bytes_max)
        read = partial(self._read_unopened, key, place, offset, bytes_max)
        return await self._loop.run_in_executor(self._threads.pool, read)

    def _read_unopened(self, key: str, place: LogPlace, offset: int, bytes_max: int) -> RawBatches:
        directory = self._topics / key
        try:
            return read_segment(self._files, self._list(directory), place, offset, bytes_max)
        except StorageError:
            if self._files.exists(directory):
                raise
            return RawBatches(bytearray(), place, offset)  # it was deleted meanwhile

    def _list(self, directory: Path) -> list[Segment]:
        """Return the files of a log that is not open. Raises StorageError."""
        try:
            return list_segments(self._files, directory)
        except OSError as error:
            raise storage_error("list", directory, error) from error


class LedLog:
    """`ports.LogSink` of a log."""

    __slots__ = ("_end", "_log", "_logs", "key")

    def __init__(self, logs: LedLogs, key: str, log: PartitionLog) -> None:
        self.key = key
        self._logs = logs
        self._log = log
        self._end = log.place, log.end  # as it was told

    def wrote(self) -> None:
        """Note that something was written (see ports.LogSink)."""
        self._logs.wrote(self)

    def tell_end(self, events: LogEvents) -> None:
        """Tell what was written since the last time."""
        before, self._end = self._end, (self._log.place, self._log.end)
        if before != self._end:
            events.wrote(self.key, before, self._end)

    def sent_to_copies(self) -> None:
        """Have the log flush what was told."""
        self._log.sent_to_copies()

    def removed(self, base: int, revision: int) -> None:
        """Tell of a file that is removed (see ports.LogSink)."""
        self._logs.events.removed(self.key, base, revision)

    def replaced(self, base: int, revision: int, by: int) -> None:
        """Tell of a file that was compacted (see ports.LogSink)."""
        files = (segment.file for segment in self._log.segments)
        following = next(file for file in files if file > (base, by))
        self._logs.events.replaced(self.key, (base, revision), by, LogPlace(*following))

    def requires_copies(self) -> None:
        """Look whether enough nodes are in sync (see ports.LogSink)."""
        self._logs.check_in_sync(self.key, self._log)

    def failed(self, error: StorageError) -> None:
        """Tell that a flush has failed (see ports.LogSink)."""
        self._logs.events.failed(str(error))
