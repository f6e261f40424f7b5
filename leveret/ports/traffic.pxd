from libc.stdint cimport uint64_t


cdef class Traffic:
    cdef readonly uint64_t messages
    cdef readonly uint64_t bytes

    cdef inline void add(self, uint64_t messages, uint64_t stored) noexcept:
        self.messages += messages
        self.bytes += stored
