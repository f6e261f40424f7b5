"""The offer of a queue to one of its consumers; made for each run of deliveries."""

from libc.stdint cimport uint64_t


cdef class Deliver:
    """Send the offsets [first, stop) to `consumer`; all of them are redelivered or none is.

    The consumer has room for `limit` records. `is_partial`: that is room for more than is offered,
    and more of the queue's `ready_count` records are ready, which lie apart.
    """

    cdef readonly object consumer
    cdef readonly object first
    cdef readonly object stop
    cdef readonly object redelivered
    cdef readonly object limit
    cdef readonly bint is_partial

    def __cinit__(self, consumer, limit, offered, ready_count=0):
        """`offered` is (first, stop, redelivered), as a ledger says it."""
        self.consumer = consumer
        self.limit = limit
        self.first, self.stop, self.redelivered = <tuple?>offered
        cdef uint64_t count = self.stop - self.first
        self.is_partial = count < <uint64_t>ready_count and count < <uint64_t>limit

    def cut(self, first, stop):
        """The same of fewer offsets."""
        return Deliver(self.consumer, self.limit, (first, stop, self.redelivered))
