"""Messages that a queue gives up, on their way to its dead-letter exchange.

They stay leased until they are deposited where they go, so that a crash repeats a dead letter
rather than losing it. They go in order, a stretch of the log at a time: however many there are, one
stretch is in memory.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.core.settings import DeadLetterStrategy
from leveret.core.window import LogWindow
from leveret.errors import CorruptBatchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leveret.core.queue import Queue
    from leveret.core.timers import Timers
    from leveret.ports.records import Batch

# Dead letters that must arrive and found nobody who takes them are tried again after so long.
RETRY_MS = 5_000


class Reason(StrEnum):
    """Why a queue gives a message up."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_LENGTH = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class Window(NamedTuple):
    """The records [first, stop) of a batch."""

    batch: Batch
    first: int
    stop: int


class DeadLetter(Protocol):
    """Where a queue sends what it gives up, if its settings name an exchange."""

    def __call__(
        self, queue: Queue, windows: Sequence[Window], reason: Reason
    ) -> Collection[Queue]:
        """Deposit the records, in their order, with the queues they are for; returns those.

        The caller settles the records afterwards: at once, or with the strategy at-least-once when
        all of these queues have committed what was deposited.
        """
        ...


def drop(queue: Queue, windows: Sequence[Window], reason: Reason) -> Collection[Queue]:  # noqa: ARG001
    """Let dead letters vanish."""
    return ()


class Discards:
    """What one queue gives up. All of it is leased, and belongs to no consumer any more."""

    def __init__(self, queue: Queue, dead_letter: DeadLetter, timers: Timers) -> None:
        self._queue = queue
        self._dead_letter = dead_letter
        self._window = LogWindow(queue.log)
        self._waiting: deque[tuple[int, int, Reason]] = deque()
        self._busy = False  # reading, or waiting for the targets' commits
        self._timers = timers
        self._retry = timers.timer(self._try_again)

    def add(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:
        """Give these up: at once if there is nothing to be told of them."""
        if not ranges:
            return
        if self._queue.settings.dead_letter_exchange is None and not self._waiting:
            self._queue.settle(ranges)
            return
        self._waiting.extend((first, stop, reason) for first, stop in ranges)
        self.work()

    def work(self) -> None:
        """Go on until all is done or something must be waited for."""
        while self._waiting and not self._busy and not self._queue.deleted:
            first = self._waiting[0][0]
            try:
                batches = self._window.at_hand(first)
            except CorruptBatchError:
                batches = None  # whoever fetches meets it again, and deals with it
            if batches is None:
                self._busy = True
                self._queue.services.spawn(self._fetch(first))
            else:
                self._bury(batches)
        if not self._waiting:
            self._window.clear()

    async def _fetch(self, offset: int) -> None:
        try:
            lost = not await self._queue.reader.fill(self._window, offset, leased=True)
        except StorageError as error:
            self._queue.reader.complain(error)
            self._retry.set(self._timers.wall_ms() + RETRY_MS)
            return
        self._busy = False
        if lost and self._waiting:
            first, stop, reason = self._waiting.popleft()
            if first + 1 < stop:
                self._waiting.appendleft((first + 1, stop, reason))
        self.work()

    def _try_again(self) -> None:
        self._busy = False
        self.work()

    def _bury(self, batches: list[Batch]) -> None:
        """Deposit what waits for one reason, as far as it is at hand."""
        queue = self._queue
        reason = self._waiting[0][2]
        windows = self._take(batches, reason)
        ranges = [(window.first, window.stop) for window in windows]
        if queue.settings.dead_letter_exchange is None:
            queue.settle(ranges)
            return
        targets = self._dead_letter(queue, windows, reason)
        if queue.settings.dead_letter_strategy is DeadLetterStrategy.AT_MOST_ONCE:
            queue.settle(ranges)
            return
        self._busy = True
        burial = Burial(self, ranges, reason, len(targets))
        for target in targets:
            target.await_commit(burial)
        if not targets:
            self.buried(ranges, reason, failed=True)

    def _take(self, batches: list[Batch], reason: Reason) -> list[Window]:
        windows: list[Window] = []
        for batch in batches:
            while self._waiting and self._waiting[0][2] is reason:
                first, stop, _ = self._waiting[0]
                if not batch.base_offset <= first < batch.stop_offset:
                    break
                self._waiting.popleft()
                if stop > batch.stop_offset:
                    self._waiting.appendleft((batch.stop_offset, stop, reason))
                    stop = batch.stop_offset
                windows.append(Window(batch, first, stop))
        return windows

    def buried(self, ranges: list[tuple[int, int]], reason: Reason, *, failed: bool) -> None:
        """The targets have said whether they hold what was deposited."""
        if failed:  # stays busy until it is time to try again
            self._waiting.extendleft((first, stop, reason) for first, stop in reversed(ranges))
            self._retry.set(self._timers.wall_ms() + RETRY_MS)
            return
        self._busy = False
        self._queue.settle(ranges)
        self.work()


class Burial:
    """Waits until every target has committed what was deposited."""

    def __init__(
        self, discards: Discards, ranges: list[tuple[int, int]], reason: Reason, pending: int
    ) -> None:
        self._discards = discards
        self._ranges = ranges
        self._reason = reason
        self._pending = pending
        self._failed = False

    def done(self, *, failed: bool) -> None:
        """One target has committed, or could not."""
        self._failed |= failed
        self._pending -= 1
        if not self._pending:
            self._discards.buried(self._ranges, self._reason, failed=self._failed)
