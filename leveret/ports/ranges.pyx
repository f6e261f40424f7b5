"""Sets of offsets as sorted, disjoint, non-adjacent half-open ranges.

Delivery state, settlements and checkpoints are kept as ranges, so that their cost follows the
number of holes, not the number of messages. One contiguous array of (first, stop) pairs: a binary
search and a short memmove of the shorter side beat any tree for the few dozen ranges a queue has.
If hostile acks make thousands, the array is split into blocks, and a change moves one block at most.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

# Limits in runs: the largest flat array, the smallest total kept in blocks, the largest block.
cdef Py_ssize_t FLAT_MAX = 4096
cdef Py_ssize_t BLOCKS_MIN = 1024
cdef Py_ssize_t BLOCK_MAX = 512
# `add_all` merges in one pass if the set has at most this many ranges per added one; else it
# searches.
cdef Py_ssize_t PASS_RANGES_MAX = 32


cdef class Runs:
    """Sorted runs; each begins with its first number and the one past its last (a Range).

    A run takes `width` bytes; all are in one array or in blocks. `size` is the number of runs,
    which are addressed by index. A pointer to a run is valid until the next change.
    """

    def __cinit__(self):
        self.width = sizeof(Range)
        self.size = self.capacity = 0
        self.room = self.flat = self.spare = NULL
        self.blocks = NULL
        self.block_count = self.block_room = self.recent = 0

    def __dealloc__(self):
        self._give_back()

    @property
    def held_bytes(self):
        """Memory reserved for the runs, in bytes."""
        cdef Py_ssize_t blocks = self.block_count + (self.spare != NULL)
        if self.blocks != NULL:
            return blocks * BLOCK_MAX * self.width + self.block_room * sizeof(Block)
        return (self.flat - self.room) + self.capacity * self.width

    # -- where runs are

    cdef Py_ssize_t _find(self, uint64_t offset) noexcept:
        """Return the index of the first run that ends after `offset`; `size` if there is none."""
        cdef Py_ssize_t low = 0, high = self.size, middle
        if self.blocks != NULL:
            return self._find_far(offset)
        if high and (<Range*>(self.flat + (high - 1) * self.width)).stop <= offset:
            return high
        if high and (<Range*>self.flat).stop > offset:
            return 0
        while low < high:
            middle = (low + high) >> 1
            if (<Range*>(self.flat + middle * self.width)).stop <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef Py_ssize_t _find_far(self, uint64_t offset) noexcept:
        cdef Py_ssize_t low = 0, high = self.block_count, middle
        cdef Block* block
        while low < high:
            middle = (low + high) >> 1
            block = &self.blocks[middle]
            if (<Range*>(block.runs + (block.size - 1) * self.width)).stop <= offset:
                low = middle + 1
            else:
                high = middle
        if low == self.block_count:
            return self.size
        self.recent = low
        block = &self.blocks[low]
        low = 0
        high = block.size
        while low < high:
            middle = (low + high) >> 1
            if (<Range*>(block.runs + middle * self.width)).stop <= offset:
                low = middle + 1
            else:
                high = middle
        return block.start - self.blocks[0].start + low

    cdef Py_ssize_t _block_of(self, Py_ssize_t i) noexcept:
        """Return the block that holds run `i`; the last block if `i` is past the last run."""
        cdef Py_ssize_t low, high, middle, wanted = i + self.blocks[0].start
        cdef Block* block = &self.blocks[self.recent]
        if block.start <= wanted < block.start + block.size:
            return self.recent
        low = 0
        high = self.block_count - 1
        while low < high:
            middle = (low + high) >> 1
            block = &self.blocks[middle]
            if block.start + block.size <= wanted:
                low = middle + 1
            else:
                high = middle
        self.recent = low
        return low

    cdef char* _far(self, Py_ssize_t i) noexcept:
        """Return a pointer to run `i`."""
        cdef Block* block
        if self.blocks == NULL:
            return self.flat + i * self.width
        block = &self.blocks[self._block_of(i)]
        return block.runs + (i + self.blocks[0].start - block.start) * self.width

    cdef void _copy_to(self, char* target) noexcept:
        """Copy all runs to `target`, in order."""
        cdef Py_ssize_t k
        if self.blocks == NULL:
            memcpy(target, self.flat, self.size * self.width)
            return
        for k in range(self.block_count):
            memcpy(target, self.blocks[k].runs, self.blocks[k].size * self.width)
            target += self.blocks[k].size * self.width

    # -- changes

    cdef int _splice(
        self, Py_ssize_t at, Py_ssize_t removed, void* put, Py_ssize_t added
    ) except -1:
        """Replace `removed` runs from index `at` by the few `added` ones at `put`."""
        if self.blocks == NULL:
            if self.size + added - removed <= FLAT_MAX:
                return self._splice_flat(at, removed, put, added)
            self._to_blocks()
        if added == removed == 1:
            memcpy(self._far(at), put, self.width)
            return 0
        if added:
            self._prepare_block()
        self._remove_far(at, removed)
        if added:
            self._insert_far(at, put, added)
        if self.size < BLOCKS_MIN:
            self._to_flat()
        return 0

    cdef int _splice_flat(
        self, Py_ssize_t at, Py_ssize_t removed, void* put, Py_ssize_t added
    ) except -1:
        """Replace runs in the flat array, moving the shorter side: both ends cost the same."""
        cdef Py_ssize_t change = added - removed
        cdef Py_ssize_t behind = self.size - at - removed
        cdef Py_ssize_t width = self.width
        if change and at < behind:
            self._reserve_before(change)
            memmove(self.flat - change * width, self.flat, at * width)
            self.flat -= change * width
            self.capacity += change
        elif change:
            if self.size + change > self.capacity:
                self._reserve(change)
            memmove(
                self.flat + (at + added) * width, self.flat + (at + removed) * width, behind * width
            )
        memcpy(self.flat + at * width, put, added * width)
        self.size += change
        return 0

    cdef int _reserve(self, Py_ssize_t extra) except -1:
        """Make room for `extra` more runs behind the last."""
        cdef Py_ssize_t before = (self.flat - self.room) // self.width
        if before >= extra and before >= self.size // 2:   # so often taken from the front: slide down
            memmove(self.room, self.flat, self.size * self.width)
            self.flat = self.room
            self.capacity += before
            return 0
        return self._move_to(max(self.size + extra, 2 * self.size, 8), 0)

    cdef int _reserve_before(self, Py_ssize_t extra) except -1:
        """Make room for `extra` more runs before the first."""
        cdef Py_ssize_t room
        if self.flat - self.room >= extra * self.width:
            return 0
        room = 2 * (self.size + extra) + 8
        return self._move_to(room, (room - self.size) // 2)

    cdef int _move_to(self, Py_ssize_t room, Py_ssize_t before) except -1:
        """Reallocate the array to `room` runs, `before` of them free in front."""
        cdef char* fresh = <char*>malloc(room * self.width)
        if fresh == NULL:
            raise MemoryError
        memcpy(fresh + before * self.width, self.flat, self.size * self.width)
        free(self.room)
        self.room = fresh
        self.flat = fresh + before * self.width
        self.capacity = room - before
        return 0

    # -- blocks

    cdef int _prepare_block(self) except -1:
        """Allocate what one more block needs, so that adding it cannot fail."""
        cdef Block* grown
        cdef Py_ssize_t room
        if self.spare == NULL:
            self.spare = <char*>malloc(BLOCK_MAX * self.width)
            if self.spare == NULL:
                raise MemoryError
        if self.block_count == self.block_room:
            room = max(2 * self.block_room, <Py_ssize_t>16)
            grown = <Block*>realloc(self.blocks, room * sizeof(Block))
            if grown == NULL:
                raise MemoryError
            self.blocks = grown
            self.block_room = room
        return 0

    cdef void _enter_block(self, Py_ssize_t k, Py_ssize_t start) noexcept:
        """Insert the spare block as block `k`."""
        memmove(&self.blocks[k + 1], &self.blocks[k], (self.block_count - k) * sizeof(Block))
        self.blocks[k].runs = self.spare
        self.blocks[k].size = 0
        self.blocks[k].start = start
        self.block_count += 1
        self.spare = NULL

    cdef void _leave_block(self, Py_ssize_t k) noexcept:
        """Remove an empty block; keep its memory as the spare one, or free it."""
        if self.spare == NULL:
            self.spare = self.blocks[k].runs
        else:
            free(self.blocks[k].runs)
        self.block_count -= 1
        memmove(&self.blocks[k], &self.blocks[k + 1], (self.block_count - k) * sizeof(Block))
        self.recent = 0

    cdef void _shift(self, Py_ssize_t k, Py_ssize_t change) noexcept:
        """Add `change` to the start index of all blocks behind block `k`."""
        for k in range(k + 1, self.block_count):
            self.blocks[k].start += change

    cdef void _remove_far(self, Py_ssize_t at, Py_ssize_t removed) noexcept:
        cdef Py_ssize_t k, place, part, width = self.width
        cdef Block* block
        while removed:
            k = self._block_of(at)
            block = &self.blocks[k]
            place = at + self.blocks[0].start - block.start
            part = min(removed, block.size - place)
            memmove(
                block.runs + place * width,
                block.runs + (place + part) * width,
                (block.size - place - part) * width,
            )
            block.size -= part
            self.size -= part
            removed -= part
            if k == 0:
                block.start += part     # the others keep their place relative to its new start
            else:
                self._shift(k, -part)
            if block.size == 0:
                self._leave_block(k)
            elif block.size < BLOCK_MAX // 4:
                self._unite(k)

    cdef void _unite(self, Py_ssize_t k) noexcept:
        """Merge a block with few runs into a neighbour, if the result leaves room to grow."""
        cdef Block* block
        cdef Block* after
        for k in (k, k - 1):
            if k < 0 or k + 1 >= self.block_count:
                continue
            block = &self.blocks[k]
            after = &self.blocks[k + 1]
            if block.size + after.size <= BLOCK_MAX // 2:
                memcpy(block.runs + block.size * self.width, after.runs, after.size * self.width)
                block.size += after.size
                self._leave_block(k + 1)
                return

    cdef int _insert_far(self, Py_ssize_t at, void* put, Py_ssize_t added) except -1:
        cdef Py_ssize_t k, place, half, width = self.width
        cdef Block* block
        if self.block_count == 0:
            self._enter_block(0, 0)
        k = self._block_of(at)
        block = &self.blocks[k]
        place = at + self.blocks[0].start - block.start
        if block.size + added > BLOCK_MAX:
            # Appending leaves the block full; an insertion elsewhere splits it in halves.
            half = block.size if place == block.size else block.size // 2
            self._enter_block(k + 1, block.start + half)
            block = &self.blocks[k]
            memcpy(self.blocks[k + 1].runs, block.runs + half * width, (block.size - half) * width)
            self.blocks[k + 1].size = block.size - half
            block.size = half
            if place >= half:
                k += 1
                place -= half
                block = &self.blocks[k]
        memmove(
            block.runs + (place + added) * width,
            block.runs + place * width,
            (block.size - place) * width,
        )
        memcpy(block.runs + place * width, put, added * width)
        block.size += added
        self.size += added
        if k == 0:
            block.start -= added
        else:
            self._shift(k, added)
        return 0

    cdef int _adopt(self, char* runs, Py_ssize_t size) except -1:
        """Replace all runs by this array and take ownership of it."""
        self._give_back()
        self.room = self.flat = runs
        self.size = self.capacity = size
        if size > FLAT_MAX:
            self._to_blocks()
        return 0

    cdef int _to_blocks(self) except -1:
        """Split a flat array that has become too long into blocks."""
        cdef Py_ssize_t part = BLOCK_MAX * 3 // 4
        cdef Py_ssize_t count = (self.size + part - 1) // part
        cdef Block* blocks = <Block*>malloc((count + 16) * sizeof(Block))
        cdef Py_ssize_t k = 0, start = 0, size
        if blocks == NULL:
            raise MemoryError
        while k < count:
            size = min(part, self.size - start)
            blocks[k].runs = <char*>malloc(BLOCK_MAX * self.width)
            if blocks[k].runs == NULL:
                while k:
                    k -= 1
                    free(blocks[k].runs)
                free(blocks)
                raise MemoryError
            memcpy(blocks[k].runs, self.flat + start * self.width, size * self.width)
            blocks[k].size = size
            blocks[k].start = start
            start += size
            k += 1
        free(self.room)
        self.room = self.flat = NULL
        self.capacity = 0
        self.blocks = blocks
        self.block_count = count
        self.block_room = count + 16
        self.recent = 0
        return 0

    cdef void _to_flat(self) noexcept:
        """Copy all runs into one array again; keep the blocks if there is no memory for it."""
        cdef Py_ssize_t size = self.size
        cdef char* room = <char*>malloc(2 * BLOCKS_MIN * self.width)
        if room == NULL:
            return
        self._copy_to(room)
        self._give_back()
        self.room = self.flat = room
        self.size = size
        self.capacity = 2 * BLOCKS_MIN

    cdef void _give_back(self) noexcept:
        """Remove all runs and free their memory."""
        cdef Py_ssize_t k
        for k in range(self.block_count):
            free(self.blocks[k].runs)
        free(self.blocks)
        free(self.spare)
        free(self.room)
        self.blocks = NULL
        self.room = self.flat = self.spare = NULL
        self.block_count = self.block_room = self.recent = 0
        self.size = self.capacity = 0


cdef class RangeSet(Runs):
    """A mutable set of offsets. `count` is the number of offsets, `len()` the number of ranges."""

    def __cinit__(self, ranges=()):
        self.count = 0
        for first, stop in ranges:
            self.add(first, stop)

    def __len__(self):
        return self.size

    def __bool__(self):
        return self.size > 0

    def __iter__(self):
        cdef Py_ssize_t i = 0
        # The set may change between two steps: its size is asked each time, never trusted.
        while i < self.size:
            yield range_at(self, i).first, range_at(self, i).stop
            i += 1

    def __contains__(self, offset):
        cdef uint64_t wanted = offset
        cdef Py_ssize_t i = self._find(wanted)
        return i < self.size and range_at(self, i).first <= wanted

    def __eq__(self, other):
        return isinstance(other, RangeSet) and list(self) == list(other)

    def __repr__(self):
        return f"RangeSet({list(self)!r})"

    cpdef uint64_t add(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF:
        """Add [first, stop). Returns the number of offsets that were new."""
        cdef Py_ssize_t i, j
        cdef uint64_t covered = 0
        cdef Range merged
        if first >= stop:
            return 0
        # Ranges that overlap or touch [first, stop) are merged into one.
        i = self._find(first - 1) if first else 0
        merged.first = first
        merged.stop = stop
        j = i
        while j < self.size and range_at(self, j).first <= stop:
            covered += range_at(self, j).stop - range_at(self, j).first
            merged.first = min(merged.first, range_at(self, j).first)
            merged.stop = max(merged.stop, range_at(self, j).stop)
            j += 1
        self._splice(i, j - i, &merged, 1)
        self.count += (merged.stop - merged.first) - covered
        return (merged.stop - merged.first) - covered

    def add_all(self, ranges):
        """Add many ranges, in one pass over the set unless it is far larger than what is added."""
        cdef RangeSet added
        cdef uint64_t first, stop
        cdef Py_ssize_t i = 0, j = 0, size = 0
        cdef Range item
        cdef Range* block
        if isinstance(ranges, RangeSet):
            added = ranges
            if added is self:
                return
        else:
            added = RangeSet()
            for first, stop in sorted(ranges):
                added.add(first, stop)
        if self.blocks != NULL and self.size > PASS_RANGES_MAX * added.size:
            for j in range(added.size):
                self.add(range_at(added, j).first, range_at(added, j).stop)
            return
        if added.size == 0:
            return
        block = <Range*>malloc((self.size + added.size) * sizeof(Range))
        if block == NULL:
            raise MemoryError
        self.count = 0
        while i < self.size or j < added.size:
            if j == added.size or (
                i < self.size and range_at(self, i).first <= range_at(added, j).first
            ):
                item = range_at(self, i)[0]
                i += 1
            else:
                item = range_at(added, j)[0]
                j += 1
            if size and item.first <= block[size - 1].stop:
                if item.stop > block[size - 1].stop:
                    self.count += item.stop - block[size - 1].stop
                    block[size - 1].stop = item.stop
            else:
                block[size] = item
                self.count += item.stop - item.first
                size += 1
        self._adopt(<char*>block, size)

    cpdef uint64_t remove(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF:
        """Remove [first, stop). Returns the number of offsets that were in the set."""
        cdef Py_ssize_t i, j, kept = 0
        cdef uint64_t removed = 0, low, high
        cdef Range rest[2]
        if first >= stop:
            return 0
        i = self._find(first)
        j = i
        while j < self.size and range_at(self, j).first < stop:
            low = max(first, range_at(self, j).first)
            high = min(stop, range_at(self, j).stop)
            removed += high - low
            if range_at(self, j).first < first:
                rest[kept].first = range_at(self, j).first
                rest[kept].stop = first
                kept += 1
            if range_at(self, j).stop > stop:
                rest[kept].first = stop
                rest[kept].stop = range_at(self, j).stop
                kept += 1
            j += 1
        if j > i:
            self._splice(i, j - i, rest, kept)
            self.count -= removed
        return removed

    cpdef bint contains(self, uint64_t first, uint64_t stop) noexcept:
        """Whether every offset of [first, stop) is in the set."""
        cdef Py_ssize_t i
        if first >= stop:
            return True
        i = self._find(first)
        return i < self.size and range_at(self, i).first <= first and range_at(self, i).stop >= stop

    def overlap(self, uint64_t first, uint64_t stop):
        """Return the number of offsets of [first, stop) that are in the set."""
        cdef Py_ssize_t i = self._find(first)
        cdef uint64_t found = 0
        if first >= stop:
            return 0
        while i < self.size and range_at(self, i).first < stop:
            found += min(stop, range_at(self, i).stop) - max(first, range_at(self, i).first)
            i += 1
        return found

    def first_from(self, uint64_t offset):
        """Return the lowest offset at or above `offset`, or None."""
        cdef Py_ssize_t i = self._find(offset)
        return max(offset, range_at(self, i).first) if i < self.size else None

    def gaps(self, uint64_t first, uint64_t stop):
        """Return the ranges of [first, stop) that are not in the set, as a new RangeSet."""
        cdef RangeSet missing = RangeSet()
        cdef Py_ssize_t i = self._find(first)
        while i < self.size and range_at(self, i).first < stop:
            if first < range_at(self, i).first:
                missing.add(first, range_at(self, i).first)
            first = max(first, range_at(self, i).stop)
            i += 1
        if first < stop:
            missing.add(first, stop)
        return missing

    def first_gap(self, uint64_t first, uint64_t stop):
        """Return the lowest range of [first, stop) that is not in the set; None if all of it is."""
        cdef Py_ssize_t i = self._find(first)
        if i < self.size and range_at(self, i).first <= first:
            first = range_at(self, i).stop
            i += 1
        if first >= stop:
            return None
        return first, min(stop, range_at(self, i).first) if i < self.size else stop

    @property
    def first(self):
        """Lowest offset, or None if the set is empty."""
        return range_at(self, 0).first if self.size else None

    @property
    def stop(self):
        """One past the highest offset, or None if the set is empty."""
        return range_at(self, self.size - 1).stop if self.size else None

    def copy(self):
        """Return an independent copy."""
        return RangeSet(self)

    def clear(self):
        """Remove all ranges and free their memory."""
        self._give_back()
        self.count = 0

    def to_bytes(self):
        """Return the ranges as little-endian u64 pairs, as in control batches and checkpoints."""
        cdef bytearray made
        if self.blocks == NULL:
            return self.flat[: self.size * sizeof(Range)] if self.size else b""
        made = bytearray(self.size * sizeof(Range))
        self._copy_to(<char*>made)
        return bytes(made)

    @staticmethod
    def from_bytes(const unsigned char[::1] data):
        """Return the set that `to_bytes` wrote.

        Raises ValueError for an invalid length or order.
        """
        cdef RangeSet made = RangeSet()
        cdef Py_ssize_t i, n = data.shape[0] // sizeof(Range)
        cdef Range item
        cdef uint64_t before = 0
        if data.shape[0] % sizeof(Range):
            raise ValueError("a range set is pairs of 64-bit numbers")
        if n:
            made._reserve(n)
        for i in range(n):
            memcpy(&item, &data[i * sizeof(Range)], sizeof(Range))
            if item.first >= item.stop or (i and item.first <= before):
                raise ValueError("ranges are sorted, disjoint and not empty")
            before = item.stop
            (<Range*>made.flat)[i] = item
            made.count += item.stop - item.first
        made.size = n
        if n > FLAT_MAX:
            made._to_blocks()
        return made
