"""The compiled half of a consumer: its credit, and how deliveries are written to its connection."""

from libc.stdint cimport uint64_t

from leveret.amqp.added cimport AddedField
from leveret.amqp.client_input cimport ClientInput
from leveret.amqp.frames cimport ChannelSlot
from leveret.amqp.settlements cimport LeaseHolder, Settlements
from leveret.ports.counters cimport DeliveryStatistics

cdef enum:
    _LACKS_SHARED = -1

LACKS_SHARED = _LACKS_SHARED    # the capacity of a consumer that waits for what others may take, too
cdef Py_ssize_t UNLIMITED = <Py_ssize_t>1 << 32     # capacity of a consumer without prefetch


cdef class ConsumerBase(LeaseHolder):
    """A consumer's credit. `in_flight` counts its unsettled deliveries.

    A consumer without acknowledgements has no limit but the connection's ability to send. Subclasses
    have `lease(tag, count)`, which starts the visibility timeout of deliveries where one is set.
    """

    def __init__(
        self, queue, DeliveryStatistics counted not None, Settlements channel not None, str tag not None,
        bint no_ack, Py_ssize_t prefetch, AddedField added, AddedField added_again,
    ):
        LeaseHolder.__init__(self, queue, counted)
        self.channel = channel
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.added = added
        self.added_again = added_again

    cpdef Py_ssize_t capacity(self, bint once_sent=False) except -2:
        """Return the number of deliveries that prefetch limits, rates and outbox still allow.

        0 where its own prefetch is used up; negative where the channel's prefetch, the room of the
        connection or a rate is, which other consumers share. `once_sent`: when the connection has
        sent what it has.
        """
        cdef Settlements channel = self.channel
        cdef ClientInput connection = channel.connection
        cdef Py_ssize_t limit = UNLIMITED
        if not self.no_ack:
            if self.prefetch:
                limit = self.prefetch - self.in_flight
                if limit <= 0:
                    return 0
            if channel.prefetch:
                limit = min(limit, channel.prefetch - channel.in_flight)
        if not (connection.keeps_up() if once_sent else connection.can_send()):
            return _LACKS_SHARED
        if self.meter is not None:
            limit = min(limit, <Py_ssize_t>self.meter.available())
        return limit if limit > 0 else _LACKS_SHARED

    def credit(self):
        """Return the deliveries it could take once the outbox is sent (see QueueConsumer)."""
        return max(self.capacity(True), 0)

    def send(self, list batches, uint64_t first, uint64_t stop, *, bint redelivered):
        """Write deliveries into the connection's outbox until it is full."""
        cdef Settlements channel = self.channel
        cdef ClientInput connection = channel.connection
        cdef ChannelSlot slot = channel.slot
        cdef uint64_t tag = slot.delivery_tag + 1
        cdef uint64_t reached
        connection.touch()
        reached = connection.outbox.deliver(
            slot, self.tag_bytes, batches, first, stop, redelivered,
            self.added_again if redelivered else self.added, self.counted,
        )
        if channel.vhost.traced:
            channel.trace_deliveries(self.queue, batches, first, reached, redelivered=redelivered)
        if not self.no_ack:
            channel.unacked.add(tag, reached - first, first, self)
        self.sent(tag, reached - first)
        return reached

    def send_runs(self, list batches, list runs, *, bint redelivered):
        """Write deliveries of several runs [(first, stop)] in order, otherwise as `send`."""
        cdef Settlements channel = self.channel
        cdef ClientInput connection = channel.connection
        cdef ChannelSlot slot = channel.slot
        cdef uint64_t tag = slot.delivery_tag + 1
        cdef uint64_t reached
        connection.touch()
        reached = connection.outbox.deliver_runs(
            slot, self.tag_bytes, batches, runs, redelivered,
            self.added_again if redelivered else self.added, self.counted,
        )
        if runs[len(runs) - 1][1] > reached:
            runs = [(first, min(stop, reached)) for first, stop in runs if first < reached]
        if channel.vhost.traced:
            for first, stop in runs:
                channel.trace_deliveries(self.queue, batches, first, stop, redelivered=redelivered)
        if not self.no_ack:
            channel.unacked.add_runs(tag, runs, self)
        self.sent(tag, slot.delivery_tag + 1 - tag)
        return reached

    cdef int sent(self, uint64_t tag, Py_ssize_t count) except -1:
        """Charge `count` deliveries from `tag` on to credits, rates and timeouts."""
        if self.meter is not None:
            self.meter.delivered(count)
        if not self.no_ack:
            self.in_flight += count
            self.channel.in_flight += count
            if self.visibility_timeout_ms or self.queue.settings.visibility_timeout_ms:
                self.lease(tag, count)
        return 0

    cpdef object release(self, Py_ssize_t count):
        """Return the credit of `count` deliveries that were settled or returned."""
        self.in_flight -= count
        self.channel.in_flight -= count

    cpdef object wake(self):
        """Wake its queue, so that it delivers to this consumer again."""
        self.queue.wake(self)
