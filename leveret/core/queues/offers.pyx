"""What a queue proposes to one of its consumers; made for each run of deliveries."""


cdef class Deliver:
    """Send the offsets [first, stop) to `consumer`; all of them are redelivered or none is.

    The consumer has room for `limit` records: more may be sent where the next ones lie apart.
    """

    cdef readonly object consumer
    cdef readonly object first
    cdef readonly object stop
    cdef readonly object redelivered
    cdef readonly object limit

    def __cinit__(self, consumer, limit, offered):
        """`offered` is (first, stop, redelivered), as a ledger says it."""
        self.consumer = consumer
        self.limit = limit
        self.first, self.stop, self.redelivered = <tuple?>offered

    def cut(self, first, stop):
        """The same of fewer offsets."""
        return Deliver(self.consumer, self.limit, (first, stop, self.redelivered))
