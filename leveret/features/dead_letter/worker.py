"""Discarded messages of a queue, on their way to its dead-letter exchange or topic.

They stay leased until they are stored in their targets, so that a crash duplicates a dead letter
rather than losing it. They are processed in order, one range of the log at a time, so that only one
is in memory. At-least-once messages that cannot be delivered yet are set aside and retried.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.core.logs.window import LogWindow
from leveret.core.queues.discarding import BatchSlice
from leveret.core.settings.discard_reasons import Reason
from leveret.core.settings.queue_settings import DeadLetterStrategy
from leveret.errors import CorruptBatchError, LeveretError, StorageError
from leveret.features.dead_letter.publish import NOWHERE, DeadLetterPublish, Written
from leveret.features.retry.in_place import retry_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from leveret.core.queues.queue import Queue
    from leveret.features.dead_letter.counters import DeadLetterCounters
    from leveret.features.dead_letter.publish import Missing, Ranges
    from leveret.features.retry.retrying import RetryTopics
    from leveret.ports.records import Batch

    Count = Callable[[Iterable[tuple[int, int]]], None]

# Retry interval for at-least-once dead letters that no target accepts.
RETRY_MS = 5_000
# Large messages are processed in portions: each of them is copied to its target, with new headers.
PORTION_BYTES = 1024 * 1024
# Up to this many ranges set aside do not delay others; beyond it, processing pauses.
ASIDE_MAX = 1000


class DeadLetterSink(Protocol):
    """Destination of a queue's discarded messages that need dead letters or retries."""

    def __call__(
        self,
        queue: Queue,
        slices: Sequence[BatchSlice],
        reason: Reason,
        publish: DeadLetterPublish | None = None,
    ) -> Collection[Queue]:
        """Store the records, in order, in their target queues, which are returned.

        The caller settles the records afterwards. A `publish` is told which builders got them (see
        `DeadLetterPublish.deposited`), and queues that already hold them get no second copy.
        """
        ...


class DeadRange(NamedTuple):
    """Dead messages [first, stop), discarded for `reason`.

    The queues of `written` store them already.
    """

    first: int
    stop: int
    reason: Reason
    written: Written = NOWHERE


class DeadLetterWorkers:
    """Makes the dead-letter workers of a node's queues, and has what they share."""

    def __init__(
        self,
        dead_letter: DeadLetterSink,
        counters: DeadLetterCounters,
        retry_topics: RetryTopics | None,
    ) -> None:
        self.dead_letter = dead_letter
        self.counters = counters
        self.retry_topics = retry_topics

    def __call__(self, queue: Queue) -> DeadLetterWorker:
        """Return a worker for a queue."""
        return DeadLetterWorker(queue, self)


class DeadLetterWorker:
    """Dead letters of one queue (see DiscardedMessages), leased to no consumer."""

    def __init__(self, queue: Queue, shared: DeadLetterWorkers) -> None:
        timers = queue.services.timers
        self._queue = queue
        self._dead_letter = shared.dead_letter
        self._counters = shared.counters
        self._retry_topics = shared.retry_topics
        self._window = LogWindow(queue.log)
        self._waiting: deque[DeadRange] = deque()
        self._aside: list[DeadRange] = []  # retried later
        self._told = False  # whether the operator was told that some are set aside
        self._busy = False  # waiting for commits of target queues, or for the next attempt
        self._fetching = False
        self._working = False
        self._room = PORTION_BYTES  # bytes left in this portion
        self._timers = timers
        self._again = timers.timer(self.try_again)
        self._next_portion = timers.timer(self._go_on)

    @property
    def waiting_count(self) -> int:
        """Number of dead letters that no target accepted and that will be retried."""
        return sum(dead.stop - dead.first for dead in self._aside)

    def close(self) -> None:
        """Stop: the queue was deleted, with all its messages."""
        self._again.close()
        self._next_portion.close()

    def add(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:
        """Discard messages; they are settled at once if no dead letter is needed."""
        self._queue.counters.moved = True  # so that the lower message count is sampled
        if not self._queue.settings.keeps(reason) and not self._waiting:
            self._counters.died(self._queue, reason, ranges)
            self._queue.settle(ranges)
            return
        self._waiting.extend(DeadRange(first, stop, reason) for first, stop in ranges)
        self.work()

    def refused(self, batch: Batch) -> None:
        """Dead-letter messages that were never stored, if the settings say so."""
        queue, reason = self._queue, Reason.MAX_LENGTH
        if queue.settings.dead_letters(reason):
            part = BatchSlice(batch, batch.base_offset, batch.stop_offset)
            self._dead_letter(queue, [part], reason)
            self._counters.died(queue, reason, _ranges([part]))

    def work(self) -> None:
        """Process discarded messages until all are done or something must be waited for."""
        if self._working or self._next_portion.due_ms is not None:
            return
        self._working = True
        try:
            while self._waiting and not self._is_occupied and not self._queue.deleted:
                if self._room <= 0:  # other work of the node comes first
                    self._next_portion.set(self._timers.wall_ms())
                    return
                self._work_on()
        finally:
            self._working = False
        if not self._waiting:
            self._window.clear()
            self._room = PORTION_BYTES

    @property
    def _is_occupied(self) -> bool:
        return self._busy or self._fetching

    def _go_on(self) -> None:
        self._next_portion.set(None)
        self._room = PORTION_BYTES
        self.work()

    def _work_on(self) -> None:
        first = self._waiting[0].first
        try:
            batches = self._window.at_hand(first)
        except CorruptBatchError:
            batches = None  # the fetch finds the damage again and handles it
        if batches is None:
            self._fetching = True
            self._queue.services.spawn(self._fetch(first))
        else:
            self._publish(batches)

    async def _fetch(self, offset: int) -> None:
        try:
            lost = not await self._queue.reader.fill(self._window, offset, leased=True)
        except StorageError as error:
            self._queue.reader.errors.report(error)
            self._busy = True
            self._try_later()
            return
        finally:
            self._fetching = False
        if lost and self._waiting and self._waiting[0].first == offset:
            dead = self._waiting.popleft()
            if dead.first + 1 < dead.stop:
                self._waiting.appendleft(dead._replace(first=dead.first + 1))
        self.work()

    def _try_later(self) -> None:
        if self._again.due_ms is None:
            self._again.set(self._timers.wall_ms() + RETRY_MS)

    def try_again(self) -> None:
        """Retry messages set aside: the interval is over, or a target accepts them now."""
        self._again.set(None)
        self._waiting.extendleft(reversed(self._aside))
        self._aside = []
        self._busy = False
        self.work()

    def _publish(self, batches: list[Batch]) -> None:
        """Dead-letter the leading messages of the same kind, as far as they are in memory."""
        queue = self._queue
        kind = self._waiting[0]
        slices = self._take(batches, kind)
        if queue.settings.retries(kind.reason):
            slices = self._retry(slices, kind.reason)
        ranges = _ranges(slices)
        if not ranges:
            return
        if not kind.reason.is_death and not queue.settings.retries(kind.reason):
            queue.return_(ranges)  # its retries were disabled meanwhile
            return
        reason = kind.reason.when_exhausted
        if not queue.settings.dead_letters(reason):
            self._counters.died(queue, reason, ranges)
            queue.settle(ranges)
            return
        if queue.settings.dead_letter_strategy is DeadLetterStrategy.AT_MOST_ONCE:
            self._dead_letter(queue, slices, reason)
            self._counters.died(queue, reason, ranges)
            queue.settle(ranges)
            return
        publish = DeadLetterPublish(ranges, kind.written)
        self._dead_letter(queue, slices, reason, publish)
        self._await(publish, kind.reason, partial(self._counters.died, queue, reason))

    def _retry(self, slices: list[BatchSlice], reason: Reason) -> list[BatchSlice]:
        """Have retryable records wait, in the retry topic or in place; return the exhausted."""
        assert self._retry_topics is not None, "a broker's queues can retry"
        if self._queue.retries_in_place:
            chance = self._retry_topics.chance
            ranges, exhausted = retry_in_place(self._queue, slices, reason, chance)
            self._counters.retried(reason, ranges)
            return exhausted
        try:
            topic = self._retry_topics.of(self._queue)
        except StorageError as error:
            self._queue.reader.errors.report(error)
            self._aside += [DeadRange(*each, reason) for each in _ranges(slices)]
            self._try_later()
            return []
        retried, exhausted = topic.take(slices, reason)
        if retried:
            publish = DeadLetterPublish(retried)
            publish.deposited({topic.builder: retried}, ())
            self._await(publish, reason, partial(self._counters.retried, reason))
        return exhausted

    def _await(self, publish: DeadLetterPublish, reason: Reason, count: Count) -> None:
        """Settle and count records once their targets have committed them."""
        self._busy = True
        publish.begin(partial(self._published, reason, count), self._held_up)

    def _held_up(self) -> None:
        """Go on with others: nobody knows when a target has copies again of what it holds."""
        self._busy = self._holds_too_much
        self.work()

    @property
    def _holds_too_much(self) -> bool:
        return len(self._aside) >= ASIDE_MAX

    def _take(self, batches: list[Batch], kind: DeadRange) -> list[BatchSlice]:
        """Take the leading messages of the same kind in memory, up to the portion's size."""
        slices: list[BatchSlice] = []
        for batch in batches:
            record_bytes = batch.size // batch.count + 1
            while self._room > 0 and self._waiting and self._waiting[0][2:] == kind[2:]:
                first, stop = self._waiting[0][:2]
                if not batch.base_offset <= first < batch.stop_offset:
                    break
                dead = self._waiting.popleft()
                taken = min(stop, batch.stop_offset, first + self._room // record_bytes + 1)
                if taken < stop:
                    self._waiting.appendleft(dead._replace(first=taken))
                self._room -= (taken - first) * record_bytes
                slices.append(BatchSlice(batch, first, taken))
        return slices

    def _published(
        self, reason: Reason, count: Count, held_by_all: Ranges, missing: list[Missing]
    ) -> None:
        """Settle what all targets hold, and set the rest aside."""
        if held_by_all:
            count(held_by_all)
            self._queue.settle(held_by_all)
        if missing:
            self._aside += [
                DeadRange(first, stop, reason, written) for first, stop, written in missing
            ]
            self._try_later()
            self._tell()
        elif not self._aside:
            self._told = False
        self._busy = self._holds_too_much
        self.work()

    def _tell(self) -> None:
        """Report once that dead letters are waiting, and why."""
        if self._told or self._queue.deleted:
            return
        self._told = True
        text = (
            f"{self.waiting_count} dead letters wait: a queue that should take them is full, "
            "paused or missing; they stay unacknowledged, and are tried again every "
            f"{RETRY_MS // 1000} s"
        )
        self._queue.services.report(self._queue, LeveretError(text))


def _ranges(slices: Sequence[BatchSlice]) -> list[tuple[int, int]]:
    return [(part.first, part.stop) for part in slices]
