from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.string cimport memcpy


cdef class ArrowBuffer:
    cdef uint8_t* data
    cdef readonly size_t size
    cdef size_t capacity

    cdef int reserve(self, size_t more) except -1
    cdef int put_bit(self, size_t row, bint is_set) except -1

    cdef inline int put(self, const void* data, size_t size) except -1:
        if self.size + size > self.capacity:
            self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0
