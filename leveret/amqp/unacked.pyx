"""Which delivery tags of a channel are outstanding, and which records they stand for.

Tags and offsets both run upwards, so an entry covers a run: tags [tag, tag + count) are the records
[offset, offset + count) that one consumer got. Acknowledging in order only ever shortens the first
entry; out of order it splits one.

Leases that have ended unsettled (`end`) are remembered by their tags: to settle them is no mistake,
and changes nothing.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from leveret.ports.ranges cimport RangeSet

# Ended leases are remembered in so many runs of tags; beyond, the two oldest runs and the settled tags
# between them become one. To settle such a tag twice is forgiven then.
ENDED_RUNS_MAX = 1024

cdef Py_ssize_t RUNS_UNLIMITED = <Py_ssize_t>1 << 62

cdef struct Entry:
    uint64_t tag
    uint64_t stop       # one past the last tag
    uint64_t offset     # of the record `tag` stands for
    Py_ssize_t holder   # index into `holders`


cdef class Unacked:
    """Outstanding deliveries of one channel, in order of their tags. `count` is their number."""

    cdef Entry* entries
    cdef Py_ssize_t head        # entries before it are spent
    cdef Py_ssize_t size        # one past the last entry
    cdef Py_ssize_t capacity
    cdef readonly uint64_t count
    cdef list holders
    cdef dict holder_numbers
    cdef RangeSet ended         # tags; None until there are some

    def __cinit__(self):
        self.entries = NULL
        self.head = self.size = self.capacity = 0
        self.count = 0
        self.holders = []
        self.holder_numbers = {}

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    cdef Py_ssize_t _holder(self, holder) except -1:
        number = self.holder_numbers.get(holder)
        if number is None:
            if self.count == 0:     # nobody refers to the old numbers any more
                self.holders.clear()
                self.holder_numbers.clear()
            number = len(self.holders)
            self.holder_numbers[holder] = number
            self.holders.append(holder)
        return number

    cdef int _room(self) except -1:
        """Make sure that one more entry fits."""
        cdef Entry* grown
        cdef Py_ssize_t capacity
        if self.size < self.capacity:
            return 0
        if self.head > self.capacity // 2:
            memmove(self.entries, &self.entries[self.head], (self.size - self.head) * sizeof(Entry))
            self.size -= self.head
            self.head = 0
            return 0
        capacity = max(8, self.capacity * 2)
        grown = <Entry*>realloc(self.entries, capacity * sizeof(Entry))
        if grown == NULL:
            raise MemoryError
        self.entries = grown
        self.capacity = capacity
        return 0

    cdef Py_ssize_t _find(self, uint64_t tag) noexcept:
        """Index of the first entry that ends behind `tag`."""
        cdef Py_ssize_t low = self.head, high = self.size, middle
        if low < high and self.entries[low].stop > tag:
            return low
        while low < high:
            middle = (low + high) >> 1
            if self.entries[middle].stop <= tag:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, uint64_t tag, uint64_t count, uint64_t offset, holder):
        """`count` deliveries from `tag` on carry the records from `offset` on, held by `holder`."""
        cdef Py_ssize_t number = self._holder(holder)
        cdef Entry* last
        self.count += count
        if self.size > self.head:
            last = &self.entries[self.size - 1]
            if last.stop == tag and last.holder == number and last.offset + (last.stop - last.tag) == offset:
                last.stop += count
                return
        self._room()
        self.entries[self.size] = Entry(tag, tag + count, offset, number)
        self.size += 1

    def add_runs(self, uint64_t tag, list runs, holder):
        """As `add`, for the records of several runs [(first, stop)], one after the other."""
        cdef uint64_t first, stop
        for first, stop in runs:
            self.add(tag, stop - first, first, holder)
            tag += stop - first

    def take(self, uint64_t first, uint64_t last):
        """Remove the tags [first, last]; each must be outstanding, or its lease have ended.

        Returns ([(holder, first offset, stop offset)], None), or what could be removed and the first tag
        that was not outstanding.
        """
        cdef list taken = []
        cdef Py_ssize_t i
        cdef uint64_t tag = first
        while tag <= last:
            i = self._find(tag)
            if i < self.size and self.entries[i].tag <= tag:
                tag = self._cut(i, tag, last, taken)
            elif not self._skip_ended(&tag):
                return taken, tag
        return taken, None

    cdef bint _skip_ended(self, uint64_t* tag) except -1:
        """Go on behind the ended leases that begin at `tag`. False where there is none."""
        cdef Py_ssize_t i
        if self.ended is None or tag[0] not in self.ended:
            return False
        i = self.ended._find(tag[0])
        tag[0] = self.ended.ranges[i].stop
        return True

    def end(self, uint64_t first, uint64_t last):
        """Remove what is outstanding of the tags [first, last]: their leases end, unsettled.

        Returns [(holder, first offset, stop offset)].
        """
        cdef list taken = []
        cdef uint64_t tag
        cdef Py_ssize_t i = self._find(first)
        if self.ended is None:
            self.ended = RangeSet()
        while i < self.size and self.entries[i].tag <= last:
            tag = max(first, self.entries[i].tag)
            self.ended.add(tag, self._cut(i, tag, last, taken))
            i = self._find(first)
        while self.ended.size > ENDED_RUNS_MAX:
            self.ended.add(self.ended.ranges[0].first, self.ended.ranges[1].stop)
        return taken

    def runs(self):
        """What is outstanding, in order: [(first tag, last tag, holder)]."""
        cdef Py_ssize_t i
        return [
            (self.entries[i].tag, self.entries[i].stop - 1, self.holders[self.entries[i].holder])
            for i in range(self.head, self.size)
        ]

    def held_in(self, holder, uint64_t first, uint64_t last):
        """The outstanding tags of [first, last] that `holder` holds: [(first, last)]."""
        cdef list found = []
        cdef Py_ssize_t number, i = self._find(first)
        if holder not in self.holder_numbers:
            return found
        number = self.holder_numbers[holder]
        while i < self.size and self.entries[i].tag <= last:
            if self.entries[i].holder == number:
                found.append((max(first, self.entries[i].tag), min(last, self.entries[i].stop - 1)))
            i += 1
        return found

    def holder_of(self, uint64_t tag):
        """Who holds an outstanding tag; None where it is not outstanding."""
        cdef Py_ssize_t i = self._find(tag)
        if i < self.size and self.entries[i].tag <= tag:
            return self.holders[self.entries[i].holder]
        return None

    def holder_at(self, holders, uint64_t offset):
        """Which of `holders` has a record, by its offset: (tag, holder); None where none has.

        All entries are looked at: this is for people, not for what is done per message.
        """
        cdef Py_ssize_t i
        cdef Entry* entry
        for i in range(self.head, self.size):
            entry = &self.entries[i]
            if entry.offset <= offset < entry.offset + (entry.stop - entry.tag):
                holder = self.holders[entry.holder]
                if holder in holders:
                    return entry.tag + (offset - entry.offset), holder
        return None

    def take_up_to(self, uint64_t last, Py_ssize_t runs_max=RUNS_UNLIMITED):
        """Remove every outstanding tag up to `last`: [(holder, first offset, stop offset)].

        At most so many of these, the lowest tags first.
        """
        cdef list taken = []
        while self.head < self.size and self.entries[self.head].tag <= last and len(taken) < runs_max:
            self._cut(self.head, self.entries[self.head].tag, last, taken)
        return taken

    def take_held(self, holder):
        """Remove everything that `holder` holds."""
        cdef list taken = []
        cdef Py_ssize_t number, i = self.head
        if holder not in self.holder_numbers:
            return taken
        number = self.holder_numbers[holder]
        while i < self.size:
            if self.entries[i].holder == number:
                self._cut(i, self.entries[i].tag, self.entries[i].stop - 1, taken)
                i = max(i, self.head)
            else:
                i += 1
        return taken

    def outstanding(self, uint64_t last, uint64_t first=0, Py_ssize_t runs_max=RUNS_UNLIMITED):
        """The tags of [first, last] that wait to be settled: [(first, last)] in their order.

        At most so many of these, the lowest tags first.
        """
        cdef list found = []
        cdef Py_ssize_t i
        for i in range(self._find(first), self.size):
            if self.entries[i].tag > last or len(found) == runs_max:
                break
            found.append((max(first, self.entries[i].tag), min(last, self.entries[i].stop - 1)))
        return found

    def first_unknown(self, uint64_t first, uint64_t last):
        """The first tag of [first, last] that `take` would stop at; None where it would take all."""
        cdef uint64_t tag = first
        cdef Py_ssize_t i
        while tag <= last:
            i = self._find(tag)
            if i < self.size and self.entries[i].tag <= tag:
                tag = self.entries[i].stop
            elif not self._skip_ended(&tag):
                return tag
        return None

    def restore(self, uint64_t tag, uint64_t count, uint64_t offset, holder):
        """Undo a `take`: these tags, none of which is outstanding, are so again."""
        cdef Py_ssize_t number = self._holder(holder)
        cdef Py_ssize_t i
        self._room()
        i = self._find(tag)
        memmove(&self.entries[i + 1], &self.entries[i], (self.size - i) * sizeof(Entry))
        self.size += 1
        self.entries[i] = Entry(tag, tag + count, offset, number)
        self.count += count

    def oldest(self):
        """(tag, holder) of the delivery that waits longest; None when nothing waits."""
        if self.head == self.size:
            return None
        return self.entries[self.head].tag, self.holders[self.entries[self.head].holder]

    def is_outstanding(self, uint64_t tag):
        """Whether it is no mistake to settle `tag`: it waits for that, or its lease has ended."""
        cdef Py_ssize_t i = self._find(tag)
        if i < self.size and self.entries[i].tag <= tag:
            return True
        return self.ended is not None and tag in self.ended

    cdef uint64_t _cut(self, Py_ssize_t i, uint64_t first, uint64_t last, list taken) except 0:
        """Take [first, last] out of entry `i`, which holds `first`. Returns the next tag to look at."""
        cdef Entry* entry = &self.entries[i]
        cdef uint64_t stop = entry.stop if last >= entry.stop - 1 else last + 1
        cdef uint64_t offset = entry.offset + (first - entry.tag)
        taken.append((self.holders[entry.holder], offset, offset + (stop - first)))
        self.count -= stop - first
        if first == entry.tag and stop == entry.stop:
            if i == self.head:
                self.head += 1
                if self.head == self.size:
                    self.head = self.size = 0
            else:
                self._drop(i)
        elif first == entry.tag:
            entry.offset += stop - first
            entry.tag = stop
        elif stop == entry.stop:
            entry.stop = first
        else:
            self._split(i, first, stop)
        return stop

    cdef void _drop(self, Py_ssize_t i) noexcept:
        """Close the gap that entry `i` leaves, from its shorter side."""
        if i - self.head < self.size - i - 1:
            memmove(
                &self.entries[self.head + 1],
                &self.entries[self.head],
                (i - self.head) * sizeof(Entry),
            )
            self.head += 1
        else:
            memmove(&self.entries[i], &self.entries[i + 1], (self.size - i - 1) * sizeof(Entry))
            self.size -= 1

    cdef int _split(self, Py_ssize_t i, uint64_t first, uint64_t stop) except -1:
        """Leave of entry `i` what lies before `first` and from `stop` on."""
        cdef Py_ssize_t from_head = i - self.head
        cdef Entry* entry
        if from_head < self.size - i - 1:
            self._room_before()
            self.head -= 1
            i = self.head + from_head
            memmove(
                &self.entries[self.head], &self.entries[self.head + 1], (from_head + 1) * sizeof(Entry)
            )
        else:
            self._room()
            i = self.head + from_head      # making room may have moved everything down
            memmove(
                &self.entries[i + 1], &self.entries[i], (self.size - i) * sizeof(Entry)
            )
            self.size += 1
        entry = &self.entries[i]
        entry[1] = entry[0]
        entry.stop = first
        entry[1].offset += stop - entry[1].tag
        entry[1].tag = stop
        return 0

    cdef int _room_before(self) except -1:
        """Make sure that one more entry fits before the first.

        Half as many as there are get room on either side, so that a move is paid for rarely.
        """
        cdef Py_ssize_t count = self.size - self.head
        cdef Entry* grown
        if self.head:
            return 0
        if self.capacity < 2 * count + 2:
            grown = <Entry*>realloc(self.entries, (2 * count + 2) * sizeof(Entry))
            if grown == NULL:
                raise MemoryError
            self.entries = grown
            self.capacity = 2 * count + 2
        self.head = (self.capacity - count) // 2
        self.size = self.head + count
        memmove(&self.entries[self.head], self.entries, count * sizeof(Entry))
        return 0
