from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    NOWHERE = 0x7FFFFFFF    # no index: absent from the map, or the end of a list


cdef class NumberMap:
    cdef uint64_t* keys
    cdef uint32_t* values       # NOWHERE: the place is free
    cdef size_t room            # a power of two, or 0
    cdef readonly size_t count

    cdef uint32_t find(self, uint64_t key) noexcept
    cdef int put(self, uint64_t key, uint32_t value) except -1
    cdef uint32_t pop(self, uint64_t key) noexcept
    cdef size_t _place(self, uint64_t key) noexcept
    cdef int _resize(self, size_t room) except -1
