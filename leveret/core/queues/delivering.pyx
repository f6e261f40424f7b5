# cython: nonecheck=True
# A field that was not set is an AttributeError, as a slot would be, and not a crash.
"""Deliveries and settlements of a queue: the part of `Queue` that each message passes.

Compiled because a client that waits for each answer makes a turn of each message: in Python that
was a third of the cost of such a message.
"""

from libc.stdint cimport uint64_t

from leveret.core.logs.batching cimport Batching
from leveret.core.queues.offers cimport Deliver

from leveret.core.logs.log_writer import waiter_for_two
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX


cdef class Delivering(Batching):
    """Delivers a queue's messages, to its consumers by offers and to basic.get, and settles them.

    Which consumer gets which records next is decided by the state; a delivery sends them from the
    batches that the reader has, past the extensions that look at records before they are delivered.
    The fields are those of Queue, which sets them.
    """

    # -- contents

    @property
    def message_count(self):
        """Number of ready messages, those gathered in this turn included."""
        if self.state is None:  # it is not opened
            return self.builder.count
        log = self.log
        cdef uint64_t committed = self.state._ledger.committed
        hidden = log.end - committed
        if self.is_restoring:
            hidden -= log.settled.overlap(committed, log.end)
        return self.state.count_ready() + self.builder.count + hidden

    @property
    def is_caught_up(self):
        """Whether everything published is committed, or refused, and the backlog is read."""
        return not self.is_restoring and self._is_log_caught_up()

    # -- publishing

    cpdef _prepare(self):
        """Let the extensions admit records, and index the accepted ones."""
        if self._extensions or self.builder.features & self._noted:
            self._admit()

    cpdef _show_committed(self):
        """Make committed records ready."""
        if self.is_restoring:
            return
        if self._undone_stop:
            self._pass_over_undone()
        else:
            self.state.commit(self.log.committed)
        for extension in self._extensions:
            extension.committed()

    cpdef await_commit(self, waiter):
        """Call `waiter.done` when all publishes so far are committed and the backlog is read."""
        if self.is_restoring and not self.deleted:
            self._backlog.await_restored(waiter)
            return
        self._await_log(self._awaiting_extensions(waiter))

    cpdef await_written(self, waiter):
        """Call `waiter.done` when what was written so far is committed, by extensions as well."""
        self._await_written(self._awaiting_extensions(waiter))

    cdef object _awaiting_extensions(self, waiter):
        """Return what waits in the place of `waiter`, which what extensions store is part of."""
        for extension in self._extensions:
            if not extension.is_caught_up:
                both = waiter_for_two(waiter)
                extension.await_commit(both)
                waiter = both
        return waiter

    # -- deliveries

    cpdef pump(self):
        """Deliver ready messages to consumers. Returns whether another turn could do more."""
        cdef uint64_t delivered = 0, delivered_max = PUMP_RECORDS_MAX
        cdef Deliver offer
        cdef list batches
        if self.is_restoring or self._is_paused:
            return self._pump_resting()
        if self._delivering is not None:
            return self._pump_by(self._delivering)
        while delivered < delivered_max:
            offer = self.next_offer()
            if offer is None:
                if not self.state.count_ready():
                    self.reader.clear()
                break
            batches = self.reader.read(offer.first)
            if batches is None:
                break
            delivered += self.deliver(offer, batches)
        else:
            self.passed_over_in = 0
            return True
        if self.passed_over_in or (not delivered and self.state.is_held_up):
            held_up = self.state.count_ready() > 0 and self.state.is_held_up
            self._note_pump(delivered=delivered > 0, held_up=held_up)
        return len(self._extensions) > 0 and self._pumped(delivered=delivered > 0)

    cpdef next_offer(self):
        """Return the next offer to a consumer that has capacity; None if there is none."""
        cdef Deliver offer
        while True:
            consumer = self.state.next()
            if consumer is None:
                if not (self.state._is_handing_over() and self._hands_over()):
                    return None
            else:
                offer = self.state.credit(consumer, consumer.capacity())
                if offer is not None:
                    return offer

    cpdef uint64_t deliver(self, Deliver offer, list batches) except? 0:
        """Send one offer. Returns how many records were sent (at least one), or expired."""
        cdef uint64_t stop
        if offer.is_partial and self.state._groups is None:
            return self._deliver_runs(offer, batches)
        if self._ready_filters:
            stop = min(offer.stop, <uint64_t>batches[len(batches) - 1].stop_offset)
            passing = self.alive([(offer.first, stop)], batches)  # these look at records
            if not passing:
                return stop - offer.first
            offer = offer.cut(*passing[0])
        consumer = offer.consumer
        stop = consumer.send(batches, offer.first, offer.stop, redelivered=offer.redelivered)
        self.state.deliver(offer, stop)
        if consumer.no_ack:
            self.settle([(offer.first, stop)])
        return stop - offer.first

    def get(self):
        """Lease the next ready message for basic.get: (offset, redelivered), or None."""
        if self._expires:
            self.used()
        while not self.deleted and not self._is_paused:
            leased = self.state.get()
            if leased is None or not self._ready_filters:
                return leased
            batch = self.reader.batch_at_hand(leased[0])
            if batch is None or not self._gives_up(batch, leased[0]):
                return leased
        return None

    def batch_at_hand(self, uint64_t offset):
        """Return the batch with `offset` if that takes no waiting, else None."""
        return self.reader.batch_at_hand(offset)

    # -- settling

    cpdef settle(self, ranges):
        """Settle leased records."""
        if self.deleted:
            return
        self.state.settle(ranges)
        self._write_settled(ranges)
        if self.state._groups is not None:  # other messages of their groups may be ready now
            self.wake()

    cpdef _write_settled(self, ranges):
        """Settle in the log what the state has settled, and tell the extensions."""
        if ranges:
            self._owned_log.settle(ranges)
            for extension in self._extensions:
                extension.settled(ranges)

    cpdef wake(self, consumer=None):
        """Note that this consumer, or any, may have more capacity."""
        if self.state is None:  # it is not opened
            return
        self.state.wake(consumer)
        if self.state.count_ready() and not self.deleted:
            self._turn.touch(self)
