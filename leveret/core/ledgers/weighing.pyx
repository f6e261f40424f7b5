"""Ledger that also counts the ready bytes, for queues with a limit in bytes.

Compiled as the other ledgers, so that the state of a queue calls each of them without Python.
"""

from libc.stdint cimport int64_t, uint64_t

from leveret.core.ledgers.ledger cimport LedgerBase, Run


cdef class WeighedLedger(LedgerBase):
    """Wrapper of a ledger that tracks the bytes of ready records; it has all methods of the ledger.

    Records unknown to `sizes` count as 0: call `weigh` when sizes of ready records were added.
    """

    cdef readonly LedgerBase inner
    cdef object sizes                   # BodySizes
    cdef readonly int64_t ready_bytes

    def __init__(self, LedgerBase ledger not None, sizes):
        self.inner = ledger
        self.sizes = sizes
        self.committed = ledger.committed
        self.weigh()

    def __getattr__(self, name):
        """Return what the bytes do not matter to from the ledger."""
        return getattr(self.inner, name)

    def weigh(self):
        """Recount the bytes of all ready records."""
        self.ready_bytes = self._total(self.inner.ready_in(0, self.committed))

    cdef int64_t _total(self, ranges) except? -1:
        cdef int64_t found = 0
        for first, stop in ranges:
            found += self.sizes.total(first, stop)
        return found

    cdef uint64_t count_ready(self) noexcept:
        return self.inner.count_ready()

    @property
    def held_bytes(self):
        """Memory of ranges and sizes, in bytes."""
        return self.inner.held_bytes + self.sizes.held_bytes

    @property
    def came_back(self):
        """Returned ranges since it was set, as in Ledger."""
        return self.inner.came_back

    @came_back.setter
    def came_back(self, ranges):
        self.inner.came_back = ranges

    cpdef commit(self, uint64_t stop):
        cdef uint64_t first = self.committed
        self.inner.commit(stop)
        self.committed = stop
        self.ready_bytes += self._total(self.inner.ready_in(first, stop))

    cdef Run next_run(self, uint64_t limit) except *:
        return self.inner.next_run(limit)

    cpdef lease(self, uint64_t first, uint64_t stop):
        self.inner.lease(first, stop)
        self.ready_bytes -= <int64_t>self.sizes.total(first, stop)

    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF:
        cdef list settled = list(ranges)
        for first, stop in settled:
            self.sizes.forget(first, stop)
        return self.inner.settle(settled)

    def return_(self, ranges):
        """Make leased offsets ready again, for redelivery."""
        cdef list returned = list(ranges)
        self.inner.return_(returned)
        self.ready_bytes += self._total(returned)

    def withdraw(self, ranges):
        """Lease the ready part of `ranges` to no consumer, to be discarded. Returns it."""
        taken = self.inner.withdraw(ranges)
        self.ready_bytes -= self._total(taken)
        return taken

    def lose(self, ranges):
        """Drop the ready part of `ranges` and return it."""
        return self._leave(self.inner.lose(ranges))

    def purge(self):
        """Settle everything ready and return its ranges."""
        return self._leave(self.inner.purge())

    cdef list _leave(self, list ranges):
        self.ready_bytes -= self._total(ranges)
        for first, stop in ranges:
            self.sizes.forget(first, stop)
        return ranges
