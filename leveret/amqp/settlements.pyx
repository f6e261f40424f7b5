"""The compiled half of a channel's deliveries: what each acknowledgement passes through."""

from libc.stdint cimport uint64_t

from leveret.amqp.frames cimport ChannelSlot
from leveret.amqp.unacked cimport Unacked
from leveret.ports.counters cimport DeliveryStatistics, _ACK

from leveret.amqp import frames
from leveret.core.settings.discard_reasons import Reason
from leveret.errors import ChannelError

# Runs of deliveries that are settled or returned together before somebody looks at the clock, where
# a client may have made it long. Some 0.2 ms each.
cdef enum:
    _SLICE_RUNS = 256

SLICE_RUNS = _SLICE_RUNS
BASIC_ACK = (60, 80)
BASIC_REJECT = (60, 90)
BASIC_NACK = (60, 120)

cdef int SETTLE = frames.SETTLE
cdef int RETURN = frames.RETURN
cdef int REJECT = frames.REJECT
cdef uint64_t ALL_TAGS = frames.ALL_TAGS
cdef object REQUEUED = Reason.REQUEUED
cdef dict NO_ARGUMENTS = {}


cdef class LeaseHolder:
    """Holder of a channel's unsettled deliveries from one queue: a consumer, or basic.get.

    `counted` counts deliveries with acknowledgements; the rest is of basic.get: it has no prefetch,
    and a client must send it again for more.
    """

    def __init__(self, queue, DeliveryStatistics counted not None):
        self.queue = queue
        self.counted = counted
        self.arguments = NO_ARGUMENTS

    cpdef object release(self, Py_ssize_t count):
        """Return the credit of `count` deliveries that were settled or returned."""

    cpdef object wake(self):
        """Have more delivered, because there is credit again."""


cdef class Settlements:
    """Unsettled deliveries of one channel and the credit of its consumers, and settlements of them.

    Subclasses have `resume_members()`, which is called where members of groups are suspended,
    `settling(kind, last)` for what is left of a long settlement, and `wake_consumers()`.
    """

    def __cinit__(self, *_, **__):
        self.unacked = Unacked()
        self.alive = True
        self.consumers = {}
        self.suspended = {}

    def collect_settles(self):
        """Take the settlements that the reader gathered.

        Raises ChannelError for a tag that is not outstanding.
        """
        cdef list settles = self.slot.take_settles()
        if not settles or not self.alive:
            return
        if self.suspended:
            self.resume_members()
        for kind, first, last, multiple in settles:
            if self.transaction is None:
                unknown = self.settle(kind, first, last, multiple)
            else:
                unknown = self.transaction.buffer_settle(kind, first, last, multiple=multiple)
            if unknown is not None:
                raise unknown_tag(kind, unknown)

    cpdef object settle(self, int kind, uint64_t first, uint64_t last, bint multiple):
        """Settle, return or discard a run of delivery tags. Returns the first unknown one."""
        cdef Unacked unacked = self.unacked
        cdef list held
        unknown = None
        if not multiple:
            held, unknown = unacked.take(first, last)
        elif last != ALL_TAGS and not unacked.is_outstanding(last):
            # Every tag up to `last`, which must be outstanding itself unless it means "all".
            held, unknown = [], last
        else:
            held = unacked.take_up_to(last, _SLICE_RUNS)
        self.apply(kind, held)
        if multiple and len(held) == _SLICE_RUNS:
            # What is delivered meanwhile is not meant by it.
            self.connection.take_time(self.settling(kind, min(last, self.slot.delivery_tag)))
        return unknown

    cpdef int apply(self, int kind, list held, cause=REQUEUED) except -1:
        """Release the credit of settled or returned deliveries and pass their ranges to the queues.

        `held` is [(holder, first offset, stop offset)], `cause` the reason of a return.
        """
        cdef LeaseHolder holder
        cdef uint64_t first, stop
        if len(held) != 1:
            return self._apply_several(kind, held, cause)
        # Whoever acknowledges one by one comes here once a message.
        holder, first, stop = <tuple>held[0]
        holder.release(stop - first)
        if kind == SETTLE:
            holder.counted.add_all(_ACK, stop - first)
            holder.queue.settle([(first, stop)])
        else:
            give_back(holder.queue, kind, [(first, stop)], cause)
        if self.consumers:
            self._wake((holder,), stop - first)
        return 0

    cdef int _apply_several(self, int kind, list held, cause) except -1:
        cdef dict ranges = {}
        cdef dict freed = release_held(held, acknowledged=kind == SETTLE)
        for holder, first, stop in held:
            ranges.setdefault((<LeaseHolder>holder).queue, []).append((first, stop))
        for queue, of_queue in ranges.items():
            if kind == SETTLE:
                queue.settle(of_queue)
            else:
                give_back(queue, kind, of_queue, cause)
        if self.consumers:
            self._wake(freed, sum(freed.values()))
        return 0

    def release_credit(self, list held):
        """Release the credit of acknowledged deliveries that their queues have settled already."""
        freed = release_held(held, acknowledged=True)
        if self.consumers:
            self._wake(freed, sum(freed.values()))

    cdef int _wake(self, holders, Py_ssize_t freed) except -1:
        """Wake holders with new credit, or all consumers if the shared prefetch had run out.

        `freed`: deliveries that they hold no longer.
        """
        if self.prefetch and self.in_flight + freed >= self.prefetch:
            self.wake_consumers()  # there was nothing left of what they share
        else:
            for holder in holders:
                (<LeaseHolder>holder).wake()
        return 0


def release_held(list held, *, bint acknowledged):
    """Release the credit of settled deliveries, summed by holder. Returns the sums."""
    cdef dict freed = {}
    for holder, first, stop in held:
        freed[holder] = freed.get(holder, 0) + stop - first
    for holder, count in freed.items():
        (<LeaseHolder>holder).release(count)
        if acknowledged:
            (<LeaseHolder>holder).counted.add_all(_ACK, count)
    return freed


cdef int give_back(queue, int kind, list ranges, cause) except -1:
    """Return or discard ranges of unsettled records in a queue."""
    if kind & RETURN:
        queue.return_(ranges, failed=bool(kind & REJECT), cause=cause)
    else:
        queue.discard(ranges)
    return 0


cdef object unknown_tag(int kind, tag):
    """Build the 406 for a delivery tag that is not outstanding."""
    error = ChannelError(406, f"unknown delivery tag {tag}")
    if kind & REJECT:
        error.method_ids = BASIC_REJECT
    else:
        error.method_ids = BASIC_ACK if kind == SETTLE else BASIC_NACK
    return error
