"""Recovery of in-memory state from the log that an earlier run has left to a queue.

The log knows which offsets are unsettled. The priority, group and expiration of a message are only
in its record: the log is scanned once for the queue and all of its extensions, in the background.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leveret.core.logs.log_restore import RETRY_MS
from leveret.core.logs.log_scan import LogScan
from leveret.errors import StorageError
from leveret.ports.after_all import tell_each
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.queue import Queue
    from leveret.ports.records import Batch


class BacklogReading:
    """One reading of a backlog, which goes on where it was after an error of the storage."""

    __slots__ = ("scan", "scans", "stop")

    def __init__(self) -> None:
        self.stop = -1  # committed offset when it began; negative before
        self.scans: Iterator[LogScan] | None = None  # None until the extensions have recovered
        self.scan: LogScan | None = None


class Backlog:
    """Backlog of one queue, and the waiters for its recovery.

    A log that cannot be read is tried again later (decision 0047): without the rest of it, messages
    would be delivered in the wrong order, or twice.
    """

    __slots__ = ("_lost", "_queue", "_readings", "_waiters")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._readings = 0  # running or queued
        self._waiters: list[Waiter] = []
        self._lost = RangeSet()  # unreadable, and perhaps not committed in the queue's state yet

    @property
    def is_being_read(self) -> bool:
        """Whether the backlog is being read or about to be."""
        return self._readings > 0

    def read(self) -> None:
        """Schedule reading the unsettled records: at start, or if more must be known of them."""
        self._readings += 1
        self._begin(BacklogReading())

    def _begin(self, reading: BacklogReading) -> None:
        """Begin a reading, or go on with it."""
        work = partial(self._restore, reading)
        if self._queue.held:  # publishers wait
            self._queue.services.spawn(work())
        else:
            self._queue.services.read_backlog(work)

    def await_restored(self, waiter: Waiter) -> None:
        """Pass `waiter` to the queue's `await_commit` once the backlog is read."""
        self._waiters.append(waiter)

    def close(self) -> None:
        """Confirm all waiters: the queue was deleted."""
        waiters, self._waiters = self._waiters, []
        tell_each(waiters, self._queue.services.report, failed=False)

    async def _restore(self, reading: BacklogReading) -> None:
        queue = self._queue
        if reading.stop < 0:
            reading.stop = queue.log.committed
        try:
            await self._read_all(reading)
        except StorageError as error:
            if not queue.deleted:
                queue.reader.errors.report(error)
                queue.services.timers.after(RETRY_MS, partial(self._begin, reading))
                return
        self._readings -= 1
        if queue.deleted:
            return
        queue.state.commit(max(queue.state.committed, reading.stop))
        queue.state.lose(self._lost)
        self._lost.clear()
        queue.backlog_restored()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            queue.await_commit(waiter)
        queue.touch()

    async def _read_all(self, reading: BacklogReading) -> None:
        """Let the extensions recover, then index the log."""
        if reading.scans is None:
            all_from = await self._queue.recover_extensions()
            reading.scans = self._scans(reading.stop, all_from)
            reading.scan = next(reading.scans)
        while reading.scan is not None:
            await self._read(reading.scan)
            reading.scan = next(reading.scans, None)

    def _scans(self, stop: int, all_from: int | None) -> Iterator[LogScan]:
        """Yield the scans to be made; `all_from`: see OpenQueue.recover_extensions.

        Publishers wait only for what is behind that, unless everything must be known in order.
        """
        queue = self._queue
        log, report = queue.log, queue.reader.errors.report
        if all_from is not None and not queue.is_restoring:
            yield LogScan(log, report, self._lose, first=all_from, stop=stop, all_from=all_from)
            queue.log_scanned()
            stop, all_from = all_from, None
        yield LogScan(log, report, self._lose, stop=stop, all_from=all_from)

    async def _read(self, scan: LogScan) -> None:
        """Index what a scan reads; in a queue that is restoring, it becomes ready behind that."""
        queue, first = self._queue, scan.offset
        settled = queue.log.settled
        while not queue.deleted and (batches := await scan.read()):
            for batch in batches:
                if scan.all_from is None:
                    queue.index(batch, settled=settled)
                else:
                    self._index_any(batch, first)
            if queue.is_restoring:  # what needs no order is ready already
                queue.state.commit(max(queue.state.committed, scan.offset))

    def _index_any(self, batch: Batch, first: int) -> None:
        """Index a batch that may be settled, or begin before `first`: the next scan reads it."""
        queue, settled = self._queue, self._queue.log.settled
        queue.scanned(batch)
        if batch.base_offset >= first and settled.gaps(batch.base_offset, batch.stop_offset):
            queue.index(batch, settled=settled)

    def _lose(self, lost: RangeSet) -> RangeSet:
        """Drop unreadable records; what was delivered before stays with its consumers."""
        gone = self._queue.lose(lost, unseen=True)
        self._lost.add_all(list(gone))
        return gone
