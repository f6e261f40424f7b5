from libc.stdint cimport uint32_t, uint64_t

from leveret.core.logs.batching cimport Batching
from leveret.core.logs.window cimport WindowReader
from leveret.core.queues.offers cimport Deliver
from leveret.core.queues.serving cimport Serving


cdef class Delivering(Batching):
    cdef public Serving state
    cdef public WindowReader reader
    cdef public tuple _extensions
    cdef public tuple _ready_filters    # of these, what looks at records before they are delivered
    cdef public object _delivering      # the extension that delivers instead of the queue, or None
    cdef public uint32_t _noted         # flags of records that the state or an extension must see
    cdef public uint64_t _undone_stop   # records of undone atomic writes are below this offset
    cdef public bint is_restoring       # the backlog is being read: nothing is offered until then
    cdef public bint _is_paused
    cdef public bint _expires           # unless it is used

    cdef object _awaiting_extensions(self, waiter)
    cpdef next_offer(self)
    cpdef uint64_t deliver(self, Deliver offer, list batches) except? 0
    cpdef settle(self, ranges)
    cpdef _write_settled(self, ranges)
    cpdef wake(self, consumer=*)
