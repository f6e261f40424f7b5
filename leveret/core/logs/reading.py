"""How a queue reads its log: at once where the bytes are at hand, else from the device.

What can be read no more is given up for lost and said once; all else near it can still be had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.data_loss import loss_error
from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.window import LogWindow, ScatteredWindow, batch_of
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.callbacks import do_nothing
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.queues.queue import Queue
    from leveret.ports.records import Batch


class QueueReader:
    """Reads for one queue. `fetched` is called when what `read` had to ask for has come."""

    __slots__ = (
        "_fetched",
        "_last",
        "_log",
        "_queue",
        "_spawn",
        "_window",
        "errors",
        "fetching",
        "head",
    )

    def __init__(self, queue: Queue, fetched: Callable[[], None]) -> None:
        self._queue: Queue | None = queue  # until it is gone
        self._log = queue.log
        self._spawn = queue.services.spawn
        self._fetched = fetched
        # Groups take turns, and their messages may lie far from each other.
        scattered = queue.settings.group_ordering
        self._window = ScatteredWindow(queue.log) if scattered else LogWindow(queue.log)
        self.errors = ErrorThrottle(queue, queue.services.report)
        self.fetching = False
        self._last: Batch | None = None  # whose records are asked for one by one
        self.head: tuple[int, int | None] | None = None  # see core.queues.head

    def read(self, offset: int) -> list[Batch] | None:
        """Batches of which one holds `offset`; None after asking for it where it is not at hand."""
        if self.fetching:
            return None
        try:
            batches = self._window.at_hand(offset)
        except StorageError:
            batches = None  # whoever fetches meets it again, and deals with it
        if batches is None:
            self.fetching = True
            self._spawn(self._fetch(offset))
        return batches

    async def _fetch(self, offset: int) -> None:
        try:
            await self.fill(self._window, offset)
        except StorageError as error:
            self.errors.report(error)
            return
        finally:
            self.fetching = False
        self._fetched()

    def batch_at_hand(self, offset: int) -> Batch | None:
        """The batch that holds `offset` if it can be had without waiting."""
        last = self._last
        if last is not None and last.base_offset <= offset < last.stop_offset:
            return last
        try:
            batches = self._window.at_hand(offset)
        except CorruptBatchError:
            return None  # dealing with damage takes waiting
        self._last = None if batches is None else batch_of(batches, offset)
        return self._last

    def in_memory(self, offset: int) -> Batch | None:
        """The batch that holds `offset`, if it is in memory: no file is asked."""
        if self._window.holds(offset):
            batches = self._window.at_hand(offset)
            assert batches is not None, "a window has what it holds"
            return batch_of(batches, offset)
        return self._log.peek(offset)

    @property
    def held_bytes(self) -> int:
        """Memory of what it has read and the log has not in memory as well."""
        peek = self._log.peek
        batches = self._window.held
        return sum(batch.size for batch in batches if peek(batch.base_offset) is not batch)

    async def leased_batch(self, offset: int) -> Batch | None:
        """The batch that holds a leased record, wherever it lies; None: the record is lost."""
        batch = self.batch_at_hand(offset)
        if batch is None and await self.fill(self._window, offset, leased=True):
            batch = self.batch_at_hand(offset)
        return batch

    async def fill(self, window: LogWindow, offset: int, *, leased: bool = False) -> bool:
        """Read from `offset` on; False where it is lost: nobody shall ask for it any more.

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
        """Give up what can be read no more, and say so. Returns whether `offset` is gone by that.

        What others hold leases on stays theirs: it was delivered.
        """
        damage = await self._log.set_aside(offset)
        queue = self._queue
        if queue is None:
            return True
        lost = RangeSet(queue.machine.lose(damage.lost))
        if leased and offset in damage.lost:
            queue.machine.settle([(offset, offset + 1)])
            lost.add(offset, offset + 1)
        queue.log.settle(list(lost))
        if lost or damage.kept:
            self.errors.report(loss_error(lost, damage.kept))
        return offset in damage.lost or offset in queue.log.settled

    def clear(self) -> None:
        """Keep nothing in memory."""
        self._last = None
        self._window.clear()

    def close(self) -> None:
        """The queue is gone: keep nothing, and tell nobody of anything any more."""
        self.clear()
        self.errors.close()
        self._queue, self._fetched = None, do_nothing
