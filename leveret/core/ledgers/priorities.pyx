# distutils: language = c++
"""Ledger of a queue with priorities: higher ones are delivered first.

Has the methods of `Ledger`, and `index`: the priorities of a batch's records, which must be given
before they are committed; others have the default priority. Offsets left by an earlier run are not
ready at once: they are indexed and committed batch by batch.

Within a priority offsets are delivered in order. Returned offsets go back to their old place or,
with `returns_first`, are delivered before all others, in the order in which they were returned.
"""

from collections import deque

from libc.stdint cimport uint32_t, uint64_t
from libcpp.algorithm cimport sort
from libcpp.vector cimport vector

from leveret.core.ledgers.ledger cimport Fresh, LedgerBase, Run, alike, noted
from leveret.ports.contents cimport priority
from leveret.ports.ranges cimport Range, RangeSet, range_at
from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, HAS_PRIORITY, RecordView


cdef struct Indexed:
    uint64_t first
    uint64_t stop
    int level


cdef bint _by_offset(const Indexed& one, const Indexed& other) noexcept nogil:
    return one.first < other.first


cdef class Level:
    """Delivery state of one priority."""

    cdef int priority
    cdef RangeSet ready
    cdef RangeSet leased
    cdef uint64_t redelivered_stop      # see Ledger
    cdef Fresh fresh


cdef class PriorityLedger(LedgerBase):
    """Delivery state with priorities. Nothing is ready at first; `settled` is up to `committed`."""

    cdef list levels                    # highest priority first; created on demand
    cdef int priority_max
    cdef int otherwise
    cdef vector[Indexed] indexed        # priorities of offsets not yet committed, in order
    cdef object returns                 # returned ranges in order; None without returns_first
    cdef RangeSet returned              # their offsets that are ready
    cdef RangeSet leased_again          # offsets delivered from them
    cdef RangeSet earlier               # settled in an earlier run
    cdef uint64_t earlier_stop
    cdef uint64_t first_redelivered_stop
    cdef public RangeSet came_back      # see Ledger
    cdef uint64_t in_ready              # number of ready offsets
    cdef readonly uint64_t leased_count

    def __cinit__(
        self, uint64_t first, uint64_t committed, RangeSet settled not None,
        uint64_t redelivered_stop=0, int priority_max=255, int otherwise=0, bint returns_first=False,
    ):
        self.levels = []
        self.priority_max = priority_max
        self.otherwise = min(otherwise, priority_max)
        self.returns = deque() if returns_first else None
        self.returned = RangeSet()
        self.leased_again = RangeSet()
        self.earlier = settled
        self.earlier_stop = committed
        self.first_redelivered_stop = redelivered_stop
        self.committed = min(first, committed)

    # ----- what it holds

    cdef uint64_t count_ready(self) noexcept:
        return self.in_ready

    @property
    def redelivered_stop(self):
        """Offset below which messages may have been delivered before."""
        cdef Level level
        cdef uint64_t found = self.first_redelivered_stop
        for level in self.levels:
            found = max(found, level.redelivered_stop)
        return found

    @property
    def first_ready(self):
        cdef Level level
        cdef uint64_t found = <uint64_t>-1
        if not self.in_ready:
            return None
        for level in self.levels:
            if level.ready.size:
                found = min(found, range_at(level.ready, 0).first)
        if self.returned.size:
            found = min(found, range_at(self.returned, 0).first)
        return found

    cdef list _ready_sets(self):
        return [(<Level>level).ready for level in self.levels] + [self.returned]

    @property
    def held_bytes(self):
        """Memory of the ranges, in bytes."""
        return sum([held.held_bytes for held in self._ready_sets() + self._leased_sets()])

    cdef list _leased_sets(self):
        return [(<Level>level).leased for level in self.levels] + [self.leased_again]

    def ready_in(self, uint64_t first, uint64_t stop):
        cdef list found = []
        for held in self._ready_sets():
            _overlap(held, first, stop, found)
        return found

    def leased_in(self, uint64_t first, uint64_t stop):
        cdef list found = []
        for held in self._leased_sets():
            _overlap(held, first, stop, found)
        return found

    def unsettled(self):
        cdef RangeSet found = RangeSet()
        cdef uint64_t first, stop
        for held in self._ready_sets() + self._leased_sets():
            for first, stop in held:
                found.add(first, stop)
        return found

    # ----- becoming ready

    def index(self, Batch batch not None):
        """Index the priorities of records that are not committed yet."""
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = batch.base_offset
        cdef Indexed* last = NULL
        cdef uint32_t i
        cdef int level
        cdef bint early = not self.indexed.empty() and self.indexed.back().first > offset
        if not <int>batch.features & HAS_PRIORITY:
            return
        for i in range(batch.count):
            position = batch.view(position, &record)
            level = self.otherwise
            if record.flags & HAS_PRIORITY:
                level = min(priority(&record, self.otherwise), self.priority_max)
            if last != NULL and last.level == level:
                last.stop += 1
            else:
                self.indexed.push_back(Indexed(offset, offset + 1, level))
                last = &self.indexed.back()
            offset += 1
        if early:   # the backlog of an earlier run is read while new records come in
            sort(self.indexed.begin(), self.indexed.end(), &_by_offset)

    def truncate(self, uint64_t offset):
        """Drop the uncommitted records from `offset` on, which are lost; offsets will be reused."""
        while not self.indexed.empty() and self.indexed.back().first >= offset:
            self.indexed.pop_back()
        if not self.indexed.empty():
            self.indexed.back().stop = min(self.indexed.back().stop, offset)

    cpdef commit(self, uint64_t stop):
        cdef uint64_t at = self.committed, end
        cdef size_t i = 0
        cdef Indexed* run
        assert stop >= self.committed, "the committed offset does not go back"
        while i < self.indexed.size() and self.indexed[i].first < stop:
            run = &self.indexed[i]
            if run.stop > at:
                self._enter(self.otherwise, at, max(run.first, at))
                end = min(run.stop, stop)
                self._enter(run.level, max(run.first, at), end)
                at = end
            if run.stop > stop:
                break
            i += 1
        self._enter(self.otherwise, at, stop)
        if i:
            self.indexed.erase(self.indexed.begin(), self.indexed.begin() + i)
        self.committed = stop
        if stop >= self.earlier_stop:
            self.earlier = None

    cdef int _enter(self, int priority, uint64_t first, uint64_t stop) except -1:
        cdef Level level
        cdef uint64_t low, high
        if first >= stop:
            return 0
        level = self._level(priority)
        if self.earlier is not None and first < self.earlier_stop:
            for low, high in self.earlier.gaps(first, min(stop, self.earlier_stop)):
                self.in_ready += level.ready.add(low, high)
            first = min(stop, self.earlier_stop)
        self.in_ready += level.ready.add(first, stop)
        return 0

    cdef Level _level(self, int priority):
        cdef Level level
        cdef Py_ssize_t i
        for i in range(len(self.levels)):
            level = self.levels[i]
            if level.priority == priority:
                return level
            if level.priority < priority:
                return self._new_level(i, priority)
        return self._new_level(len(self.levels), priority)

    cdef Level _new_level(self, Py_ssize_t i, int priority):
        cdef Level level = Level.__new__(Level)
        level.priority = priority
        level.ready = RangeSet()
        level.leased = RangeSet()
        level.redelivered_stop = self.first_redelivered_stop
        level.fresh = Fresh()
        self.levels.insert(i, level)
        return level

    # ----- being delivered

    cdef Run next_run(self, uint64_t limit) except *:
        cdef Level level
        cdef Run run
        assert self.in_ready and limit, "nothing is ready"
        if self.returned.size:
            run.first, run.stop = self.returns[0]
            run.redelivered = True
        else:
            level = self._top()
            run.first = range_at(level.ready, 0).first
            run.stop = range_at(level.ready, 0).stop
            run.redelivered = run.first < level.redelivered_stop
            if run.redelivered:
                run.stop = min(run.stop, level.redelivered_stop)
                run.redelivered = level.fresh.kind(run.first, &run.stop)
        run.stop = min(run.stop, run.first + limit)
        return run

    def peek_runs(self, uint64_t limit, uint64_t end):
        """Return (runs, redelivered) as Ledger: of one priority, or the first returned run."""
        cdef Level level
        cdef uint64_t first, stop
        assert self.in_ready and limit, "nothing is ready"
        if self.returned.size:
            first, stop = self.returns[0]
            return [(first, min(end, min(stop, first + limit)))], True
        level = self._top()
        return alike(level.ready, level.fresh, level.redelivered_stop, limit, end)

    def ready_sets(self):
        """Return [(level, RangeSet)] as Ledger.

        Offsets returned to be served first are level -1.
        """
        cdef list found = [(-1, self.returned)] if self.returned.size else []
        for level in self.levels:
            found.append(((<Level>level).priority, (<Level>level).ready))
        return found

    def kind(self, uint64_t first, uint64_t stop):
        cdef Level level
        cdef bint redelivered = True
        if self.returned.size and self.returned.overlap(first, first + 1):
            return min(stop, range_at(self.returned, self.returned._find(first)).stop), True
        for level in self.levels:
            if level.ready.overlap(first, first + 1):
                stop = min(stop, range_at(level.ready, level.ready._find(first)).stop)
                redelivered = first < level.redelivered_stop
                if redelivered:
                    stop = min(stop, level.redelivered_stop)
                    redelivered = level.fresh.kind(first, &stop)
                break
        return stop, redelivered

    cdef Level _top(self):
        """Return the highest level with a ready offset."""
        cdef Level level
        for level in self.levels:
            if level.ready.size:
                return level
        raise AssertionError("nothing is ready")

    cpdef lease(self, uint64_t first, uint64_t stop):
        """Lease [first, stop), which must be ready in one level, for a delivery."""
        cdef Level level
        cdef uint64_t moved
        if self.returned.size and self.returned.overlap(first, stop):
            moved = self._lease_again(first, stop)
        else:
            level = self._level_of(first)
            if first > range_at(level.ready, 0).first:
                level.fresh.pass_over(level.ready, level.redelivered_stop, first)
            moved = level.ready.remove(first, stop)
            level.leased.add(first, stop)
            level.fresh.forget(first, stop)
            level.redelivered_stop = max(level.redelivered_stop, stop)
        assert moved == stop - first, "only ready offsets can be leased"
        self.in_ready -= moved
        self.leased_count += moved

    cdef Level _level_of(self, uint64_t offset):
        """Return the level in which an offset is ready, searching the highest first."""
        cdef Level level
        for level in self.levels:
            if level.ready.size and level.ready.overlap(offset, offset + 1):
                return level
        raise AssertionError("only ready offsets can be leased")

    cdef uint64_t _lease_again(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF:
        """Lease returned offsets, mostly in the order of return."""
        cdef uint64_t first_returned, stop_returned, moved
        cdef list taken = []
        first_returned, stop_returned = self.returns[0]
        if first_returned != first or stop > stop_returned:
            self._take_returned(first, stop, taken)
            moved = sum([part[1] - part[0] for part in taken])
        else:
            self.returns.popleft()
            if stop < stop_returned:
                self.returns.appendleft((stop, stop_returned))
            moved = self.returned.remove(first, stop)
        self.leased_again.add(first, stop)
        return moved

    def next_ranges(self, uint64_t limit):
        cdef list found = []
        cdef uint64_t first, stop
        if self.returned.size:
            for first, stop in self.returns:
                if limit:
                    found.append((first, min(stop, first + limit)))
                    limit -= min(limit, stop - first)
        for level in self.levels:
            for first, stop in (<Level>level).ready:
                if not limit:
                    return found
                found.append((first, min(stop, first + limit)))
                limit -= min(limit, stop - first)
        return found

    # ----- the end of a lease

    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t first, stop, settled = 0
        for first, stop in ranges:
            self._end_lease(first, stop, None)
            settled += stop - first
        return settled

    def return_(self, ranges):
        cdef uint64_t first, stop
        for first, stop in ranges:
            self._end_lease(first, stop, True)
            if self.returns is not None:
                self.returns.append((first, stop))
                self.returned.add(first, stop)
            if self.came_back is not None:
                self.came_back = noted(self.came_back, first, stop)
            self.in_ready += stop - first

    cdef int _end_lease(self, uint64_t first, uint64_t stop, returned) except -1:
        """Remove [first, stop) from the leased offsets; if `returned`, make it ready again."""
        cdef Level level
        cdef list parts = []
        cdef uint64_t low, high, ended = self.leased_again.remove(first, stop)
        for level in self.levels:
            if ended == stop - first:
                break
            if returned is None or self.returns is not None:
                ended += level.leased.remove(first, stop)
                continue
            parts.clear()
            _overlap(level.leased, first, stop, parts)
            for low, high in parts:
                ended += level.leased.remove(low, high)
                level.ready.add(low, high)
        assert first < stop and ended == stop - first, "only leased offsets can be settled or returned"
        self.leased_count -= ended
        return 0

    # ----- out of turn

    def withdraw(self, ranges):
        """Lease the ready part of `ranges` to no consumer, and return it.

        If requeued, it counts as delivered before.
        """
        cdef Level level
        cdef uint64_t first, stop
        cdef list taken = [], parts = []
        for first, stop in ranges:
            for level in self.levels:
                parts.clear()
                _take(level.ready, first, stop, parts)
                level.fresh.forget(first, stop)
                for part in parts:
                    level.leased.add(part[0], part[1])
                taken += parts
            parts.clear()
            self._take_returned(first, stop, parts)
            for part in parts:
                self.leased_again.add(part[0], part[1])
            taken += parts
        for first, stop in taken:
            self.in_ready -= stop - first
            self.leased_count += stop - first
        return taken

    def lose(self, ranges):
        cdef Level level
        cdef uint64_t first, stop
        cdef list lost = []
        for first, stop in ranges:
            for level in self.levels:
                _take(level.ready, first, stop, lost)
                level.fresh.forget(first, stop)
            self._take_returned(first, stop, lost)
        for first, stop in lost:
            self.in_ready -= stop - first
        return lost

    cdef int _take_returned(self, uint64_t first, uint64_t stop, list taken) except -1:
        cdef uint64_t low, high
        if not _take(self.returned, first, stop, taken):
            return 0
        kept = deque()
        for low, high in self.returns:
            if low < min(high, first):
                kept.append((low, min(high, first)))
            if max(low, stop) < high:
                kept.append((max(low, stop), high))
        self.returns = kept
        return 0

    def purge(self):
        cdef list purged = []
        for held in self._ready_sets():
            purged += held
            held.clear()
        for level in self.levels:
            (<Level>level).fresh.clear()
        if self.returns is not None:
            self.returns.clear()
        self.in_ready = 0
        return purged


cdef int _overlap(RangeSet held, uint64_t first, uint64_t stop, list found) except -1:
    """Append the ranges of [first, stop) that are in `held` to `found`."""
    cdef Py_ssize_t i = held._find(first)
    cdef Range* item
    while i < held.size and range_at(held, i).first < stop:
        item = range_at(held, i)
        found.append((max(first, item.first), min(stop, item.stop)))
        i += 1
    return 0


cdef uint64_t _take(RangeSet held, uint64_t first, uint64_t stop, list taken) except? 0xFFFFFFFFFFFFFFFF:
    """Move the ranges of [first, stop) in `held` to `taken`. Returns the number of offsets."""
    _overlap(held, first, stop, taken)
    return held.remove(first, stop)
