"""Which offsets of a queue are ready and which are leased; what is neither, is settled.

Compiled because one-by-one delivery touches it four times for each message: in Python that cost
750 ns, as much as all the rest of the queue machine, and costs 170 ns now
(`bench/queue_machine.py`).
"""

from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet, range_at


# Ranges that are noted for whoever looks at them again: 1 MB. With more, he looks at everything.
CAME_BACK_MAX = 65536
cdef Py_ssize_t _CAME_BACK_MAX = CAME_BACK_MAX


cdef RangeSet noted(RangeSet came_back, uint64_t first, uint64_t stop):
    """The set with [first, stop) in it; None where that is too much."""
    came_back.add(first, stop)
    return came_back if came_back.size <= _CAME_BACK_MAX else None


cdef tuple alike(RangeSet ready, Fresh fresh, uint64_t redelivered_stop, uint64_t limit, uint64_t end):
    """(runs, redelivered): the lowest of `ready` below `end`, at most `limit`, as far as all are of one kind."""
    cdef list runs = []
    cdef Py_ssize_t i
    cdef uint64_t first, stop, whole
    cdef bint redelivered = False, again
    for i in range(ready.size):
        first = range_at(ready, i).first
        whole = stop = min(range_at(ready, i).stop, end)
        if first >= end or not limit:
            break
        again = first < redelivered_stop
        if again:
            stop = min(stop, redelivered_stop)
            again = fresh.kind(first, &stop)
        if not runs:
            redelivered = again
        elif again != redelivered:
            break
        if stop - first > limit:
            stop = first + limit
        runs.append((first, stop))
        limit -= stop - first
        if stop < whole:
            break
    return runs, redelivered


cdef class Fresh:
    """Ready offsets that were passed over by leases of higher ones: they were never delivered."""

    def __cinit__(self):
        self.offsets = None

    cdef int pass_over(self, RangeSet ready, uint64_t first, uint64_t stop) except -1:
        """What is ready in [first, stop) was not delivered, and what lies behind it is."""
        cdef Py_ssize_t i
        if first >= stop:
            return 0
        if self.offsets is None:
            self.offsets = RangeSet()
        i = ready._find(first)
        while i < ready.size and range_at(ready, i).first < stop:
            self.offsets.add(max(first, range_at(ready, i).first), min(stop, range_at(ready, i).stop))
            i += 1
        return 0

    cdef bint kind(self, uint64_t first, uint64_t* stop) noexcept:
        """Whether the offsets from `first` on may have been delivered; `stop` is cut to those alike."""
        cdef Py_ssize_t i
        if self.offsets is None:
            return True
        i = self.offsets._find(first)
        if i == self.offsets.size:
            return True
        if range_at(self.offsets, i).first <= first:
            stop[0] = min(stop[0], range_at(self.offsets, i).stop)
            return False
        stop[0] = min(stop[0], range_at(self.offsets, i).first)
        return True

    cdef int forget(self, uint64_t first, uint64_t stop) except -1:
        """[first, stop) is delivered now, or gone."""
        if self.offsets is not None:
            self.offsets.remove(first, stop)
            if self.offsets.size == 0:
                self.offsets = None
        return 0

    cdef void clear(self) noexcept:
        """Nothing is ready."""
        self.offsets = None


cdef class Ledger:
    """Ready at first: [first, committed) without `settled`; nothing is leased.

    Offsets below `redelivered_stop` may have been delivered by an earlier run. While `came_back` is a
    RangeSet, what becomes ready again is added to it; beyond CAME_BACK_MAX ranges it is given up (None).
    """

    cdef readonly RangeSet ready
    cdef readonly RangeSet leased
    cdef readonly uint64_t committed
    # Ready offsets below this one may have been delivered before, all others were not: most leases are
    # taken in order, so that one number says it, and a set what was passed over.
    cdef readonly uint64_t redelivered_stop
    cdef Fresh fresh
    cdef public RangeSet came_back

    def __cinit__(
        self, uint64_t first, uint64_t committed, RangeSet settled, uint64_t redelivered_stop=0
    ):
        self.ready = settled.gaps(first, committed)
        self.leased = RangeSet()
        self.committed = committed
        self.redelivered_stop = redelivered_stop
        self.fresh = Fresh()

    @property
    def first_ready(self):
        """The lowest ready offset; None when nothing is ready."""
        return self.ready.first

    @property
    def ready_count(self):
        return self.ready.count

    @property
    def leased_count(self):
        return self.leased.count

    @property
    def held_bytes(self):
        """Memory that its ranges take."""
        return self.ready.held_bytes + self.leased.held_bytes

    def commit(self, uint64_t stop):
        """Offsets up to `stop` are ready. The committed offset does not go back."""
        assert stop >= self.committed, "the committed offset does not go back"
        self.ready.add(self.committed, stop)
        self.committed = stop

    def peek(self, uint64_t limit):
        """(first, stop, redelivered): the lowest ready offsets, at most `limit`, all of one kind.

        Something must be ready and `limit` be at least 1.
        """
        cdef uint64_t first, stop
        cdef bint redelivered
        assert self.ready.size and limit, "nothing is ready"
        first = range_at(self.ready, 0).first
        stop = range_at(self.ready, 0).stop
        redelivered = first < self.redelivered_stop
        if redelivered:
            stop = min(stop, self.redelivered_stop)
            redelivered = self.fresh.kind(first, &stop)
        if stop - first > limit:
            stop = first + limit
        return first, stop, redelivered

    def peek_runs(self, uint64_t limit, uint64_t end):
        """(runs, redelivered): as `peek`, of offsets below `end` that need not lie together.

        Runs are [(first, stop)], lowest first; the first begins where `peek` does, below `end`.
        """
        assert self.ready.size and limit, "nothing is ready"
        return alike(self.ready, self.fresh, self.redelivered_stop, limit, end)

    def ready_sets(self):
        """[(level, RangeSet)]: what is ready, in the order in which levels are served; here is one.

        Levels keep their numbers. The sets are the ledger's own: look, and change nothing.
        """
        return [(0, self.ready)]

    def kind(self, uint64_t first, uint64_t stop):
        """(stop, redelivered): how far the ready offsets from `first` on are all of one kind."""
        cdef bint redelivered = first < self.redelivered_stop
        if redelivered:
            stop = min(stop, self.redelivered_stop)
            redelivered = self.fresh.kind(first, &stop)
        return stop, redelivered

    def lease(self, uint64_t first, uint64_t stop):
        """[first, stop), which is ready, is being delivered."""
        cdef uint64_t moved
        assert self.ready.size, "only ready offsets can be leased"
        if first > range_at(self.ready, 0).first:
            self.fresh.pass_over(self.ready, self.redelivered_stop, first)
        moved = self.ready.remove(first, stop)
        assert moved == stop - first, "only ready offsets can be leased"
        self.leased.add(first, stop)
        self.fresh.forget(first, stop)
        self.redelivered_stop = max(self.redelivered_stop, stop)

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
            if self.came_back is not None:
                self.came_back = noted(self.came_back, first, stop)

    cdef int _end_lease(self, uint64_t first, uint64_t stop) except -1:
        cdef uint64_t moved = self.leased.remove(first, stop)
        assert moved == stop - first, "only leased offsets can be settled or returned"
        return 0

    def lose(self, ranges):
        """What of `ranges` is ready is given up; returns its ranges. What is leased stays leased."""
        cdef uint64_t first, stop
        cdef list lost = []
        for first, stop in ranges:
            lost += self.ready.gaps(first, stop).gaps(first, stop)
        for first, stop in lost:
            self.ready.remove(first, stop)
            self.fresh.forget(first, stop)
        return lost

    def withdraw(self, ranges):
        """What of `ranges` is ready is leased without being delivered: it is to be given up.

        Returns its ranges.
        """
        cdef uint64_t first, stop
        cdef list taken = self.lose(ranges)
        for first, stop in taken:
            self.leased.add(first, stop)
        return taken

    def next_ranges(self, uint64_t limit):
        """The `limit` offsets that would be delivered next, or all there are: their ranges in order."""
        cdef list found = []
        cdef Py_ssize_t i = 0
        cdef uint64_t length
        while i < self.ready.size and limit:
            length = min(limit, range_at(self.ready, i).stop - range_at(self.ready, i).first)
            found.append((range_at(self.ready, i).first, range_at(self.ready, i).first + length))
            limit -= length
            i += 1
        return found

    def leased_in(self, uint64_t first, uint64_t stop):
        """The ranges of [first, stop) that are leased."""
        return list(self.leased.gaps(first, stop).gaps(first, stop))

    def ready_in(self, uint64_t first, uint64_t stop):
        """The ranges of [first, stop) that are ready."""
        return list(self.ready.gaps(first, stop).gaps(first, stop))

    def unsettled(self):
        """All offsets, ready or leased, as a new RangeSet."""
        cdef RangeSet found = self.ready.copy()
        cdef uint64_t first, stop
        for first, stop in self.leased:
            found.add(first, stop)
        return found

    def purge(self):
        """Everything ready is settled; returns its ranges."""
        purged = list(self.ready)
        self.ready.clear()
        self.fresh.clear()
        return purged
