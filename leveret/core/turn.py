"""One turn of the event loop: what was read is written to logs, delivered, and sent, in this order.

Reading marks queues and connections as touched; the turn then flushes every touched queue, pumps
each once, and lets each touched connection write once. So a hundred publishers share a batch and a
hundred confirms a packet.

Capacity that consumers of several queues share is granted round-robin, whatever it is: the prefetch
of a channel, space in a connection's output, a rate. Queues whose consumers got nothing for lack of
it are pumped before the others, the longest waiting first.

One publisher's records may go to several partitions of a queue. While it sends faster than it is
read, a partition gathers the records of some turns, so that its batches are as large as those of
a queue with one log.

If one read packs into very many queues, as through a fanout exchange, their flushes would delay all
others: the first flush of a queue makes a directory and a file. Such queues are parked: each turn
flushes some of them, in order, and the connection that parked them is not read meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.ports.records import BatchBuilder


class TouchedQueue(Protocol):
    """Interface of a queue for the turn; others that want turns inherit its defaults."""

    touched: bool = False
    deleted: bool = False
    # Number of the first pump, since its last delivery, in which its consumers lacked capacity
    # shared with other queues; 0 if there was none.
    passed_over_in: int = 0
    searches: bool = False  # whether `pump` searches for matching records until `is_over`
    may_gather: bool = False  # whether a flush may wait for more records, see `gathers`

    def gathers(self) -> bool:
        """Whether it waits for the next turn, since a publisher has more to send."""
        return False

    def flush(self) -> None:
        """Write gathered records to the log."""
        ...

    def pump(self) -> bool:
        """Deliver to consumers. Returns whether more could be delivered at once."""
        ...


class Sender(Protocol):
    """Interface of a connection for the turn."""

    touched: bool

    def send_pending(self) -> None:
        """Write pending output to the socket."""
        ...


PASSED_OVER_IN = attrgetter("passed_over_in")
WAS_SEALED = attrgetter("was_sealed")
# After this many turns in a row with a single read, a turn is run directly after its read …
SINGLE_READS_MIN = 4
# … and after this many such turns one is scheduled again, to check whether this still holds.
INLINE_TURNS_MAX = 16
# After this time a turn starts no more searches for filters: thousands of searching queues take
# turns. Queues that need no search deliver as fast as is read, and are bounded in records.
SEARCH_NS_MAX = 2_000_000
# Up to this many queues that one read has packed into are flushed in its turn, otherwise they are
# parked. A flush takes some 15 microseconds; the first one of a queue makes a file, in up to half a
# millisecond.
TOUCHED_TOGETHER_MAX = 256
PUBLISHERS_FEW = 8  # that are sent their confirms after the deliveries of a turn
MADE_TOGETHER_MAX = 64  # limit if some were never written to
# Time per turn for flushing parked queues, beside those touched by others.
PARKED_NS_MAX = 5_000_000


class Turn:
    """Collects what a turn of the event loop touched, and processes it once.

    `schedule(callback)` runs a callback after the sockets that are readable now were read. If each
    turn has one socket to read, as when clients wait for every answer, that costs a pass of the
    loop and gathers nothing: the turn is then run as soon as the socket was read. Exceptions are
    reported with `report(subject, error)`; none stops other queues. `clock_ns()` is monotonic and
    bounds the time of searches: searching queues that were not reached come first in the next turn.
    """

    def __init__(
        self,
        schedule: Callable[[Callable[[], None]], object],
        report: Callable[[object, Exception], None],
        clock_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.clock_ns = clock_ns
        self._schedule = schedule
        self._report = report
        self._ends_ns = 0  # end of the time for searches
        self._queues: dict[TouchedQueue, None] = {}
        self._behind: dict[TouchedQueue, None] = {}  # that the last turn did not reach
        # Touched queues that are not in `_queues`, with their builders and their numbers in parking
        # order.
        self.parked: OrderedDict[TouchedQueue, tuple[BatchBuilder, int]] = OrderedDict()
        self._parked_count = 0  # queues parked since the start
        self._senders: list[Sender] = []
        self._scheduled = False
        self._reading = False
        self._comes_more = False  # whether a publisher had more to send than was read
        self._reads = 0  # since the last turn
        self._single_reads = 0  # turns in a row with a single read
        self._inline_turns = 0  # run directly after their read, since the last scheduled one
        self.pump_number = 0  # of the current pump, or of the last one
        self.has_single_reader = False  # whether clients have lately waited for every answer

    def begin_read(self) -> None:
        """Begin reading a socket: what it touches waits for `end_read`."""
        self._reading = True
        self._reads += 1

    def end_read(self, *, more: bool) -> None:
        """End reading a socket. `more`: its peer sends faster than it is read."""
        self._reading = False
        if more:
            self._comes_more = True
            self._single_reads = 0
            self.has_single_reader = False
        if self._scheduled:
            return
        if not (self._queues or self._senders or self.parked):
            self._reads = 0  # e.g. an ack: nothing to share a turn with
            return
        if self._single_reads < SINGLE_READS_MIN:
            self._ensure_scheduled()
            return
        self._inline_turns += 1
        if self._inline_turns == INLINE_TURNS_MAX:
            self._inline_turns = 0
            self._single_reads = SINGLE_READS_MIN - 1
        self._work()

    def touch(self, queue: TouchedQueue) -> None:
        """Schedule a queue that has records to write or to deliver."""
        if not queue.touched:
            queue.touched = True
            self._queues[queue] = None
            if not self._scheduled:
                self._ensure_scheduled()

    def flush_queue(self, queue: TouchedQueue) -> None:
        """Flush and pump a touched queue now.

        For callers that are about to query it: a method sees the effects of earlier ones.
        """
        if queue.touched:
            self._queues.pop(queue, None)
            if self.parked:
                self._unpark(queue)
            self._flush_all([queue])
            self._pump_all([queue])

    def touch_packed(self, builders: Sequence[BatchBuilder], *, large: bool = False) -> int:
        """Touch the queues of builders that one connection packed into, or park them if many.

        They are parked in any case if what was packed is `large`. Returns a number if the
        connection must pack nothing until `is_flushed(number)`, else 0. The queues of few builders
        are flushed in this turn, even those that another connection has parked.
        """
        parked = self.parked
        if not large and (len(builders) <= MADE_TOGETHER_MAX or _are_quick(builders)):
            for builder in builders:
                queue = builder.owner
                if parked and self._unpark(queue):
                    self._queues[queue] = None
                else:
                    self.touch(queue)
            return 0
        for builder in builders:
            queue = builder.owner
            if queue in parked:
                builder.parked = True  # the reader has reported the records packed since
            elif not queue.touched:
                queue.touched = builder.parked = True
                self._parked_count += 1
                parked[queue] = builder, self._parked_count
        if not parked:
            return 0
        self._ensure_scheduled()
        return self._parked_count

    def is_flushed(self, number: int) -> bool:
        """Whether all queues parked when `touch_packed` returned the number are flushed."""
        for _, first in self.parked.values():
            return first > number
        return True

    def flush_parked(self) -> None:
        """Flush all parked queues, however long it takes: for shutdown."""
        while self.parked:
            self._flush_all([self._next_parked()])

    def _unpark(self, queue: TouchedQueue) -> bool:
        found = self.parked.pop(queue, None)
        if found is None:
            return False
        found[0].parked = False
        return True

    def _next_parked(self) -> TouchedQueue:
        queue, (builder, _) = self.parked.popitem(last=False)
        builder.parked = False
        return queue

    def touch_sender(self, sender: Sender) -> None:
        """Schedule a connection that has output to send."""
        if not sender.touched:
            sender.touched = True
            self._senders.append(sender)
            if not (self._scheduled or self._reading):
                self._ensure_scheduled()

    def is_over(self) -> bool:
        """Whether the turn's time for searches is over."""
        return self.clock_ns() > self._ends_ns

    def _ensure_scheduled(self) -> None:
        if not self._scheduled and not self._reading:
            self._scheduled = True
            self._schedule(self.run)

    def run(self) -> None:
        """Process what was touched; what is touched meanwhile waits for the next turn."""
        self._single_reads = self._single_reads + 1 if self._reads <= 1 else 0
        self.has_single_reader = self._single_reads >= SINGLE_READS_MIN - 1
        self._work()

    def _work(self) -> None:
        self._scheduled = True  # so that touching from here on schedules no callback yet
        self._reads = 0
        queues, self._queues = self._queues, {}
        if self._comes_more:
            queues = self._without_gathering(queues)
        self._flush_all(queues)
        if self.parked:
            self._flush_some_parked(queues)
        publishers, self._senders = self._senders, []
        if queues:
            self._pump_all(list(queues) if len(queues) == 1 else self._in_order(queues))
        consumers, self._senders = self._senders, []
        # A delivery goes out before the confirm of its publisher, one write earlier. But many
        # publishers go on first, since that makes larger batches.
        if len(publishers) <= PUBLISHERS_FEW:
            self._send_all(consumers)
            self._send_all(publishers)
        else:
            self._send_all(publishers)
            self._send_all(consumers)
        self._scheduled = False
        if self._queues or self._senders or self.parked:
            self._ensure_scheduled()

    def _without_gathering(self, queues: dict[TouchedQueue, None]) -> dict[TouchedQueue, None]:
        """Leave queues that gather to the next turn, which is sure to come. Return the others."""
        self._comes_more = False
        gathering = dict.fromkeys(q for q in queues if q.may_gather and q.gathers())
        if not gathering:
            return queues
        self._queues.update(gathering)
        return {queue: None for queue in queues if queue not in gathering}

    def _flush_some_parked(self, flushed: dict[TouchedQueue, None]) -> None:
        """Flush parked queues for a while, at least one, and add them to those to be pumped."""
        ends_ns = self.clock_ns() + PARKED_NS_MAX
        while self.parked:
            queue = self._next_parked()
            self._flush_all([queue])
            flushed[queue] = None
            if self.clock_ns() > ends_ns:
                return

    def _in_order(self, queues: dict[TouchedQueue, None]) -> list[TouchedQueue]:
        """Order queues: those not reached before, those short of capacity, then as touched."""
        ordered = list(queues)
        waiting = [queue for queue in ordered if queue.passed_over_in]
        if waiting:
            waiting.sort(key=PASSED_OVER_IN)
            ordered = waiting + [queue for queue in ordered if not queue.passed_over_in]
        behind, self._behind = self._behind, {}
        if behind:
            ordered = [
                *(queue for queue in behind if queue in queues),
                *(queue for queue in ordered if queue not in behind),
            ]
        return ordered

    # An exception of one queue or connection must not affect others. Hundreds of queues may share a
    # turn: the loops call nothing but the queues.

    def _flush_all(self, queues: Iterable[TouchedQueue]) -> None:
        """Flush touched queues."""
        for queue in queues:
            queue.touched = False
            try:
                queue.flush()
            except Exception as error:  # noqa: BLE001
                self._report(queue, error)

    def _send_all(self, senders: list[Sender]) -> None:
        """Let touched connections write, in the order in which they were touched."""
        for sender in senders:
            sender.touched = False
            try:
                sender.send_pending()
            except Exception as error:  # noqa: BLE001
                self._report(sender, error)

    def _pump_all(self, queues: list[TouchedQueue]) -> None:
        """Pump queues one after the other; they search while the turn's time lasts."""
        self._ends_ns = self.clock_ns() + SEARCH_NS_MAX
        for at, queue in enumerate(queues):
            if at and queue.searches and self.is_over():
                self._behind[queue] = None
                self.touch(queue)
                continue
            self.pump_number += 1
            try:
                if not queue.deleted and queue.pump():
                    self.touch(queue)
            except Exception as error:  # noqa: BLE001
                self._report(queue, error)


def _are_quick(builders: Sequence[BatchBuilder]) -> bool:
    """Whether the queues of more than MADE_TOGETHER_MAX builders can be flushed quickly."""
    return len(builders) <= TOUCHED_TOGETHER_MAX and all(map(WAS_SEALED, builders))
