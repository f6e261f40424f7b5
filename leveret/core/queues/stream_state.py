"""State of a stream without I/O: decides which consumer reads which offsets next.

The counterpart of `QueueState` for queues whose messages stay: each consumer has a cursor, and
nothing is leased or settled. The shell (`Stream`) tells it what has happened, by commands, and a
delivery takes the same three steps:

    consumer = state.next()                                        # whose turn is it?
    offer = state.credit(consumer, consumer.capacity(), settled)   # None: it waits
    stop = send(offer)                                             # as much as could be sent
    state.deliver(offer, stop)

It knows offsets only, never bytes, never asks anybody, and the same commands lead to the same
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.offers import Deliver

if TYPE_CHECKING:
    from leveret.core.queues.consumer import Consumer
    from leveret.ports.ranges import RangeSet


class Cursor:
    """Read position of one consumer."""

    __slots__ = ("is_suspended", "least", "offset")

    def __init__(self, offset: int, least: int) -> None:
        self.offset = offset  # next record to read
        self.least = least  # offset named by the client: nothing below it is delivered
        self.is_suspended = False  # has no turn until `resume`


class StreamState:
    """Cursors of a stream's consumers, and the order in which they are served."""

    __slots__ = ("_cursors", "_ready", "committed", "is_held_up")

    def __init__(self, committed: int) -> None:
        self.committed = committed  # offsets below it may be delivered
        self._cursors: dict[Consumer, Cursor] = {}
        self._ready: dict[Consumer, None] = {}  # those that may have a turn, in order
        # Whether a consumer was found to wait for shared capacity since `begin_round`.
        self.is_held_up = False

    @property
    def consumers(self) -> list[Consumer]:
        """All consumers, in the order in which they were added."""
        return list(self._cursors)

    @property
    def consumer_count(self) -> int:
        """Number of consumers, with or without capacity."""
        return len(self._cursors)

    @property
    def has_next(self) -> bool:
        """Whether `next` returns a consumer."""
        return bool(self._ready)

    def place(self, consumer: Consumer) -> int:
        """Return the offset that a consumer reads next."""
        return self._cursors[consumer].offset

    def add_consumer(self, consumer: Consumer, offset: int, *, least: int = 0) -> None:
        """Add a consumer that reads from `offset` on, and never anything below `least`."""
        assert consumer not in self._cursors, "a consumer is added once"
        self._cursors[consumer] = Cursor(offset, least)
        self._ready[consumer] = None

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer and its cursor."""
        del self._cursors[consumer]
        self._ready.pop(consumer, None)

    def clear(self) -> None:
        """Remove all consumers."""
        self._cursors.clear()
        self._ready.clear()

    def commit(self, offset: int) -> None:
        """Advance the committed offset: records below it may be delivered."""
        self.committed = offset
        self.wake()

    def truncate(self, offset: int) -> None:
        """Forget uncommitted records from `offset` on: they are lost, their offsets reused."""
        for cursor in self._cursors.values():
            cursor.offset = max(min(cursor.offset, offset), cursor.least)

    def seek(self, consumer: Consumer, offset: int) -> None:
        """Let a consumer, if it is still there, read from `offset` on."""
        if consumer in self._cursors:
            self._cursors[consumer].offset = offset

    def wake(self, consumer: Consumer | None = None) -> None:
        """Give a consumer, or all, a turn again: it may have capacity."""
        for woken in self._cursors if consumer is None else (consumer,):
            cursor = self._cursors.get(woken)
            if cursor is not None and not cursor.is_suspended:
                self._ready[woken] = None

    def suspend(self, consumer: Consumer) -> None:
        """Give a consumer no turn until `resume`: its records, or its place, are being read."""
        self._cursors[consumer].is_suspended = True
        self._ready.pop(consumer, None)

    def resume(self, consumer: Consumer) -> None:
        """End a suspension. The consumer, if it is still there, gets a turn when it is woken."""
        if consumer in self._cursors:
            self._cursors[consumer].is_suspended = False

    def begin_round(self) -> None:
        """Begin a round of deliveries."""
        self.is_held_up = False

    def next(self) -> Consumer | None:
        """Return the consumer whose turn it is, or None."""
        return next(iter(self._ready), None)

    def credit(self, consumer: Consumer, capacity: int, settled: RangeSet) -> Deliver | None:
        """Tell how many deliveries the `next` consumer may take, and what the log has no more.

        Returns its offer of the next records that are neither `settled` nor uncommitted. None: it
        may take nothing, or has read everything, and has no turn until it is woken. Negative
        capacity: it waits for capacity shared with other queues. The offer is valid until the next
        command; its `limit` counts the records that are sent, its range may be longer.
        """
        if capacity <= 0:
            self.is_held_up = self.is_held_up or capacity < 0
            del self._ready[consumer]
            return None
        offset = self._cursors[consumer].offset
        kept = None
        if offset < self.committed:
            kept = settled.first_gap(offset, self.committed)
        if kept is None:
            del self._ready[consumer]
            return None
        return Deliver(consumer, capacity, (*kept, False))

    def deliver(self, offer: Deliver, stop: int) -> int:
        """Pass all records before `stop`: they were sent, or not wanted.

        Returns how many were passed. The turn passes to the next consumer; one that passed nothing
        has no turn until it is woken.
        """
        assert stop <= offer.stop, "more was sent than was offered"
        consumer = offer.consumer
        cursor = self._cursors[consumer]
        passed: int = stop - cursor.offset
        cursor.offset = stop
        del self._ready[consumer]
        if passed:
            self._ready[consumer] = None
        return passed
