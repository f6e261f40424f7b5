# distutils: language = c++
"""Hierarchical timing wheel: the cost of a timer does not depend on the number of timers.

After G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels" (1987). One tick is a
millisecond. Six levels of 256 slots each: level 0 has a slot for each of the 256 milliseconds that
share all higher bytes with `cursor`, level 1 one for each 256 of those, and so on. A timer is stored
on the level of the highest byte in which its due time differs from `cursor`, in the slot of that
byte; when the cursor enters a slot's time, its timers move to the levels below. So all timers of one
millisecond always share a slot, in the order in which they were added.

    a timer, 24 bytes, and about 8 in the table that finds it by its key
     0  u64  due time, milliseconds since 1970
     8  u64  key
    16  u32  next in its slot; order of addition if LATE; next free one
    20  u32  previous in its slot; LATE

A timer that is due before the cursor when added (overdue, or the clock was set back) is stored in
a sorted map, `late`, so that nothing is early and the order of due times holds; that costs O(log n) of the
late timers. The caller passes the time: if it jumps forward, all that is due by then expires once;
if it goes back, nothing expires until its due time is reached (again).
"""

from cpython cimport array
from cython.operator cimport dereference as deref
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from libcpp.map cimport map
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from leveret.features.delay.due_list cimport Due, DueList

import array as arrays

cdef enum:
    LEVELS = 6                  # 2 ** 48 milliseconds: until the year 10889
    SLOTS = 256
    WORDS = 4                   # of 64 slots each

cdef uint32_t NONE = 0xFFFFFFFF
cdef uint32_t LATE = 0xFFFFFFFE
cdef uint64_t NEVER = <uint64_t>-1
cdef uint64_t DUE_MAX = (<uint64_t>1 << 48) - 1
cdef uint64_t TIMERS_MAX = 0xFFFFFFF0
cdef size_t LATE_BYTES = 64     # of memory for an entry in `late`

cdef array.array _KEYS = arrays.array("Q")


cdef extern from *:
    """
    static inline int lowest_bit(unsigned long long word) { return __builtin_ctzll(word); }
    static inline int highest_byte(unsigned long long word) {
        return word ? (63 - __builtin_clzll(word)) >> 3 : 0;
    }
    """
    int lowest_bit(uint64_t word) noexcept nogil
    int highest_byte(uint64_t word) noexcept nogil


cdef struct Timer:
    uint64_t due
    uint64_t key
    uint32_t next
    uint32_t previous


cdef struct Slot:
    uint32_t head
    uint32_t tail


ctypedef pair[uint64_t, uint32_t] DueOrder      # due time, order of addition


cdef class TimingWheel:
    """Set of timers by key, a 64-bit number. `len()` is the number of timers."""

    cdef Slot slots[LEVELS][SLOTS]
    cdef uint64_t occupied[LEVELS][WORDS]
    cdef uint64_t cursor        # first millisecond whose timers may still be in the slots
    cdef vector[Timer] timers
    cdef uint32_t free
    cdef uint32_t count
    cdef vector[uint32_t] table  # open addressing with linear probing: indexes of timers
    cdef uint64_t table_mask
    cdef map[DueOrder, uint32_t] late
    cdef uint32_t additions

    def __cinit__(self, uint64_t now_ms=0):
        memset(self.slots, 0xFF, sizeof(self.slots))
        memset(self.occupied, 0, sizeof(self.occupied))
        self.cursor = min(now_ms, DUE_MAX)
        self.free = NONE
        self.count = self.additions = 0
        self.table_mask = 63
        self.table.assign(64, NONE)

    def __len__(self):
        return self.count

    # -- what callers do

    def add(self, uint64_t key, uint64_t due_ms):
        """Add a timer.

        Returns whether the key is new; otherwise the earlier of both times counts.
        """
        return self._add(key, due_ms)

    def add_all(self, DueList dues not None, uint64_t base, uint64_t early_ms=0):
        """Add a timer for each record of a list, with the key `base` plus its offset.

        The timers expire `early_ms` before the records are due.
        """
        cdef Due item
        for item in dues.items:
            self._add(base + item.offset, item.due_ms - min(item.due_ms, early_ms))

    def cancel(self, uint64_t key):
        """Cancel the timer of `key`. Returns its due time, or None if there is none."""
        cdef uint64_t place = self._find(key)
        cdef uint32_t at = self.table[place]
        if at == NONE:
            return None
        due = self.timers[at].due
        self._unlink(at)
        self._vacate(place)
        self._release(at)
        return due

    def expire(self, uint64_t now_ms, Py_ssize_t count_max=-1):
        """Remove due timers and return their keys by due time, then order of addition.

        At most `count_max` are removed (if not negative); the rest stays for the next call.
        """
        cdef array.array keys = array.clone(_KEYS, 0, zero=False)
        cdef uint64_t room = <uint64_t>-1 if count_max < 0 else <uint64_t>count_max
        cdef uint64_t start
        while room and self._late_ms() <= now_ms:
            self._take(keys, deref(self.late.begin()).second)
            room -= 1
        if self._late_ms() <= now_ms:
            return keys
        while room and self.cursor <= now_ms and self._next(&start) and start <= now_ms:
            self._advance(start)
            room -= self._empty(keys, room)
        if room and now_ms >= self.cursor:
            self._advance(min(now_ms + 1, DUE_MAX))
        return keys

    @property
    def wakes_ms(self):
        """Time of the next `expire` that has work to do, though it may return nothing.

        None: never.
        """
        cdef uint64_t start = NEVER
        self._next(&start)
        start = min(start, self._late_ms())
        return None if start == NEVER else start

    @property
    def allocated_bytes(self):
        """Allocated memory in bytes."""
        return (
            sizeof(self.slots) + sizeof(self.occupied)
            + self.timers.capacity() * sizeof(Timer)
            + self.table.size() * sizeof(uint32_t)
            + self.late.size() * LATE_BYTES
        )

    # -- the slots

    cdef bint _add(self, uint64_t key, uint64_t due_ms) except -1:
        cdef uint64_t place = self._find(key)
        cdef uint32_t at = self.table[place]
        due_ms = min(due_ms, DUE_MAX - 1)
        if at != NONE:
            if due_ms < self.timers[at].due:
                self._unlink(at)
                self.timers[at].due = due_ms
                self._link(at)
            return False
        at = self._allocate()
        self.timers[at].due = due_ms
        self.timers[at].key = key
        self._link(at)
        self.table[place] = at
        self.count += 1
        if self.count * 4 > (self.table_mask + 1) * 3:
            self._grow_table()
        return True

    cdef int _link(self, uint32_t at) except -1:
        """Insert a timer into the slot of its due time, or into `late`."""
        cdef Timer* timer = &self.timers[at]
        cdef int level, number
        cdef Slot* slot
        if timer.due < self.cursor:
            self.additions += 1
            timer.next, timer.previous = self.additions, LATE
            self.late[DueOrder(timer.due, self.additions)] = at
            return 0
        level = highest_byte(timer.due ^ self.cursor)
        number = (timer.due >> (8 * level)) & 0xFF
        slot = &self.slots[level][number]
        timer.next = NONE
        timer.previous = slot.tail
        if slot.tail == NONE:
            slot.head = at
            self.occupied[level][number >> 6] |= <uint64_t>1 << (number & 63)
        else:
            self.timers[slot.tail].next = at
        slot.tail = at
        return 0

    cdef void _unlink(self, uint32_t at) noexcept:
        """Remove a timer from its slot or from `late`."""
        cdef Timer* timer = &self.timers[at]
        cdef int level, number
        cdef Slot* slot
        if timer.previous == LATE:
            self.late.erase(DueOrder(timer.due, timer.next))
            return
        level = highest_byte(timer.due ^ self.cursor)
        number = (timer.due >> (8 * level)) & 0xFF
        slot = &self.slots[level][number]
        if timer.previous == NONE:
            slot.head = timer.next
        else:
            self.timers[timer.previous].next = timer.next
        if timer.next == NONE:
            slot.tail = timer.previous
        else:
            self.timers[timer.next].previous = timer.previous
        if slot.head == NONE:
            self.occupied[level][number >> 6] &= ~(<uint64_t>1 << (number & 63))

    cdef bint _next(self, uint64_t* start) noexcept:
        """Store the start time of the first occupied slot. Returns False if all are empty."""
        cdef int level, number
        for level in range(LEVELS):
            number = self._occupied_from(level, (self.cursor >> (8 * level)) & 0xFF)
            if number >= 0:
                start[0] = (self.cursor >> (8 * level) & ~<uint64_t>0xFF | number) << (8 * level)
                return True
        return False

    cdef int _occupied_from(self, int level, int number) noexcept:
        """Return the first occupied slot at or after `number`; -1 if there is none."""
        cdef int word = number >> 6
        cdef uint64_t bits = self.occupied[level][word] & (~<uint64_t>0 << (number & 63))
        while bits == 0:
            word += 1
            if word == WORDS:
                return -1
            bits = self.occupied[level][word]
        return 64 * word + lowest_bit(bits)

    cdef int _advance(self, uint64_t now) except -1:
        """Move the cursor to `now`, before which nothing is due; cascade the slots it enters."""
        cdef int level
        cdef uint64_t before = self.cursor
        self.cursor = now
        for level in range(highest_byte(before ^ now), 0, -1):
            self._cascade(level, (now >> (8 * level)) & 0xFF)
        return 0

    cdef int _cascade(self, int level, int number) except -1:
        cdef Slot* slot = &self.slots[level][number]
        cdef uint32_t at = slot.head, after
        slot.head = slot.tail = NONE
        self.occupied[level][number >> 6] &= ~(<uint64_t>1 << (number & 63))
        while at != NONE:
            after = self.timers[at].next
            self._link(at)
            at = after
        return 0

    cdef uint64_t _empty(self, array.array keys, uint64_t room) except? 0xFFFFFFFFFFFFFFFF:
        """Remove timers due in the cursor's own millisecond. Returns their number."""
        cdef Slot* slot = &self.slots[0][self.cursor & 0xFF]
        cdef uint64_t taken = 0
        while slot.head != NONE and taken < room:
            self._take(keys, slot.head)
            taken += 1
        return taken

    cdef int _take(self, array.array keys, uint32_t at) except -1:
        cdef uint64_t key = self.timers[at].key
        array.extend_buffer(keys, <char*>&key, 1)
        self._unlink(at)
        self._vacate(self._find(key))
        self._release(at)
        return 0

    # -- memory

    cdef uint32_t _allocate(self) except? 0xFFFFFFFF:
        cdef uint32_t at = self.free
        if at != NONE:
            self.free = self.timers[at].next
            return at
        if self.timers.size() >= TIMERS_MAX:
            raise MemoryError("too many timers")
        self.timers.resize(self.timers.size() + 1)
        return self.timers.size() - 1

    cdef void _release(self, uint32_t at) noexcept:
        self.timers[at].next = self.free
        self.free = at
        self.count -= 1

    # -- the table

    cdef inline uint64_t _home(self, uint64_t key) noexcept:
        key = (key ^ (key >> 32)) * <uint64_t>0x9E3779B97F4A7C15
        return (key >> 24) & self.table_mask

    cdef uint64_t _find(self, uint64_t key) noexcept:
        """Return the key's index in the table, or the empty one where it would be inserted."""
        cdef uint64_t place = self._home(key)
        cdef uint32_t at = self.table[place]
        while at != NONE and self.timers[at].key != key:
            place = (place + 1) & self.table_mask
            at = self.table[place]
        return place

    cdef void _vacate(self, uint64_t place) noexcept:
        """Empty a table index and move up entries displaced by it."""
        cdef uint64_t after = place, home
        while True:
            self.table[place] = NONE
            while True:
                after = (after + 1) & self.table_mask
                if self.table[after] == NONE:
                    return
                home = self._home(self.timers[self.table[after]].key)
                if ((after - home) & self.table_mask) >= ((after - place) & self.table_mask):
                    break
            self.table[place] = self.table[after]
            place = after

    cdef int _grow_table(self) except -1:
        cdef vector[uint32_t] before
        cdef uint32_t at
        before.swap(self.table)
        self.table_mask = 2 * before.size() - 1
        self.table.assign(2 * before.size(), NONE)
        for at in before:
            if at != NONE:
                self.table[self._find(self.timers[at].key)] = at
        return 0

    cdef inline uint64_t _late_ms(self) noexcept:
        """Due time of the first late timer; NEVER if there is none."""
        return NEVER if self.late.empty() else deref(self.late.begin()).first.first
