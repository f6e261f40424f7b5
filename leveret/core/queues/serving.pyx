"""Consumers of a queue, and whose turn it is: the part of a queue's state that each delivery asks.

Compiled because a queue whose messages are published and acknowledged one by one asks it seven
times for each: in Python that was a tenth of the cost of such a message.
"""

from leveret.core.ledgers.ledger cimport LedgerBase, Run
from leveret.core.queues.offers cimport Deliver, offer_of
from leveret.core.queues.service_line cimport ServiceLine


cdef class Serving:
    """Consumers in lines of one priority, highest first; in a line the least recently served first.

    They are offered what `_ledger` has ready. With `_single_active` only one consumer is served
    until it is removed; then the next in line. With `_by_priority` too, one of higher priority
    takes over as soon as the active one holds no messages. `acquired` counts the returns of leased
    offsets, in `returns`, which a settlement forgets.
    """

    def __cinit__(self, *arguments, **settings):
        self.queued = []

    @property
    def ready_count(self):
        """Number of offsets ready for delivery."""
        return self.count_ready()

    cdef uint64_t count_ready(self) noexcept:
        return self._ledger.count_ready()

    @property
    def has_next(self):
        """Whether an offset is ready that need not wait for others of its group."""
        return self._has_next()

    cdef bint _has_next(self) except -1:
        return self._ledger.count_ready() > 0 and (self._groups is None or self._groups.is_open)

    cpdef commit(self, uint64_t stop):
        """Advance the committed offset: offsets below it become ready."""
        self._ledger.commit(stop)

    # -- whose turn it is, and what it is offered

    cpdef next(self):
        """Return the consumer whose turn it is, or None: nothing is ready, or nobody is able.

        Of the consumers that are not set aside, the highest priority is served, and within it the
        least recently served.
        """
        cdef ServiceLine line
        if not self._has_next():
            return None
        if self._single_active:
            return None if self.active_waits or self._is_handing_over() else self.active
        for line in self.queued:
            consumer = line.next()
            if consumer is not None:
                return consumer
        return None

    cpdef Deliver credit(self, consumer, int64_t capacity):
        """Tell how many deliveries the `next` consumer may take; return its offer.

        None: it may take nothing, and has no turn until it is woken. Negative: it waits for
        capacity shared with other queues. The offer is valid until the next command.
        """
        if capacity <= 0:
            self.is_held_up = self.is_held_up or capacity < 0
            if self._single_active:
                self.active_waits = True
            else:
                self.line_of(consumer).set_aside(consumer)
            return None
        return self.offer(consumer, capacity, self._ledger.count_ready())

    def offer_to(self, consumer, uint64_t capacity):
        """Offer the next ready offsets to one consumer with capacity, out of turn."""
        cdef uint64_t ready_count = self._ledger.count_ready()
        return self.offer(consumer, capacity, ready_count) if ready_count else None

    cdef Deliver offer(self, consumer, uint64_t capacity, uint64_t ready_count):
        if not self._single_active:
            capacity = self.line_of(consumer).share(capacity, ready_count)
        return offer_of(consumer, capacity, self._ledger.next_run(capacity), ready_count)

    def share(self, consumer, capacity, count):
        """Return how many of `count` offsets one turn of `consumer` gets."""
        return capacity if self._single_active else self.line_of(consumer).share(capacity, count)

    cpdef deliver(self, Deliver offer, uint64_t stop):
        """Lease [offer.first, stop), which was sent; the rest of the offer stays ready.

        The turn passes to the next consumer unless nothing was sent.
        """
        cdef ServiceLine line
        assert offer.first <= stop <= offer.stop, "more was sent than was offered"
        if stop == offer.first:
            return
        self._ledger.lease(offer.first, stop)
        self.is_held_up = False
        line = self.line_of(offer.consumer)
        if len(line.places) > 1:
            line.served(offer.consumer)

    def deliver_runs(self, consumer, runs):
        """Lease ready ranges that were sent, in any order; the turn passes to the next consumer."""
        for first, stop in runs:
            self._ledger.lease(first, stop)
        self.is_held_up = False
        self.line_of(consumer).served(consumer)

    cpdef get(self):
        """Lease the next ready offset for basic.get: (offset, redelivered), or None."""
        cdef Run run
        if not self._has_next():
            return None
        run = self._ledger.next_run(1)
        self._ledger.lease(run.first, run.stop)
        return run.first, run.redelivered

    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF:
        """Settle leased offsets. Returns their number."""
        if self.acquired:
            ranges = list(ranges)
            self.returns.forget(ranges)
        return self._ledger.settle(ranges)

    cpdef wake(self, consumer=None):
        """Give a consumer, or all, a turn again: it may have capacity."""
        cdef ServiceLine line
        self.active_waits = False
        for line in self.queued:
            if consumer is None:
                line.wake_all()
            else:
                line.wake(consumer)

    # -- a single active consumer

    @property
    def is_handing_over(self):
        """Whether the active consumer gets no more, since one of higher priority takes over.

        It does with `hand_over`, once the active one holds no messages.
        """
        return self._is_handing_over()

    cdef bint _is_handing_over(self) except -1:
        if self.active is None or not self._by_priority:
            return False
        return (<ServiceLine>self.queued[0]).priority > self.active.priority

    def hand_over(self):
        """Make the next consumer of the highest priority the active one."""
        self.active = (<ServiceLine>self.queued[0]).first()
        self.active_waits = False

    # -- all consumers

    @property
    def consumer_count(self):
        """Number of consumers, with or without capacity."""
        return sum(map(len, self.queued))

    @property
    def is_exclusive(self):
        """Whether the queue has an exclusive consumer."""
        return self.exclusive and bool(self.queued)

    @property
    def consumers(self):
        """All consumers in the order in which they are served next."""
        return [consumer for line in self.queued for consumer in line]

    @property
    def served(self):
        """Consumers that are served when they have capacity."""
        if self._single_active:
            return [] if self.active is None else [self.active]
        return self.consumers

    @property
    def lines(self):
        """Consumers that may be served, in lines of one priority, highest first.

        Each line is in order of service. For callers that offer to each consumer (`offer_to`),
        since filters may skip the lowest offsets.
        """
        if self._single_active:
            return [] if self.active is None or self.is_handing_over else [[self.active]]
        return [list(line) for line in self.queued]

    def admits(self, *, exclusive):
        """Whether `add_consumer` may be called: an exclusive consumer must be the only one.

        With a single active consumer, exclusive ones are not admitted.
        """
        if self._single_active:
            return not exclusive
        return not self.queued or not (exclusive or self.exclusive)

    def add_consumer(self, consumer, *, exclusive=False):
        """Add `consumer` at the end of its line. Call `admits` first."""
        assert self.admits(exclusive=exclusive), "an exclusive consumer is the only one"
        cdef ServiceLine line = self.line_for(consumer.priority)
        assert consumer not in line, "a consumer is added once"
        line.add(consumer)
        self.exclusive = exclusive
        if self.active is None:
            self.active = consumer

    def remove_consumer(self, consumer):
        """Remove `consumer`. Its leases stay until they are settled or returned."""
        cdef ServiceLine line = self.line_of(consumer)
        line.remove(consumer)
        if not len(line):
            self.queued.remove(line)
        if self.active is consumer:
            self.active = (<ServiceLine>self.queued[0]).first() if self.queued else None
            self.active_waits = False

    cdef ServiceLine line_of(self, consumer):
        """Return the line of a consumer that was added."""
        if len(self.queued) == 1:
            return <ServiceLine>self.queued[0]
        return self.line_for(consumer.priority)

    cdef ServiceLine line_for(self, priority):
        """Return the line of a priority; it is created if missing."""
        cdef ServiceLine line
        cdef Py_ssize_t i
        for i in range(len(self.queued)):
            line = self.queued[i]
            if line.priority == priority:
                return line
            if line.priority < priority:
                line = ServiceLine(priority)
                self.queued.insert(i, line)
                return line
        line = ServiceLine(priority)
        self.queued.append(line)
        return line
