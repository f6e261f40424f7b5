"""Reading of a queue's log: from memory where possible, else from the device.

Records that can no longer be read are quarantined and reported once; all others stay readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.log_scan import quarantine
from leveret.core.logs.window import LogWindow, ScatteredWindow, WindowReader, batch_of
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.callbacks import do_nothing
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.logs.log_writer import LogWriter
    from leveret.core.queues.services import QueueServices
    from leveret.ports.records import Batch


class QueueReader(WindowReader):
    """Log reader of one queue.

    `fetched` is called when a read started by `read` has completed. `scattered`: what is read in a
    row may be far apart in the log.
    """

    __slots__ = (
        "_fetched",
        "_log",
        "_queue",
        "_spawn",
        "errors",
        "head",
    )

    def __init__(
        self,
        queue: LogWriter,
        services: QueueServices,
        fetched: Callable[[], None],
        *,
        scattered: bool,
    ) -> None:
        self._queue: LogWriter | None = queue  # until it is deleted
        self._log = queue.log
        self._spawn = services.spawn
        self._fetched = fetched
        self._window = ScatteredWindow(queue.log) if scattered else LogWindow(queue.log)
        self.errors = ErrorThrottle(queue, services.report)
        self.fetching = False
        self._last = None
        self.head: tuple[int, int | None] | None = None  # see core.queues.head_timestamp

    async def _fetch(self, offset: int) -> None:
        try:
            await self.fill(self._window, offset)
        except StorageError as error:
            self.errors.report(error)
            return
        finally:
            self.fetching = False
        self._fetched()

    def in_memory(self, offset: int) -> Batch | None:
        """Return the batch with `offset` if it is in memory, else None; reads no file."""
        if self._window.holds(offset):
            batches = self._window.at_hand(offset)
            assert batches is not None, "a window has what it holds"
            return batch_of(batches, offset)
        return self._log.peek(offset)

    @property
    def held_bytes(self) -> int:
        """Memory of read batches that the log's cache does not hold as well, in bytes."""
        peek = self._log.peek
        batches = self._window.held
        return sum(batch.size for batch in batches if peek(batch.base_offset) is not batch)

    async def leased_batch(self, offset: int) -> Batch | None:
        """Return the batch with a leased record, waiting if needed; None if the record is lost."""
        batch = self.batch_at_hand(offset)
        if batch is None and await self.fill(self._window, offset, leased=True):
            batch = self.batch_at_hand(offset)
        return batch

    async def fill(self, window: LogWindow, offset: int, *, leased: bool = False) -> bool:
        """Read from `offset` on. Returns False if it is lost and must not be read again.

        Raises StorageError.
        """
        try:
            await window.fill(offset)
        except CorruptBatchError:
            if await self._set_aside(offset, leased=leased):
                return False
            await window.fill(offset)
        self.errors.end()
        return True

    async def _set_aside(self, offset: int, *, leased: bool) -> bool:
        """Quarantine unreadable records and report them. Returns whether `offset` is gone.

        Records leased by others stay theirs: they were delivered.
        """
        unreadable = await quarantine(
            self._log, offset, self.errors.report, lambda ranges: self._lose(ranges, offset, leased)
        )
        return self._queue is None or offset in unreadable or offset in self._log.settled

    def _lose(self, ranges: RangeSet, offset: int, leased: bool) -> RangeSet:
        """Drop ready records, and `offset` if it is `leased` by the caller. Returns all of them."""
        queue = self._queue
        if queue is None:
            return RangeSet()
        lost = queue.lose(ranges)
        if leased and offset in ranges:
            queue.settle([(offset, offset + 1)])
            lost.add(offset, offset + 1)
        return lost

    def close(self) -> None:
        """Drop everything and stop reporting: the queue was deleted."""
        self.clear()
        self.errors.close()
        self._queue, self._fetched = None, do_nothing
