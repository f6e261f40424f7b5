"""Hash map from 64-bit numbers to indexes, in two flat arrays; a dictionary takes 100 bytes each.

Open addressing with linear probing; removal leaves no tombstones, later entries move up. Twelve
bytes for each place, and between three and six of ten are used. Used by the ledger of groups.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef enum:
    ROOM_MIN = 16


cdef inline uint64_t stirred(uint64_t key) noexcept nogil:
    """Return a mixed hash: neighbours, such as offsets, must not form one long run."""
    key = (key ^ (key >> 32)) * <uint64_t>0x9E3779B97F4A7C15
    return key ^ (key >> 29)


cdef class NumberMap:
    """Map of unique keys to values below NOWHERE."""

    def __cinit__(self):
        self.keys = NULL
        self.values = NULL
        self.room = 0
        self.count = 0

    def __dealloc__(self):
        free(self.keys)
        free(self.values)

    def __len__(self):
        return self.count

    cdef size_t _place(self, uint64_t key) noexcept:
        """Return the index of `key`, or where it would be put; there must be room."""
        cdef size_t i = stirred(key) & (self.room - 1)
        while self.values[i] != NOWHERE and self.keys[i] != key:
            i = (i + 1) & (self.room - 1)
        return i

    cdef uint32_t find(self, uint64_t key) noexcept:
        """Return the value of `key`, or NOWHERE."""
        return self.values[self._place(key)] if self.count else NOWHERE

    cdef int put(self, uint64_t key, uint32_t value) except -1:
        """Set the value of `key`."""
        cdef size_t i
        if 10 * (self.count + 1) > 6 * self.room:
            self._resize(max(2 * self.room, ROOM_MIN))
        i = self._place(key)
        if self.values[i] == NOWHERE:
            self.count += 1
        self.keys[i] = key
        self.values[i] = value
        return 0

    cdef uint32_t pop(self, uint64_t key) noexcept:
        """Remove `key` and return its value, or NOWHERE."""
        cdef size_t hole, i, home
        cdef uint32_t value
        if not self.count:
            return NOWHERE
        hole = self._place(key)
        value = self.values[hole]
        if value == NOWHERE:
            return NOWHERE
        self.count -= 1
        i = hole
        while True:
            i = (i + 1) & (self.room - 1)
            if self.values[i] == NOWHERE:
                break
            home = stirred(self.keys[i]) & (self.room - 1)
            # An entry that would not be found past the hole moves into it.
            if ((i - home) & (self.room - 1)) >= ((i - hole) & (self.room - 1)):
                self.keys[hole] = self.keys[i]
                self.values[hole] = self.values[i]
                hole = i
        self.values[hole] = NOWHERE
        if not self.count:
            free(self.keys)
            free(self.values)
            self.keys = NULL
            self.values = NULL
            self.room = 0
        return value

    cdef int _resize(self, size_t room) except -1:
        cdef uint64_t* old_keys = self.keys
        cdef uint32_t* old_values = self.values
        cdef size_t i, place, old_room = self.room
        cdef uint64_t* keys = <uint64_t*>malloc(room * sizeof(uint64_t))
        cdef uint32_t* values = <uint32_t*>malloc(room * sizeof(uint32_t))
        if keys == NULL or values == NULL:
            free(keys)
            free(values)
            raise MemoryError
        for i in range(room):
            values[i] = NOWHERE
        self.keys = keys
        self.values = values
        self.room = room
        for i in range(old_room):
            if old_values[i] != NOWHERE:
                place = self._place(old_keys[i])
                keys[place] = old_keys[i]
                values[place] = old_values[i]
        free(old_keys)
        free(old_values)
        return 0

    # ----- for callers in Python

    def get(self, uint64_t key):
        """Return the value of `key`, or None."""
        cdef uint32_t value = self.find(key)
        return None if value == NOWHERE else value

    def set(self, uint64_t key, uint32_t value):
        """Set the value of `key`; `put` for callers in Python."""
        self.put(key, value)

    def take(self, uint64_t key):
        """Remove `key` and return its value, or None."""
        cdef uint32_t value = self.pop(key)
        return None if value == NOWHERE else value
