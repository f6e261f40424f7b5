"""Sets of offsets as sorted, disjoint, non-adjacent half-open ranges.

Ledgers, settlements and checkpoints all speak in ranges, so that their cost follows the number of
holes and not the number of messages. One contiguous array of (first, stop) pairs: a binary search
and a short memmove beat any tree for the few dozen ranges a queue really has; where hostile acks make
thousands, the shorter side moves.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove


cdef class RangeSet:
    """A mutable set of offsets. `count` is the number of offsets, `len()` the number of ranges."""

    def __cinit__(self, ranges=()):
        self.block = NULL
        self.ranges = NULL
        self.size = 0
        self.capacity = 0
        self.count = 0
        for first, stop in ranges:
            self.add(first, stop)

    def __dealloc__(self):
        free(self.block)

    def __len__(self):
        return self.size

    def __bool__(self):
        return self.size > 0

    def __iter__(self):
        cdef Py_ssize_t i = 0
        # The set may change between two steps: its size is asked each time, never trusted.
        while i < self.size:
            yield self.ranges[i].first, self.ranges[i].stop
            i += 1

    @property
    def held_bytes(self):
        """Memory that it has reserved for its ranges."""
        return (self.ranges - self.block + self.capacity) * sizeof(Range)

    def __contains__(self, offset):
        cdef uint64_t wanted = offset
        cdef Py_ssize_t i = self._find(wanted)
        return i < self.size and self.ranges[i].first <= wanted

    def __eq__(self, other):
        return isinstance(other, RangeSet) and list(self) == list(other)

    def __repr__(self):
        return f"RangeSet({list(self)!r})"

    cdef Py_ssize_t _find(self, uint64_t offset) noexcept:
        """Index of the first range that ends behind `offset`; `size` when there is none."""
        cdef Py_ssize_t low = 0, high = self.size, middle
        if high and self.ranges[high - 1].stop <= offset:
            return high
        while low < high:
            middle = (low + high) >> 1
            if self.ranges[middle].stop <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int _reserve(self, Py_ssize_t extra) except -1:
        """Make sure that `extra` more ranges fit behind the last."""
        cdef Py_ssize_t before = self.ranges - self.block
        if self.size + extra <= self.capacity:
            return 0
        if before >= extra and before >= self.size // 2:   # so often taken from the front: slide down
            memmove(self.block, self.ranges, self.size * sizeof(Range))
            self.ranges = self.block
            self.capacity += before
            return 0
        return self._move_to(max(self.size + extra, 2 * self.size, 8), 0)

    cdef int _reserve_before(self, Py_ssize_t extra) except -1:
        """Make sure that `extra` more ranges fit before the first."""
        cdef Py_ssize_t room
        if self.ranges - self.block >= extra:
            return 0
        room = 2 * (self.size + extra) + 8
        return self._move_to(room, (room - self.size) // 2)

    cdef int _move_to(self, Py_ssize_t room, Py_ssize_t before) except -1:
        """Move into a new block of `room` ranges, `before` of them left free in front."""
        cdef Range* block = <Range*>malloc(room * sizeof(Range))
        if block == NULL:
            raise MemoryError
        memcpy(block + before, self.ranges, self.size * sizeof(Range))
        free(self.block)
        self.block = block
        self.ranges = block + before
        self.capacity = room - before
        return 0

    cdef int _splice(self, Py_ssize_t at, Py_ssize_t removed, Range* put, Py_ssize_t added) except -1:
        """Replace `removed` ranges from index `at` by the `added` ones at `put`.

        Whichever side is shorter moves: settling from either end costs the same however many holes
        a consumer that acknowledges out of order has left.
        """
        cdef Py_ssize_t change = added - removed
        cdef Py_ssize_t behind = self.size - at - removed
        if change and at < behind:
            self._reserve_before(change)
            memmove(self.ranges - change, self.ranges, at * sizeof(Range))
            self.ranges -= change
            self.capacity += change
        elif change:
            self._reserve(change)
            memmove(
                &self.ranges[at + added], &self.ranges[at + removed], behind * sizeof(Range)
            )
        memcpy(&self.ranges[at], put, added * sizeof(Range))
        self.size += change
        return 0

    cpdef uint64_t add(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF:
        """Put [first, stop) in. Returns how many offsets were new."""
        cdef Py_ssize_t i, j
        cdef uint64_t covered = 0
        cdef Range merged
        if first >= stop:
            return 0
        # Ranges that overlap or touch [first, stop) melt into one.
        i = self._find(first - 1) if first else 0
        merged.first = first
        merged.stop = stop
        j = i
        while j < self.size and self.ranges[j].first <= stop:
            covered += self.ranges[j].stop - self.ranges[j].first
            merged.first = min(merged.first, self.ranges[j].first)
            merged.stop = max(merged.stop, self.ranges[j].stop)
            j += 1
        self._splice(i, j - i, &merged, 1)
        self.count += (merged.stop - merged.first) - covered
        return (merged.stop - merged.first) - covered

    def add_all(self, ranges):
        """Put many ranges in: one pass over the set however many they are, and wherever they lie."""
        cdef RangeSet added = RangeSet()
        cdef uint64_t first, stop
        cdef Py_ssize_t i = 0, j = 0, size = 0
        cdef Range item
        cdef Range* block
        for first, stop in sorted(ranges):
            added.add(first, stop)
        if added.size == 0:
            return
        block = <Range*>malloc((self.size + added.size) * sizeof(Range))
        if block == NULL:
            raise MemoryError
        self.count = 0
        while i < self.size or j < added.size:
            if j == added.size or (i < self.size and self.ranges[i].first <= added.ranges[j].first):
                item = self.ranges[i]
                i += 1
            else:
                item = added.ranges[j]
                j += 1
            if size and item.first <= block[size - 1].stop:
                if item.stop > block[size - 1].stop:
                    self.count += item.stop - block[size - 1].stop
                    block[size - 1].stop = item.stop
            else:
                block[size] = item
                self.count += item.stop - item.first
                size += 1
        free(self.block)
        self.block = self.ranges = block
        self.capacity = self.size + added.size
        self.size = size

    cpdef uint64_t remove(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF:
        """Take [first, stop) out. Returns how many offsets had been in."""
        cdef Py_ssize_t i, j, kept = 0
        cdef uint64_t removed = 0, low, high
        cdef Range rest[2]
        if first >= stop:
            return 0
        i = self._find(first)
        j = i
        while j < self.size and self.ranges[j].first < stop:
            low = max(first, self.ranges[j].first)
            high = min(stop, self.ranges[j].stop)
            removed += high - low
            if self.ranges[j].first < first:
                rest[kept].first = self.ranges[j].first
                rest[kept].stop = first
                kept += 1
            if self.ranges[j].stop > stop:
                rest[kept].first = stop
                rest[kept].stop = self.ranges[j].stop
                kept += 1
            j += 1
        if j > i:
            self._splice(i, j - i, rest, kept)
            self.count -= removed
        return removed

    def contains(self, uint64_t first, uint64_t stop):
        """Whether every offset of [first, stop) is in."""
        cdef Py_ssize_t i
        if first >= stop:
            return True
        i = self._find(first)
        return i < self.size and self.ranges[i].first <= first and self.ranges[i].stop >= stop

    def overlap(self, uint64_t first, uint64_t stop):
        """How many offsets of [first, stop) are in."""
        cdef Py_ssize_t i = self._find(first)
        cdef uint64_t found = 0
        if first >= stop:
            return 0
        while i < self.size and self.ranges[i].first < stop:
            found += min(stop, self.ranges[i].stop) - max(first, self.ranges[i].first)
            i += 1
        return found

    def first_from(self, uint64_t offset):
        """The lowest offset that is not below this one, or None."""
        cdef Py_ssize_t i = self._find(offset)
        return max(offset, self.ranges[i].first) if i < self.size else None

    def take_first(self, uint64_t limit):
        """Remove and return the lowest range, cut to `limit` offsets: (first, stop), or None."""
        cdef uint64_t first, stop
        if self.size == 0 or limit == 0:
            return None
        first = self.ranges[0].first
        stop = self.ranges[0].stop
        if stop - first > limit:
            stop = first + limit
            self.ranges[0].first = stop
            self.count -= limit
        else:
            self.count -= stop - first
            self._splice(0, 1, NULL, 0)
        return first, stop

    def gaps(self, uint64_t first, uint64_t stop):
        """The ranges of [first, stop) that are not in, as a new RangeSet."""
        cdef RangeSet missing = RangeSet()
        cdef Py_ssize_t i = self._find(first)
        while i < self.size and self.ranges[i].first < stop:
            if first < self.ranges[i].first:
                missing.add(first, self.ranges[i].first)
            first = max(first, self.ranges[i].stop)
            i += 1
        if first < stop:
            missing.add(first, stop)
        return missing

    @property
    def first(self):
        """The lowest offset, or None when the set is empty."""
        return self.ranges[0].first if self.size else None

    @property
    def stop(self):
        """One past the highest offset, or None when the set is empty."""
        return self.ranges[self.size - 1].stop if self.size else None

    def copy(self):
        """An independent copy."""
        return RangeSet(self)

    def clear(self):
        """Remove everything; the array is given back."""
        free(self.block)
        self.block = NULL
        self.ranges = NULL
        self.size = 0
        self.capacity = 0
        self.count = 0

    def to_bytes(self):
        """Little-endian (first, stop) pairs of 64 bits each: the form in control batches and checkpoints."""
        return (<char*>self.ranges)[: self.size * sizeof(Range)] if self.size else b""

    @staticmethod
    def from_bytes(const unsigned char[::1] data):
        """The set that `to_bytes` wrote. Raises ValueError on a length or an order it cannot have."""
        cdef RangeSet made = RangeSet()
        cdef Py_ssize_t i, n = data.shape[0] // sizeof(Range)
        cdef Range item
        cdef uint64_t before = 0
        if data.shape[0] % sizeof(Range):
            raise ValueError("a range set is pairs of 64-bit numbers")
        made._reserve(n)
        for i in range(n):
            memcpy(&item, &data[i * sizeof(Range)], sizeof(Range))
            if item.first >= item.stop or (i and item.first <= before):
                raise ValueError("ranges are sorted, disjoint and not empty")
            before = item.stop
            made.ranges[i] = item
            made.count += item.stop - item.first
        made.size = n
        return made
