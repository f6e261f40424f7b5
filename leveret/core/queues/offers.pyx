"""Offer of a queue to one of its consumers, made for each run of deliveries."""

cimport cython


@cython.final
cdef class Deliver:
    """Offer of the offsets [first, stop) to `consumer`; all or none of them are redelivered.

    The consumer can take `limit` records. `is_partial`: it could take more than is offered, and
    more of the queue's `ready_count` records are ready, but not adjacent.
    """

    def __init__(self, consumer, uint64_t limit, tuple offered not None, uint64_t ready_count=0):
        """Create an offer; `offered` is (first, stop, redelivered), as returned by a ledger."""
        self.consumer = consumer
        self.limit = limit
        self.first, self.stop, self.redelivered = offered
        cdef uint64_t count = self.stop - self.first
        self.is_partial = count < ready_count and count < limit

    def cut(self, first, stop):
        """Return the offer restricted to [first, stop)."""
        return Deliver(self.consumer, self.limit, (first, stop, self.redelivered))


cdef Deliver offer_of(consumer, uint64_t limit, Run run, uint64_t ready_count):
    """Return the offer of a ledger's next offsets."""
    cdef Deliver offer = Deliver.__new__(Deliver)
    cdef uint64_t count = run.stop - run.first
    offer.consumer = consumer
    offer.limit = limit
    offer.first, offer.stop, offer.redelivered = run.first, run.stop, run.redelivered
    offer.is_partial = count < ready_count and count < limit
    return offer
