"""Which consumer gets which offsets next: one queue as a pure object.

The shell tells it what happened (the log committed more, something was settled or returned, a
consumer came or went) and asks for offers until there are none:

    while (offer := machine.offer()) is not None:
        stop = send(offer)                  # as much of it as could be sent
        machine.deliver(offer, stop)
        if stop < offer.stop: ...           # bytes not at hand: go on when they are

It knows offsets only, never bytes, and its cost is per range. What is ready or leased stands in
the ledger; who is next stands here: consumers of one priority wait in a line, whoever was served
longest ago in front.

What comes later fits beside this, mostly in the ledger: delivery counts as a sparse dictionary of
the offsets that were returned; message priorities as one set of ready offsets with its own
`redelivered_stop` for each priority, `peek` looking into the highest that has any; expiry as a heap
of (deadline, offset) whose due offsets are taken out of the ready ones wherever they stand;
drop-head as a lease of the lowest ready ranges that is settled at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.core.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.ports.ranges import RangeSet

# A backlog of at most this many offsets for each consumer is dealt one by one, so that slow and
# fast consumers share it as they would in RabbitMQ.
DEAL_SINGLY_MAX = 16
# A larger backlog is dealt in chunks of at most this many offsets: long enough that ranges cost
# nothing per message, short enough that no consumer waits long for its turn.
CHUNK_OFFSETS_MAX = 256
# A chunk is this part of one consumer's even share, so that the chunks shrink as the backlog does.
SHARE_PARTS = 4


class Consumer(Protocol):
    """Who can be delivered to. Told apart by identity; `priority` does not change."""

    @property
    def priority(self) -> int:
        """Higher ones are served first."""
        ...

    def capacity(self) -> int:
        """How many more deliveries it may take right now; 0 while it is blocked."""
        ...


class Deliver(NamedTuple):
    """Send the offsets [first, stop) to `consumer`; all of them are redelivered or none is."""

    consumer: Consumer
    first: int
    stop: int
    redelivered: bool


class QueueMachine:
    """The ready and leased offsets of one queue, and the consumers who share them.

    Ready at first: [first, committed) without `settled`. Offsets below `redelivered_stop` may have
    been delivered by an earlier run and are offered as redelivered. With `single_active` only one
    consumer is served until it is removed; then the next in line is.
    """

    __slots__ = ("_active", "_exclusive", "_ledger", "_lines", "_single_active")

    def __init__(
        self,
        first: int,
        committed: int,
        settled: RangeSet,
        redelivered_stop: int = 0,
        *,
        single_active: bool = False,
    ) -> None:
        self._ledger = Ledger(first, committed, settled, redelivered_stop)
        self._lines: list[deque[Consumer]] = []  # highest priority first; none is empty
        self._single_active = single_active
        self._active: Consumer | None = None  # the one served, where only one is
        self._exclusive = False  # whether the consumers are one that wants to be alone

    @property
    def ready_count(self) -> int:
        """Offsets that wait to be delivered."""
        return self._ledger.ready_count

    @property
    def leased_count(self) -> int:
        """Offsets delivered and neither settled nor returned."""
        return self._ledger.leased_count

    @property
    def redelivered_stop(self) -> int:
        """Offsets below it may have been delivered before."""
        return self._ledger.redelivered_stop

    @property
    def consumer_count(self) -> int:
        """Consumers, whether or not they can take anything."""
        return sum(map(len, self._lines))

    @property
    def consumers(self) -> list[Consumer]:
        """All consumers in the order in which they are served next."""
        return [consumer for line in self._lines for consumer in line]

    def offer(self) -> Deliver | None:
        """Propose the lowest ready offsets to the consumer whose turn it is, or None.

        Of the consumers that have capacity, the highest priority is served, and within it whoever
        was served longest ago. Changes nothing: answer with `deliver` before anything else is
        called, or drop it.
        """
        ready_count = self._ledger.ready_count
        if ready_count == 0:
            return None
        if self._single_active:
            return self._offer_to_active()
        for line in self._lines:
            for consumer in line:
                capacity = consumer.capacity()
                if capacity > 0:
                    limit = _chunk(line, consumer, capacity, ready_count)
                    return Deliver(consumer, *self._ledger.peek(limit))
        return None

    def _offer_to_active(self) -> Deliver | None:
        capacity = self._active.capacity() if self._active is not None else 0
        if self._active is None or capacity <= 0:
            return None
        return Deliver(self._active, *self._ledger.peek(capacity))

    def deliver(self, offer: Deliver, stop: int) -> None:
        """Lease [offer.first, stop), which was sent; the rest of the offer stays ready.

        The turn passes on unless nothing was sent.
        """
        consumer, first, offered_stop, _ = offer
        assert first <= stop <= offered_stop, "more was sent than was offered"
        if stop == first:
            return
        self._ledger.lease(first, stop)
        line = self._line(consumer.priority)
        if line[0] is consumer:
            line.rotate(-1)
        else:
            line.remove(consumer)
            line.append(consumer)

    def committed(self, stop: int) -> None:
        """Move the log's committed offset to `stop`: what lies below it is ready."""
        self._ledger.commit(stop)

    def settle(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Be done with leased offsets. Returns how many."""
        return self._ledger.settle(ranges)

    def return_(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make leased offsets ready again, in their old place; they will be redelivered."""
        self._ledger.return_(ranges)

    def get(self) -> tuple[int, bool] | None:
        """Lease the lowest ready offset, whoever consumes: (offset, redelivered), or None."""
        if self._ledger.ready_count == 0:
            return None
        first, stop, redelivered = self._ledger.peek(1)
        self._ledger.lease(first, stop)
        return first, redelivered

    def purge(self) -> list[tuple[int, int]]:
        """Settle everything ready; returns its ranges. What is leased stays leased."""
        return self._ledger.purge()

    def lose(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Give up what of `ranges` is ready; returns its ranges. What is leased stays leased."""
        return self._ledger.lose(ranges)

    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called: an exclusive consumer is the only one."""
        return not self._lines or not (exclusive or self._exclusive)

    def add_consumer(self, consumer: Consumer, *, exclusive: bool = False) -> None:
        """Let `consumer` take turns, as the last in its line. Ask `admits` first."""
        assert self.admits(exclusive=exclusive), "an exclusive consumer is the only one"
        line = self._line(consumer.priority)
        assert consumer not in line, "a consumer is added once"
        line.append(consumer)
        self._exclusive = exclusive
        if self._active is None:
            self._active = consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """Give `consumer` no more turns. Its leases stay until they are settled or returned."""
        line = self._line(consumer.priority)
        line.remove(consumer)
        if not line:
            self._lines.remove(line)
        if self._active is consumer:
            self._active = self._lines[0][0] if self._lines else None

    def _line(self, priority: int) -> deque[Consumer]:
        """Find the consumers of one priority; a line is begun where there is none."""
        for i, line in enumerate(self._lines):
            if line[0].priority == priority:
                return line
            if line[0].priority < priority:
                self._lines.insert(i, deque())
                return self._lines[i]
        self._lines.append(deque())
        return self._lines[-1]


def _chunk(line: deque[Consumer], consumer: Consumer, capacity: int, ready_count: int) -> int:
    """How many offsets one turn of `consumer` is worth: all it can take when nobody else can."""
    if capacity == 1 or len(line) == 1:
        return capacity
    limit = chunk_offsets(ready_count, len(line))
    if limit >= capacity or not _another_can_take(line, consumer):
        return capacity
    return limit


def chunk_offsets(ready_count: int, consumer_count: int) -> int:
    """How many of `ready_count` offsets one turn deals while `consumer_count` share them."""
    if ready_count <= DEAL_SINGLY_MAX * consumer_count:
        return 1
    return min(ready_count // (SHARE_PARTS * consumer_count), CHUNK_OFFSETS_MAX)


def _another_can_take(line: deque[Consumer], consumer: Consumer) -> bool:
    for other in line:  # noqa: SIM110  # `any` over a generator takes as long as all the rest
        if other is not consumer and other.capacity() > 0:
            return True
    return False
