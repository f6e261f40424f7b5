"""One lease in the making: a consumer of the queue that takes offsets up to a limit.

It stands in the queue's line like any other consumer, and takes a bounded number of messages in a
turn of the event loop: between two turns others settle what they have, and get more. What it is
sent it does not copy; it notes the offsets, since the records are read later, from the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.core.queues.queue import Queue
from leveret.core.queues.sending import send_each
from leveret.features.batch_leases.rules import RANGES_MAX
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.sending import Runs
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.features.batch_leases.rules import LeaseWish, PartRanges
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

__all__ = ["LeaseConsumer", "Leasing", "queue_parts"]

# Taken in one turn: a turn of others waits for it some hundred microseconds at most.
TURN_MESSAGES_MAX: Final = 1_000
LOOK_MS: Final = 20  # interval of checks whether more comes
# What is ready but neither offered nor refused, as while the disk is read, is waited for this long.
PATIENCE_MS: Final = 1_000
# A lease that has messages is not filled for longer: its job could be at work.
FILL_MS_MAX: Final = 5_000


def queue_parts(queue: DeclaredQueue) -> list[Queue]:
    """Return the partitions of a queue that is no stream."""
    return [part for part in queue.partitions if isinstance(part, Queue)]


class LeaseConsumer:
    """A holder as its queue sees it: a consumer that has capacity while a lease is made.

    `part` is the only partition, None for the consumer of a partitioned queue, which has a share of
    itself in each that this node leads. `gone()` is called when the queue is deleted, and
    `left(number)` when a partition is led by another node from now on.
    """

    priority = 0
    no_ack = False

    def __init__(
        self, gone: Callable[[], None], left: Callable[[int], None], part: Queue | None
    ) -> None:
        self.arguments: Arguments = {}
        self.in_flight = 0
        self.leasing: Leasing | None = None
        self._gone = gone
        self._left = left
        self._part = part
        self._whole: LeaseConsumer = self
        self._shares: dict[int, LeaseConsumer] = {} if part is None else {part.number: self}

    def share(self, partition: Any) -> LeaseConsumer | None:
        """Return the part of this consumer that a partition serves: none that is led elsewhere."""
        if not isinstance(partition, Queue):
            if self._shares.pop(partition.number, None) is not None:
                self._left(partition.number)
            return None
        share = LeaseConsumer(self._gone, self._left, partition)
        share._whole = self
        self._shares[partition.number] = share
        return share

    def share_of(self, partition: int) -> LeaseConsumer | None:
        """Return the part of this consumer in a partition, None if it has none."""
        return self._shares.get(partition)

    def capacity(self) -> int:
        """Return how many more messages it may take now."""
        leasing = self._whole.leasing
        return 0 if leasing is None else leasing.capacity

    credit = capacity

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:  # noqa: ARG002
        """Take the records [first, stop). Returns the offset reached."""
        leasing, part = self._whole.leasing, self._part
        assert leasing is not None, "it had capacity"
        assert part is not None, "partitions are served"
        before = leasing.count
        reached = leasing.take(part.number, batches, first, stop)
        self.in_flight += leasing.count - before
        return reached

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Take the records of several runs. Returns the offset reached."""
        return send_each(self.send, batches, runs, redelivered=redelivered)

    def queue_gone(self) -> None:
        """Note that the queue was deleted."""
        self._gone()


class Leasing:
    """Takes what the queue offers until it has enough, or nothing more comes.

    `done()` is called once, unless it is closed before.
    """

    def __init__(
        self,
        wish: LeaseWish,
        queue: DeclaredQueue,
        consumer: LeaseConsumer,
        *,
        turn: Turn,
        timers: Timers,
        done: Callable[[], None],
    ) -> None:
        self.parts: PartRanges = {}
        self.count = 0
        self.size = 0
        self.touched = False  # by the turn, as a sender
        self._wish = wish
        self._queue = queue
        self._consumer = consumer
        self._turn = turn
        self._timers = timers
        self._timer = timers.timer(self._look)
        self._done = done
        self._is_open = True
        self._is_full = False
        self._of_turn = TURN_MESSAGES_MAX  # that it may still take in this turn
        self._seen = 0  # count at the last look
        self._moved_ms = self._began_ms = timers.wall_ms()

    def begin(self) -> None:
        """Take part from the next turn on."""
        self._consumer.leasing = self
        self._queue.used()
        self._queue.wake(self._consumer)
        self._turn.touch_sender(self)

    @property
    def capacity(self) -> int:
        """Number of messages that it may take now."""
        if self._is_full or not self._is_open:
            return 0
        return min(self._wish.messages_max - self.count, self._of_turn)

    def take(self, partition: int, batches: Sequence[Batch], first: int, stop: int) -> int:
        """Note records, within the limits, but at least one. Returns the offset reached."""
        self._turn.touch_sender(self)
        for batch in batches:
            begin, end = max(first, batch.base_offset), min(stop, batch.stop_offset)
            if begin < end:
                reached = self._take_of(partition, batch, begin, end)
                if reached < end:
                    return reached
        return min(stop, batches[-1].stop_offset)

    def _take_of(self, partition: int, batch: Batch, first: int, stop: int) -> int:
        """Note records of one batch. Their size is reckoned by the average of the batch."""
        if self._is_full:
            return first
        each = max(batch.size // batch.count, 1)
        room = (self._wish.bytes_max - self.size) // each
        if room < stop - first:
            self._is_full = True
            stop = first + max(room, 0 if self.count else 1)
        if first == stop:
            return first
        ranges = self.parts.setdefault(partition, RangeSet())
        ranges.add(first, stop)
        taken = stop - first
        self.count += taken
        self.size += taken * each
        self._of_turn -= taken
        if self.count >= self._wish.messages_max or self._range_count >= RANGES_MAX:
            self._is_full = True
        return stop

    @property
    def _range_count(self) -> int:
        return sum(map(len, self.parts.values()))

    def send_pending(self) -> None:
        """Look at what the turn has brought, and go on in the next one (see turn.Sender)."""
        if not self._is_open:
            return
        was_served = self._of_turn <= 0
        self._of_turn = TURN_MESSAGES_MAX
        self._look()
        if self._is_open and was_served:
            self._queue.wake(self._consumer)

    def _look(self) -> None:
        """Finish if there is enough, or nothing to wait for."""
        now_ms = self._timers.wall_ms()
        if self.count != self._seen:
            self._seen, self._moved_ms = self.count, now_ms
        if self._is_full or self._is_over(now_ms):
            self.close()
            self._done()
        else:
            self._timer.set(now_ms + LOOK_MS)

    def _is_over(self, now_ms: int) -> bool:
        """Whether it is not worth waiting for more."""
        parts = queue_parts(self._queue)
        if not self.count:
            if now_ms < self._began_ms + self._wish.wait_ms:
                return False
        elif now_ms >= self._began_ms + self._wish.wait_ms + FILL_MS_MAX or not any(
            part.state.ready_count or part.reader.fetching for part in parts
        ):
            return True
        if now_ms < self._moved_ms + LOOK_MS and any(part.state.ready_count for part in parts):
            return False
        may_come = any(self._may_be_offered(part) for part in parts)
        return not may_come or now_ms >= self._moved_ms + PATIENCE_MS

    def _may_be_offered(self, part: Queue) -> bool:
        """Whether a partition may still offer some of its messages without outside events."""
        share = self._consumer.share_of(part.number)
        return share is not None and part.may_offer(share)

    def close(self) -> None:
        """Take no more. What was taken stays leased."""
        self._is_open = False
        self._timer.close()
        self._consumer.leasing = None
