"""Which offsets of a queue are ready and which are leased; what is neither, is settled.

Compiled because one-by-one delivery touches it three times for each message: in Python a lease
cost twice what the rest of the queue machine does (`bench/queue_machine.py`).
"""

from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet


cdef class Ledger:
    """Ready at first: [first, committed) without `settled`; nothing is leased.

    Offsets below `redelivered_stop` may have been delivered by an earlier run.
    """

    cdef readonly RangeSet ready
    cdef readonly RangeSet leased
    cdef RangeSet returned          # those of `ready` that may have been delivered before
    cdef readonly uint64_t committed
    cdef readonly uint64_t redelivered_stop

    def __cinit__(
        self, uint64_t first, uint64_t committed, RangeSet settled, uint64_t redelivered_stop=0
    ):
        self.ready = settled.gaps(first, committed)
        self.leased = RangeSet()
        self.returned = settled.gaps(first, min(committed, redelivered_stop))
        self.committed = committed
        self.redelivered_stop = redelivered_stop

    @property
    def ready_count(self):
        return self.ready.count

    @property
    def leased_count(self):
        return self.leased.count

    def commit(self, uint64_t stop):
        """Offsets up to `stop` are ready. The committed offset does not go back."""
        assert stop >= self.committed, "the committed offset does not go back"
        self.ready.add(self.committed, stop)
        # A log that knows less after a crash than was delivered before it catches up only later.
        self.returned.add(self.committed, min(stop, self.redelivered_stop))
        self.committed = stop

    def peek(self, uint64_t limit):
        """(first, stop, redelivered): the lowest ready offsets, at most `limit`, all of one kind.

        Something must be ready and `limit` be at least 1.
        """
        cdef uint64_t first, stop
        cdef bint redelivered = False
        assert self.ready.size and limit, "nothing is ready"
        first = self.ready.ranges[0].first
        stop = self.ready.ranges[0].stop
        if self.returned.size:
            redelivered = self.returned.ranges[0].first == first
            if redelivered:
                stop = self.returned.ranges[0].stop
            else:
                stop = min(stop, self.returned.ranges[0].first)
        if stop - first > limit:
            stop = first + limit
        return first, stop, redelivered

    def lease(self, uint64_t first, uint64_t stop):
        """[first, stop), all of it ready, is being delivered."""
        cdef uint64_t moved = self.ready.remove(first, stop)
        assert moved == stop - first, "only ready offsets can be leased"
        self.leased.add(first, stop)
        if self.returned.size:
            self.returned.remove(first, stop)

    def settle(self, ranges):
        """Leased offsets are done with. Returns how many."""
        cdef uint64_t first, stop, settled = 0
        for first, stop in ranges:
            self._end_lease(first, stop)
            settled += stop - first
        return settled

    def return_(self, ranges):
        """Leased offsets are ready again, in their old place, and will be redelivered."""
        cdef uint64_t first, stop
        for first, stop in ranges:
            self._end_lease(first, stop)
            self.ready.add(first, stop)
            self.returned.add(first, stop)

    cdef int _end_lease(self, uint64_t first, uint64_t stop) except -1:
        cdef uint64_t moved = self.leased.remove(first, stop)
        assert moved == stop - first, "only leased offsets can be settled or returned"
        return 0

    def purge(self):
        """Everything ready is settled; returns its ranges."""
        purged = list(self.ready)
        self.ready.clear()
        self.returned.clear()
        return purged
