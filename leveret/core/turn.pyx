# cython: nonecheck=True
# A builder without an owner is an AttributeError, and not a crash.
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

Compiled because clients that wait for every answer make a read, and often a turn, of each message.
"""

cimport cython
from libc.stdint cimport int64_t

from leveret.ports.records cimport BatchBuilder

from collections import OrderedDict
from operator import attrgetter
from typing import Protocol


cdef class TouchedQueue:
    """Base of what has turns: queues, and others that the turn treats as queues."""

    def gathers(self):
        """Whether it waits for the next turn, since a publisher has more to send."""
        return False

    cpdef flush(self):
        """Write gathered records to the log."""

    cpdef pump(self):
        """Deliver to consumers. Returns whether more could be delivered at once."""
        return False


class Sender(Protocol):
    """Interface of a connection for the turn."""

    touched: bool

    def send_pending(self) -> None:
        """Write pending output to the socket."""
        ...


PASSED_OVER_IN = attrgetter("passed_over_in")
WAS_SEALED = attrgetter("was_sealed")
cdef enum:
    # After this many turns in a row with a single read, a turn is run directly after its read …
    _SINGLE_READS_MIN = 4
    # … and after this many such turns one is scheduled again, to check whether this still holds.
    _INLINE_TURNS_MAX = 16
    _PUBLISHERS_FEW = 8     # that are sent their confirms after the deliveries of a turn

SINGLE_READS_MIN = _SINGLE_READS_MIN
INLINE_TURNS_MAX = _INLINE_TURNS_MAX
PUBLISHERS_FEW = _PUBLISHERS_FEW
# After this time a turn starts no more searches for filters: thousands of searching queues take
# turns. Queues that need no search deliver as fast as is read, and are bounded in records.
SEARCH_NS_MAX = 2_000_000
# Up to this many queues that one read has packed into are flushed in its turn, otherwise they are
# parked. A flush takes some 15 microseconds; the first one of a queue makes a file, in up to half a
# millisecond.
TOUCHED_TOGETHER_MAX = 256
MADE_TOGETHER_MAX = 64  # limit if some were never written to
# Time per turn for flushing parked queues, beside those touched by others.
PARKED_NS_MAX = 5_000_000


@cython.final
cdef class Turn:
    """Collects what a turn of the event loop touched, and processes it once.

    `schedule(callback)` runs a callback after the sockets that are readable now were read. If each
    turn has one socket to read, as when clients wait for every answer, that costs a pass of the
    loop and gathers nothing: the turn is then run as soon as the socket was read. Exceptions are
    reported with `report(subject, error)`; none stops other queues. `clock_ns()` is monotonic and
    bounds the time of searches: searching queues that were not reached come first in the next turn.
    """

    def __init__(self, schedule, report, clock_ns=lambda: 0):
        self.clock_ns = clock_ns
        self._schedule = schedule
        self._report = report
        self._queues = {}
        self._behind = {}
        self.parked = OrderedDict()
        self._senders = []

    cpdef void begin_read(self) noexcept:
        """Begin reading a socket: what it touches waits for `end_read`."""
        self._reading = True
        self._reads += 1

    cpdef int end_read(self, bint more) except -1:
        """End reading a socket. `more`: its peer sends faster than it is read."""
        self._reading = False
        if more:
            self._comes_more = True
            self._single_reads = 0
            self.has_single_reader = False
        if self._scheduled:
            return 0
        if not (self._queues or self._senders or self.parked):
            self._reads = 0  # e.g. an ack: nothing to share a turn with
            return 0
        if self._single_reads < _SINGLE_READS_MIN:
            return self._ensure_scheduled()
        self._inline_turns += 1
        if self._inline_turns == _INLINE_TURNS_MAX:
            self._inline_turns = 0
            self._single_reads = _SINGLE_READS_MIN - 1
        return self._work()

    cpdef int touch(self, TouchedQueue queue) except -1:
        """Schedule a queue that has records to write or to deliver."""
        if not queue.touched:
            queue.touched = True
            self._queues[queue] = None
            if not self._scheduled:
                self._ensure_scheduled()
        return 0

    def flush_queue(self, TouchedQueue queue not None):
        """Flush and pump a touched queue now.

        For callers that are about to query it: a method sees the effects of earlier ones.
        """
        if queue.touched:
            self._queues.pop(queue, None)
            if self.parked:
                self._unpark(queue)
            self._flush_all([queue])
            self._pump_all([queue])

    def touch_packed(self, list builders, *, bint large=False):
        """Touch the queues of builders that one connection packed into, or park them if many.

        They are parked in any case if what was packed is `large`. Returns a number if the
        connection must pack nothing until `is_flushed(number)`, else 0. The queues of few builders
        are flushed in this turn, even those that another connection has parked.
        """
        cdef BatchBuilder builder
        cdef TouchedQueue queue
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

    def is_flushed(self, int64_t number):
        """Whether all queues parked when `touch_packed` returned the number are flushed."""
        for _, first in self.parked.values():
            return first > number
        return True

    def flush_parked(self):
        """Flush all parked queues, however long it takes: for shutdown."""
        while self.parked:
            self._flush_all([self._next_parked()])

    cdef bint _unpark(self, queue) except -1:
        found = self.parked.pop(queue, None)
        if found is None:
            return False
        found[0].parked = False
        return True

    cdef object _next_parked(self):
        queue, (builder, _) = self.parked.popitem(last=False)
        builder.parked = False
        return queue

    cpdef int touch_sender(self, sender) except -1:
        """Schedule a connection that has output to send."""
        if not sender.touched:
            sender.touched = True
            self._senders.append(sender)
            if not (self._scheduled or self._reading):
                self._ensure_scheduled()
        return 0

    def is_over(self):
        """Whether the turn's time for searches is over."""
        return self.clock_ns() > self._ends_ns

    cdef int _ensure_scheduled(self) except -1:
        if not self._scheduled and not self._reading:
            self._scheduled = True
            self._schedule(self.run)
        return 0

    def run(self):
        """Process what was touched; what is touched meanwhile waits for the next turn."""
        self._single_reads = self._single_reads + 1 if self._reads <= 1 else 0
        self.has_single_reader = self._single_reads >= _SINGLE_READS_MIN - 1
        self._work()

    cdef int _work(self) except -1:
        cdef dict queues = self._queues
        cdef list publishers, consumers
        self._scheduled = True  # so that touching from here on schedules no callback yet
        self._reads = 0
        self._queues = {}
        self.serves_one = len(queues) == 1 and not self._comes_more and not self.parked
        if self._comes_more:
            queues = self._without_gathering(queues)
        self._flush_all(queues)
        self.serves_one = False
        if self.parked:
            self._flush_some_parked(queues)
        publishers, self._senders = self._senders, []
        if queues:
            self._pump_all(list(queues) if len(queues) == 1 else self._in_order(queues))
        consumers, self._senders = self._senders, []
        # A delivery goes out before the confirm of its publisher, one write earlier. But many
        # publishers go on first, since that makes larger batches.
        if len(publishers) <= _PUBLISHERS_FEW:
            self._send_all(consumers)
            self._send_all(publishers)
        else:
            self._send_all(publishers)
            self._send_all(consumers)
        self._scheduled = False
        if self._queues or self._senders or self.parked:
            self._ensure_scheduled()
        return 0

    cdef dict _without_gathering(self, dict queues):
        """Leave queues that gather to the next turn, which is sure to come. Return the others."""
        self._comes_more = False
        gathering = dict.fromkeys(q for q in queues if q.may_gather and q.gathers())
        if not gathering:
            return queues
        self._queues.update(gathering)
        return {queue: None for queue in queues if queue not in gathering}

    cdef int _flush_some_parked(self, dict flushed) except -1:
        """Flush parked queues for a while, at least one, and add them to those to be pumped."""
        cdef int64_t ends_ns = self.clock_ns() + PARKED_NS_MAX
        while self.parked:
            queue = self._next_parked()
            self._flush_all([queue])
            flushed[queue] = None
            if self.clock_ns() > ends_ns:
                break
        return 0

    cdef list _in_order(self, dict queues):
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

    cdef int _flush_all(self, queues) except -1:
        """Flush touched queues."""
        cdef TouchedQueue queue
        for queue in queues:
            queue.touched = False
            try:
                queue.flush()
            except Exception as error:
                self._report(queue, error)
        return 0

    cdef int _send_all(self, list senders) except -1:
        """Let touched connections write, in the order in which they were touched."""
        for sender in senders:
            sender.touched = False
            try:
                sender.send_pending()
            except Exception as error:
                self._report(sender, error)
        return 0

    cdef int _pump_all(self, list queues) except -1:
        """Pump queues one after the other; they search while the turn's time lasts."""
        cdef TouchedQueue queue
        cdef Py_ssize_t at
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
            except Exception as error:
                self._report(queue, error)
        return 0


cdef bint _are_quick(list builders) except -1:
    """Whether the queues of more than MADE_TOGETHER_MAX builders can be flushed quickly."""
    return len(builders) <= TOUCHED_TOGETHER_MAX and all(map(WAS_SEALED, builders))
