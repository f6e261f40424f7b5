"""One turn of the event loop: what was read is written to logs, delivered, sent, in this order.

Reading touches queues and connections; the turn then flushes every touched queue, pumps each once,
and lets each touched connection write once. So a hundred publishers share a batch and a hundred
confirms a packet.

What several queues deliver to is handed out in turn, whatever it is: a prefetch that consumers of a
channel share, the room in a connection's output, a rate. Queues whose consumers got nothing for
want of it are pumped before the others, whoever has waited longest first.

Where one read packs into very many queues, as through a fanout exchange, their flushes would keep
everybody else waiting: a first one makes a directory and a file. Such queues are parked: each turn
flushes some of them, first come first served, and whoever parked them is not read meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.ports.records import BatchBuilder


class TouchedQueue(Protocol):
    """A queue as the turn sees it; whoever else wants turns inherits what a queue begins with."""

    touched: bool = False
    deleted: bool = False
    # The number of the first pump, since it last delivered, in which its consumers lacked what
    # consumers of other queues take, too; 0 where there was none.
    passed_over_in: int = 0
    searches: bool = False  # whether `pump` looks for what somebody wants, as `is_over` allows

    def flush(self) -> None:
        """Write gathered records."""
        ...

    def pump(self) -> bool:
        """Deliver; whether more could be delivered at once."""
        ...


class Sender(Protocol):
    """A connection as the turn sees it."""

    touched: bool

    def send_pending(self) -> None:
        """Write what has gathered to the socket."""
        ...


PASSED_OVER_IN = attrgetter("passed_over_in")
WAS_SEALED = attrgetter("was_sealed")
# A turn is worked off within a read after this many turns in a row that had one read only …
SINGLE_READS_MIN = 4
# … and every so many such turns one is scheduled again, to see whether it is still so.
INLINE_TURNS_MAX = 16
# After so long a turn begins no search for what filters want: thousands of queues that search take
# it by turns. What needs no search is delivered as fast as it is read, and is bounded in records.
SEARCH_NS_MAX = 2_000_000
# So many queues that one read has packed into are flushed in its turn, more are parked. A flush
# takes some 15 microseconds; the first one of a queue makes a file, in up to half a millisecond.
TOUCHED_TOGETHER_MAX = 256
MADE_TOGETHER_MAX = 64  # where some were never written to
# For so long a turn flushes parked queues, beside those that others touched.
PARKED_NS_MAX = 5_000_000


class Turn:
    """Collects what a turn of the loop touched, and works it off once.

    `schedule(callback)` calls back after the sockets that are readable now were read. Where each
    turn has one socket to read, as when a client waits for every answer, that costs a pass of the
    loop and gathers nothing: the turn is then worked off as soon as the socket was read.
    `report(error)` is told of what should not happen; no queue's trouble stops another's. By
    `clock_ns()`, which only runs on, a turn searches for a while: queues that search and were not
    reached are the first of the next one.
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
        self._ends_ns = 0  # when it has searched for long enough
        self._queues: dict[TouchedQueue, None] = {}
        self._behind: dict[TouchedQueue, None] = {}  # that the last turn did not reach
        # Queues that are touched and not in `_queues`; their builders, and which parked they are.
        self.parked: OrderedDict[TouchedQueue, tuple[BatchBuilder, int]] = OrderedDict()
        self._parked_count = 0  # since the start
        self._senders: list[Sender] = []
        self._scheduled = False
        self._reading = False
        self._reads = 0  # since the last turn
        self._single_reads = 0  # turns in a row that had one read
        self._inline_turns = 0  # worked off within their read, since the last scheduled one
        self.pump_number = 0  # of the pump under way, or of the last one
        self.has_single_reader = False  # whether clients of late have waited for every answer

    def begin_read(self) -> None:
        """A socket is being read: what it touches waits for `end_read`."""
        self._reading = True
        self._reads += 1

    def end_read(self, *, more: bool) -> None:
        """The socket was read. `more`: its peer sends faster than it is read."""
        self._reading = False
        if more:
            self._single_reads = 0
            self.has_single_reader = False
        if self._scheduled:
            return
        if not (self._queues or self._senders or self.parked):
            self._reads = 0  # an ack, say: it shares a turn with nobody
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
        """`queue` has something to write or to deliver."""
        if not queue.touched:
            queue.touched = True
            self._queues[queue] = None
            if not self._scheduled:
                self._ensure_scheduled()

    def catch_up(self, queue: TouchedQueue) -> None:
        """Write and deliver now what `queue` was touched for, if it was.

        For whoever asks something of it next: a method sees the effects of what came before.
        """
        if queue.touched:
            self._queues.pop(queue, None)
            if self.parked:
                self._unpark(queue)
            self._flush_all([queue])
            self._pump_all([queue])

    def touch_packed(self, builders: Sequence[BatchBuilder], *, large: bool = False) -> int:
        """One connection has packed into these builders: touch their queues, or park them if many.

        They are parked, however few, where what was packed is `large`. Where the connection must
        not pack anything more for a while, returns a number: until `is_flushed(number)`. Else 0.
        Of few builders the queues are flushed in this turn in any case, those too that somebody
        else has parked.
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
                builder.parked = True  # the reader has told of what was packed since
            elif not queue.touched:
                queue.touched = builder.parked = True
                self._parked_count += 1
                parked[queue] = builder, self._parked_count
        if not parked:
            return 0
        self._ensure_scheduled()
        return self._parked_count

    def is_flushed(self, number: int) -> bool:
        """Whether all is flushed that was parked when `touch_packed` returned the number."""
        for _, first in self.parked.values():
            return first > number
        return True

    def flush_parked(self) -> None:
        """Flush all that is parked, however long it takes: nobody else is served any more."""
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
        """`sender` has something to send."""
        if not sender.touched:
            sender.touched = True
            self._senders.append(sender)
            if not (self._scheduled or self._reading):
                self._ensure_scheduled()

    def is_over(self) -> bool:
        """Whether the turn has taken so long that whoever searches shall end."""
        return self.clock_ns() > self._ends_ns

    def _ensure_scheduled(self) -> None:
        if not self._scheduled and not self._reading:
            self._scheduled = True
            self._schedule(self.run)

    def run(self) -> None:
        """Work off what was touched. What touches again meanwhile waits for the next turn."""
        self._single_reads = self._single_reads + 1 if self._reads <= 1 else 0
        self.has_single_reader = self._single_reads >= SINGLE_READS_MIN - 1
        self._work()

    def _work(self) -> None:
        self._scheduled = True  # what is touched from here on needs no callback of its own yet
        self._reads = 0
        queues, self._queues = self._queues, {}
        self._flush_all(queues)
        if self.parked:
            self._flush_some_parked(queues)
        if queues:
            self._pump_all(list(queues) if len(queues) == 1 else self._in_order(queues))
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.touched = False
            try:
                sender.send_pending()
            except Exception as error:  # noqa: BLE001
                self._report(sender, error)
        self._scheduled = False
        if self._queues or self._senders or self.parked:
            self._ensure_scheduled()

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
        """Order queues: those not reached before, those that wait, then as they were touched."""
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

    # One queue's fault is not another's, nor one connection's. Hundreds of queues may share a turn:
    # the loops call nothing but the queues.

    def _flush_all(self, queues: Iterable[TouchedQueue]) -> None:
        """Let touched queues write what they have gathered."""
        for queue in queues:
            queue.touched = False
            try:
                queue.flush()
            except Exception as error:  # noqa: BLE001
                self._report(queue, error)

    def _pump_all(self, queues: list[TouchedQueue]) -> None:
        """Let queues deliver one after the other; they search while the turn's time lasts."""
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
    """Whether the queues of more than MADE_TOGETHER_MAX builders are flushed in no time."""
    return len(builders) <= TOUCHED_TOGETHER_MAX and all(map(WAS_SEALED, builders))
