"""Offer of a queue to one of its consumers, made for each run of deliveries."""

cimport cython

from libc.stdint cimport uint64_t


@cython.final
cdef class Deliver:
    """Offer of the offsets [first, stop) to `consumer`; all or none of them are redelivered.

    The consumer can take `limit` records. `is_partial`: it could take more than is offered, and
    more of the queue's `ready_count` records are ready, but not adjacent.
    """

    cdef readonly object consumer
    cdef readonly object first
    cdef readonly object stop
    cdef readonly object redelivered
    cdef readonly object limit
    cdef readonly bint is_partial

    def __cinit__(self, consumer, limit, offered, ready_count=0):
        """Create an offer; `offered` is (first, stop, redelivered), as returned by a ledger."""
        self.consumer = consumer
        self.limit = limit
        self.first, self.stop, self.redelivered = <tuple?>offered
        cdef uint64_t count = self.stop - self.first
        self.is_partial = count < <uint64_t>ready_count and count < <uint64_t>limit

    def cut(self, first, stop):
        """Return the offer restricted to [first, stop)."""
        return Deliver(self.consumer, self.limit, (first, stop, self.redelivered))
