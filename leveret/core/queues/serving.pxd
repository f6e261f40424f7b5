from libc.stdint cimport int64_t, uint64_t

from leveret.core.ledgers.ledger cimport LedgerBase
from leveret.core.queues.offers cimport Deliver
from leveret.core.queues.service_line cimport ServiceLine


cdef class Serving:
    cdef public LedgerBase _ledger
    cdef public object _groups          # the ledger, if messages wait for others of their group
    cdef public dict acquired           # number of returns by offset
    cdef public object returns          # Returns, of which that is a part
    cdef public bint _single_active
    cdef public bint _by_priority
    # The consumer that is served, with `_single_active`.
    cdef readonly object active
    cdef bint active_waits              # it has no turn until it is woken
    # Whether, since the last delivery, a consumer was found to wait for shared capacity.
    cdef readonly bint is_held_up
    cdef bint exclusive                 # whether the only consumer is exclusive
    cdef list queued                    # ServiceLines, highest priority first; none is empty

    cdef uint64_t count_ready(self) noexcept
    cdef bint _has_next(self) except -1
    cpdef commit(self, uint64_t stop)
    cpdef next(self)
    cpdef Deliver credit(self, consumer, int64_t capacity)
    cdef Deliver offer(self, consumer, uint64_t capacity, uint64_t ready_count)
    cpdef deliver(self, Deliver offer, uint64_t stop)
    cpdef get(self)
    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF
    cpdef wake(self, consumer=*)
    cdef bint _is_handing_over(self) except -1
    cdef ServiceLine line_of(self, consumer)
    cdef ServiceLine line_for(self, priority)
