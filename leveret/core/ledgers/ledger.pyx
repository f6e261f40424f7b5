"""Ledger: delivery state of a queue; offsets that are neither ready nor leased are settled.

Compiled because delivery of single messages calls it four times for each: in Python that cost 750
ns, as much as all the rest of the queue state, and costs 170 ns now (`bench/queue_state.py`).
"""

from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet, range_at


# Ranges kept in `came_back`: 1 MB. With more, the reader must scan everything.
CAME_BACK_MAX = 65536
cdef Py_ssize_t _CAME_BACK_MAX = CAME_BACK_MAX


cdef RangeSet noted(RangeSet came_back, uint64_t first, uint64_t stop):
    """Add [first, stop) to the set and return it; None if it became too large."""
    came_back.add(first, stop)
    return came_back if came_back.size <= _CAME_BACK_MAX else None


cdef tuple alike(RangeSet ready, Fresh fresh, uint64_t redelivered_stop, uint64_t limit, uint64_t end):
    """Return (runs, redelivered): the lowest ready offsets below `end` that are of one kind.

    At most `limit` offsets; the kind is whether they may have been delivered before.
    """
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
    """Ready offsets skipped by leases of higher ones, and so never delivered."""

    def __cinit__(self):
        self.offsets = None

    cdef int pass_over(self, RangeSet ready, uint64_t first, uint64_t stop) except -1:
        """Add the ready offsets in [first, stop), which a lease of higher ones skips."""
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
        """Whether offsets from `first` on may have been delivered; cuts `stop` to those alike."""
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
        """Remove [first, stop), which is delivered or no longer ready."""
        if self.offsets is not None:
            self.offsets.remove(first, stop)
            if self.offsets.size == 0:
                self.offsets = None
        return 0

    cdef void clear(self) noexcept:
        """Remove all: nothing is ready."""
        self.offsets = None


cdef class LedgerBase:
    """Base of every kind of ledger: what deliveries call of it, without going through Python."""

    cdef uint64_t count_ready(self) noexcept:
        """Return the number of ready offsets."""
        return 0

    @property
    def ready_count(self):
        return self.count_ready()

    cdef Run next_run(self, uint64_t limit) except *:
        """Return the next ready offsets in order of service, as `peek`."""
        raise NotImplementedError

    def peek(self, uint64_t limit):
        """Return (first, stop, redelivered): the next ready offsets, at most `limit`, all alike.

        They are either all redelivered or all not. Something must be ready, and `limit` at least 1.
        """
        cdef Run run = self.next_run(limit)
        return run.first, run.stop, run.redelivered

    cpdef commit(self, uint64_t stop):
        """Make offsets up to `stop` ready; `stop` must not decrease."""
        raise NotImplementedError

    cpdef lease(self, uint64_t first, uint64_t stop):
        """Lease [first, stop), which must be ready, for a delivery."""
        raise NotImplementedError

    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF:
        """Settle leased offsets. Returns their number."""
        raise NotImplementedError


cdef class Ledger(LedgerBase):
    """Delivery state; at first [first, committed) without `settled` is ready, nothing leased.

    Offsets below `redelivered_stop` may have been delivered by an earlier run. While `came_back` is
    a RangeSet, returned offsets are added to it; beyond CAME_BACK_MAX ranges it becomes None.
    """

    cdef readonly RangeSet ready
    cdef readonly RangeSet leased
    # Ready offsets below this one may have been delivered before, all others not: most leases are
    # taken in order, so that one number and a set of skipped offsets suffice.
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
        """Lowest ready offset, or None."""
        return self.ready.first

    cdef uint64_t count_ready(self) noexcept:
        return self.ready.count

    @property
    def leased_count(self):
        return self.leased.count

    @property
    def held_bytes(self):
        """Memory of the ranges, in bytes."""
        return self.ready.held_bytes + self.leased.held_bytes

    cpdef commit(self, uint64_t stop):
        assert stop >= self.committed, "the committed offset does not go back"
        self.ready.add(self.committed, stop)
        self.committed = stop

    cdef Run next_run(self, uint64_t limit) except *:
        cdef Run run
        assert self.ready.size and limit, "nothing is ready"
        run.first = range_at(self.ready, 0).first
        run.stop = range_at(self.ready, 0).stop
        run.redelivered = run.first < self.redelivered_stop
        if run.redelivered:
            run.stop = min(run.stop, self.redelivered_stop)
            run.redelivered = self.fresh.kind(run.first, &run.stop)
        if run.stop - run.first > limit:
            run.stop = run.first + limit
        return run

    def peek_runs(self, uint64_t limit, uint64_t end):
        """Return (runs, redelivered): as `peek`, of offsets below `end` that need not be adjacent.

        Runs are [(first, stop)], lowest first; the first begins where `peek` does, below `end`.
        """
        assert self.ready.size and limit, "nothing is ready"
        return alike(self.ready, self.fresh, self.redelivered_stop, limit, end)

    def ready_sets(self):
        """Return [(level, RangeSet)]: the ready offsets in order of service; here a single level.

        A level keeps its number. The sets are the ledger's own and must not be changed.
        """
        return [(0, self.ready)]

    def kind(self, uint64_t first, uint64_t stop):
        """Return (stop, redelivered): how far ready offsets from `first` on are of one kind."""
        cdef bint redelivered = first < self.redelivered_stop
        if redelivered:
            stop = min(stop, self.redelivered_stop)
            redelivered = self.fresh.kind(first, &stop)
        return stop, redelivered

    cpdef lease(self, uint64_t first, uint64_t stop):
        cdef uint64_t moved
        assert self.ready.size, "only ready offsets can be leased"
        if first > range_at(self.ready, 0).first:
            self.fresh.pass_over(self.ready, self.redelivered_stop, first)
        moved = self.ready.remove(first, stop)
        assert moved == stop - first, "only ready offsets can be leased"
        self.leased.add(first, stop)
        self.fresh.forget(first, stop)
        self.redelivered_stop = max(self.redelivered_stop, stop)

    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t first, stop, settled = 0
        for first, stop in ranges:
            self._end_lease(first, stop)
            settled += stop - first
        return settled

    def return_(self, ranges):
        """Make leased offsets ready again, in their old place, for redelivery."""
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
        """Drop the ready part of `ranges` and return it. Leased offsets stay leased."""
        cdef uint64_t first, stop
        cdef list lost = []
        for first, stop in ranges:
            lost += self.ready.gaps(first, stop).gaps(first, stop)
        for first, stop in lost:
            self.ready.remove(first, stop)
            self.fresh.forget(first, stop)
        return lost

    def withdraw(self, ranges):
        """Lease the ready part of `ranges` to no consumer, to be discarded. Returns it."""
        cdef uint64_t first, stop
        cdef list taken = self.lose(ranges)
        for first, stop in taken:
            self.leased.add(first, stop)
        return taken

    def next_ranges(self, uint64_t limit):
        """Return the ranges of the next `limit` offsets to be delivered, in order."""
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
        """Return the leased ranges of [first, stop)."""
        return list(self.leased.gaps(first, stop).gaps(first, stop))

    def ready_in(self, uint64_t first, uint64_t stop):
        """Return the ready ranges of [first, stop)."""
        return list(self.ready.gaps(first, stop).gaps(first, stop))

    def unsettled(self):
        """Return all ready and leased offsets, as a new RangeSet."""
        cdef RangeSet found = self.ready.copy()
        cdef uint64_t first, stop
        for first, stop in self.leased:
            found.add(first, stop)
        return found

    def purge(self):
        """Settle everything ready and return its ranges."""
        purged = list(self.ready)
        self.ready.clear()
        self.fresh.clear()
        return purged
