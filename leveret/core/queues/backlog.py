"""Recovery of in-memory indexes for messages that an earlier run left in a queue.

The log knows which offsets are unsettled. The priority, group and expiration of a message are only
in its record: the backlog is read once, a window at a time, in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.log_writer import tell_each
from leveret.core.logs.window import LogWindow
from leveret.errors import StorageError

if TYPE_CHECKING:
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.queue import Queue


class Backlog:
    """Backlog of one queue, and the waiters for its recovery."""

    __slots__ = ("_queue", "_readings", "_waiters")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._readings = 0  # running or queued
        self._waiters: list[Waiter] = []

    @property
    def is_being_read(self) -> bool:
        """Whether the backlog is being read or about to be."""
        return self._readings > 0

    def read(self) -> None:
        """Schedule reading the unsettled records: at start, or if more must be known of them."""
        self._readings += 1
        self._queue.services.read_backlog(self._learn)

    def await_learned(self, waiter: Waiter) -> None:
        """Pass `waiter` to the queue's `await_commit` once the backlog is read."""
        self._waiters.append(waiter)

    def let_go(self) -> None:
        """Confirm all waiters: the queue was deleted."""
        waiters, self._waiters = self._waiters, []
        tell_each(waiters, self._queue.services.report, failed=False)

    async def _learn(self) -> None:
        queue = self._queue
        await queue.recover_extensions()
        await learn_backlog(queue, show=queue.is_learning)
        self._readings -= 1
        if queue.deleted:
            return
        queue.backlog_learned()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            queue.await_commit(waiter)
        queue.touch()


async def learn_backlog(queue: Queue, *, show: bool) -> None:
    """Read every committed, unsettled record and index it in `queue`.

    With `show`, what was read becomes ready, as nothing of it was before. Unreadable records are
    skipped; deliveries handle the damage.
    """
    window = LogWindow(queue.log)
    stop = queue.log.committed
    offset = queue.log.settled.gaps(0, stop).first
    while offset is not None and not queue.deleted:
        try:
            batches = await window.fill(offset)
        except StorageError:
            break
        for batch in batches:
            if batch.base_offset < stop:
                queue.learn(batch, settled=queue.log.settled)
        offset = min(batches[-1].stop_offset, stop)
        if show:
            queue.state.commit(offset)
        offset = queue.log.settled.gaps(offset, stop).first
    if show and not queue.deleted:
        queue.state.commit(stop)
