"""Outstanding delivery tags of a channel, and the records they stand for.

Tags and offsets both grow, so an entry covers a run: tags [tag, tag + count) are the records
[offset, offset + count) that one consumer got. Acknowledging in order only ever shortens the first
entry; out of order it splits one.

The tags of leases that have ended unsettled (`end`) are remembered: settling them is no error and
has no effect.
"""

cimport cython

from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet, range_at

# Ended leases are remembered in so many runs of tags; beyond, the two oldest runs and the settled tags
# between them become one. To settle such a tag twice is forgiven then.
ENDED_RUNS_MAX = 1024

cdef Py_ssize_t RUNS_UNLIMITED = <Py_ssize_t>1 << 62

@cython.final
cdef class Unacked(Runs):
    """Outstanding deliveries of one channel, in order of their tags. `count` is their number."""

    def __cinit__(self):
        self.width = sizeof(Entry)
        self.count = 0
        self.holders = []
        self.holder_numbers = {}

    def __len__(self):
        return self.count

    cdef Entry* _at(self, Py_ssize_t i) noexcept:
        """Return the entry at `i`; valid until the entries change."""
        return (<Entry*>self.flat) + i if self.blocks == NULL else <Entry*>self._far(i)

    cdef Py_ssize_t _holder(self, holder) except -1:
        number = self.holder_numbers.get(holder)
        if number is None:
            if self.count == 0:     # the old numbers are not in use any more
                self.holders.clear()
                self.holder_numbers.clear()
            number = len(self.holders)
            self.holder_numbers[holder] = number
            self.holders.append(holder)
        return number

    cpdef int add(self, uint64_t tag, uint64_t count, uint64_t offset, holder) except -1:
        """Add `count` deliveries from `tag` on, of the records from `offset` on."""
        cdef Py_ssize_t number = self._holder(holder)
        cdef Entry* last
        cdef Entry fresh
        self.count += count
        if self.size:
            last = self._at(self.size - 1)
            if last.stop == tag and last.holder == number and last.offset + (last.stop - last.tag) == offset:
                last.stop += count
                return 0
        fresh = Entry(tag, tag + count, offset, number)
        if self.blocks == NULL and self.size < self.capacity:
            self._at(self.size)[0] = fresh
            self.size += 1
        else:
            self._splice(self.size, 0, &fresh, 1)
        return 0

    def add_runs(self, uint64_t tag, list runs, holder):
        """Add the records of several runs [(first, stop)], one after the other, as `add` does."""
        cdef uint64_t first, stop
        for first, stop in runs:
            self.add(tag, stop - first, first, holder)
            tag += stop - first

    cpdef tuple take(self, uint64_t first, uint64_t last):
        """Remove the tags [first, last]; each must be outstanding, or its lease have ended.

        Returns ([(holder, first offset, stop offset)], None), or what could be removed and the first tag
        that was not outstanding.
        """
        cdef list taken = []
        cdef Py_ssize_t i
        cdef uint64_t tag = first
        while tag <= last:
            i = self._find(tag)
            if i < self.size and self._at(i).tag <= tag:
                tag = self._cut(i, tag, last, taken)
            elif not self._skip_ended(&tag):
                return taken, tag
        return taken, None

    cdef bint _skip_ended(self, uint64_t* tag) except -1:
        """Advance `tag` behind the run of ended leases that contains it. False if none does."""
        cdef Py_ssize_t i
        if self.ended is None or tag[0] not in self.ended:
            return False
        i = self.ended._find(tag[0])
        tag[0] = range_at(self.ended, i).stop
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
        while i < self.size and self._at(i).tag <= last:
            tag = max(first, self._at(i).tag)
            self.ended.add(tag, self._cut(i, tag, last, taken))
            i = self._find(first)
        while self.ended.size > ENDED_RUNS_MAX:
            self.ended.add(range_at(self.ended, 0).first, range_at(self.ended, 1).stop)
        return taken

    def runs(self):
        """Return the outstanding runs [(first tag, last tag, holder)] in order."""
        cdef Py_ssize_t i
        return [
            (self._at(i).tag, self._at(i).stop - 1, self.holders[self._at(i).holder])
            for i in range(self.size)
        ]

    def held_in(self, holder, uint64_t first, uint64_t last):
        """Return the runs [(first, last)] of outstanding tags in a range that `holder` holds."""
        cdef list found = []
        cdef Py_ssize_t number, i = self._find(first)
        if holder not in self.holder_numbers:
            return found
        number = self.holder_numbers[holder]
        while i < self.size and self._at(i).tag <= last:
            if self._at(i).holder == number:
                found.append((max(first, self._at(i).tag), min(last, self._at(i).stop - 1)))
            i += 1
        return found

    def holder_of(self, uint64_t tag):
        """Return the holder of an outstanding tag; None if it is not outstanding."""
        cdef Py_ssize_t i = self._find(tag)
        if i < self.size and self._at(i).tag <= tag:
            return self.holders[self._at(i).holder]
        return None

    def holder_at(self, holders, uint64_t offset):
        """Return (tag, holder) of a record, by its offset, if one of `holders` holds it, else None.

        It scans all entries: use it for management, not per message.
        """
        cdef Py_ssize_t i
        cdef Entry* entry
        for i in range(self.size):
            entry = self._at(i)
            if entry.offset <= offset < entry.offset + (entry.stop - entry.tag):
                holder = self.holders[entry.holder]
                if holder in holders:
                    return entry.tag + (offset - entry.offset), holder
        return None

    def take_up_to(self, uint64_t last, Py_ssize_t runs_max=RUNS_UNLIMITED):
        """Remove the outstanding tags up to `last`. Returns [(holder, first offset, stop offset)].

        At most `runs_max` runs, the lowest tags first.
        """
        cdef list taken = []
        while self.size and self._at(0).tag <= last and len(taken) < runs_max:
            self._cut(0, self._at(0).tag, last, taken)
        return taken

    def outstanding(self, uint64_t last, uint64_t first=0, Py_ssize_t runs_max=RUNS_UNLIMITED):
        """Return the runs [(first, last)] of outstanding tags in [first, last], in order.

        At most `runs_max` runs, the lowest tags first.
        """
        cdef list found = []
        cdef Py_ssize_t i
        for i in range(self._find(first), self.size):
            if self._at(i).tag > last or len(found) == runs_max:
                break
            found.append((max(first, self._at(i).tag), min(last, self._at(i).stop - 1)))
        return found

    def first_unknown(self, uint64_t first, uint64_t last):
        """Return the first tag of [first, last] that `take` would stop at, or None."""
        cdef uint64_t tag = first
        cdef Py_ssize_t i
        while tag <= last:
            i = self._find(tag)
            if i < self.size and self._at(i).tag <= tag:
                tag = self._at(i).stop
            elif not self._skip_ended(&tag):
                return tag
        return None

    def restore(self, uint64_t tag, uint64_t count, uint64_t offset, holder):
        """Make tags that `take` removed outstanding again; none of them may be outstanding."""
        cdef Py_ssize_t number = self._holder(holder)
        cdef Entry fresh = Entry(tag, tag + count, offset, number)
        self._splice(self._find(tag), 0, &fresh, 1)
        self.count += count

    def oldest(self):
        """Return (tag, holder) of the oldest outstanding delivery, or None."""
        if not self.size:
            return None
        return self._at(0).tag, self.holders[self._at(0).holder]

    def is_outstanding(self, uint64_t tag):
        """Whether `tag` may be settled: it is outstanding, or its lease has ended."""
        cdef Py_ssize_t i = self._find(tag)
        if i < self.size and self._at(i).tag <= tag:
            return True
        return self.ended is not None and tag in self.ended

    cdef uint64_t _cut(self, Py_ssize_t i, uint64_t first, uint64_t last, list taken) except 0:
        """Take [first, last] out of entry `i`, which holds `first`. Returns the next tag to look at."""
        cdef Entry* entry = self._at(i)
        cdef uint64_t stop = entry.stop if last >= entry.stop - 1 else last + 1
        cdef uint64_t offset = entry.offset + (first - entry.tag)
        cdef Entry[2] rest
        taken.append((self.holders[entry.holder], offset, offset + (stop - first)))
        self.count -= stop - first
        if first == entry.tag and stop == entry.stop:
            if i or self.blocks != NULL:
                self._splice(i, 1, NULL, 0)
            else:
                self._drop_first()
        elif first == entry.tag:
            entry.offset += stop - first
            entry.tag = stop
        elif stop == entry.stop:
            entry.stop = first
        else:
            rest[0] = rest[1] = entry[0]
            rest[0].stop = first
            rest[1].offset += stop - entry.tag
            rest[1].tag = stop
            self._splice(i, 1, rest, 2)
        return stop

    cdef void _drop_first(self) noexcept:
        """Remove the first entry of a flat array, which is fast: acks mostly come in order."""
        self.size -= 1
        if self.size:
            self.flat += sizeof(Entry)
            self.capacity -= 1
        else:
            self.capacity += (self.flat - self.room) // <Py_ssize_t>sizeof(Entry)
            self.flat = self.room
