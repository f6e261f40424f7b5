"""basic.get: takes the next ready message of a queue and answers with it.

Compiled because a client that gets one message after the other waits for each: what decides whether
it may is looked up once, and the same request is answered in one call from then on.
"""

from libc.stdint cimport uint64_t

from leveret.amqp.client_input cimport ClientInput
from leveret.amqp.frames cimport ChannelSlot
from leveret.amqp.settlements cimport LeaseHolder, Settlements
from leveret.ports.counters cimport DeliveryStatistics
from leveret.ports.records cimport Batch

from pamqp import commands

from leveret.amqp.consumer import return_counts
from leveret.errors import ConnectionClosingError, StorageError
from leveret.ports.counters import GET, GET_NO_ACK


cdef class Getter(LeaseHolder):
    """Lease holder of what basic.get took from one queue on one channel."""

    def __init__(self, queue, channel):
        LeaseHolder.__init__(self, queue, channel.delivery_statistics(queue, GET))
        self.counted_no_ack = channel.delivery_statistics(queue, GET_NO_ACK)


cdef class Getting:
    """A request of one channel to get from one queue, which it may repeat."""

    def __init__(self, Settlements channel not None, queue, *, bint no_ack):
        self.channel = channel
        self.queue = queue
        self.no_ack = no_ack
        self.settings, self.definition = queue.settings, queue.definition
        self.rights = channel.connection.rights
        self.rights_generation = self.rights.generation
        self.is_whole = len(queue.partitions) == 1 and queue.partitions[0] is queue

    @property
    def is_current(self):
        """Whether it may be repeated: nothing has changed, and no rate has to be asked."""
        cdef ClientInput connection = self.channel.connection
        queue = self.queue
        return (
            not queue.deleted
            and queue.settings is self.settings
            and queue.definition is self.definition     # else it may have another name
            and queue.rates is None
            and connection.rights is self.rights
            and self.rights.generation == self.rights_generation
            and not connection.limits.consume
        )

    cpdef object get(self):
        """Answer, at once if the queue is caught up and the record at hand: else return the work."""
        queue = self.queue
        if self.is_whole and not queue.touched and queue.is_caught_up:
            return self.get_ready()
        return self.channel.when_caught_up(queue, self.get_ready)

    cpdef object get_ready(self):
        """Answer with the next ready message, or that there is none; see `get`."""
        cdef tuple leased = self.lease_next()
        if leased is None:
            self.send_empty()
            return None
        part, offset, redelivered = leased
        try:
            batch = part.batch_at_hand(offset)
        except StorageError as error:
            raise cannot_get(part, offset, error) from error
        if batch is None:
            return self.get_fetched(leased)
        self.send(part, offset, redelivered, batch)
        return None

    cdef tuple lease_next(self):
        """Lease the next ready record of the first partition that has one.

        Returns (partition, offset, redelivered), or None.
        """
        for part in (self.queue,) if self.is_whole else self.queue.in_turn():
            leased = part.get()
            if leased is not None:
                return part, leased[0], leased[1]
        return None

    async def get_fetched(self, tuple leased):
        """Answer with the leased record, or with the next one that is not lost."""
        while leased is not None:
            part, offset, redelivered = leased
            try:
                batch = await part.record_batch(offset)
            except StorageError as error:
                if part.deleted:
                    break
                raise cannot_get(part, offset, error) from error
            if batch is None:
                leased = self.lease_next()
            elif self.channel.alive:
                self.send(part, offset, redelivered, batch)
                return
            else:
                part.return_([(offset, offset + 1)], failed=False)
                return
        if self.channel.alive:
            self.send_empty()

    cdef int send(self, part, uint64_t offset, bint redelivered, Batch batch) except -1:
        """Write basic.get-ok for a leased record."""
        cdef Settlements channel = self.channel
        cdef ClientInput connection = channel.connection
        cdef ChannelSlot slot = channel.slot
        cdef Getter getter = self.getter
        if getter is None or getter.queue is not part:
            getter = self.getter = channel.getter(part)
        connection.outbox.get_ok(
            slot, batch, offset, redelivered, self.queue.message_count,
            return_counts(part) if redelivered else None,
            getter.counted_no_ack if self.no_ack else getter.counted,
        )
        connection.touch()
        if channel.vhost.traced:
            channel.trace_deliveries(part, [batch], offset, offset + 1, redelivered=redelivered)
        if self.no_ack:
            slot.has_free_tags = True
            part.settle([(offset, offset + 1)])
            return 0
        channel.unacked.add(slot.delivery_tag, 1, offset, getter)
        term_ms = part.settings.visibility_timeout_ms
        if term_ms is not None:
            channel.needed_leases().begin(getter, slot.delivery_tag, 1, term_ms)
        return 0

    cdef int send_empty(self) except -1:
        self.channel.delivery_statistics(self.queue, GET).found_empty()
        self.channel.send(commands.Basic.GetEmpty())
        return 0


cdef object cannot_get(part, uint64_t offset, error):
    """Give a leased record back that cannot be read. Returns the 541 for the connection."""
    part.return_([(offset, offset + 1)], failed=False)
    return ConnectionClosingError(541, f"Cannot get a message from queue '{part.name}': {error}")
