"""Memory for Arrow columns that compiled code fills.

Buffers are laid out as Arrow has them: a bitmap of what is not null, 32-bit offsets, and bytes.
"""

cimport cython

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef enum:
    BYTES_MIN = 4096
    BYTES_MAX = 0x7FFFFFFF      # what 32-bit offsets can tell


@cython.final
cdef class ArrowBuffer:
    """Memory that grows, and is read as bytes (buffer protocol) once it is complete."""

    def __cinit__(self):
        self.data = NULL

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.reserve(1)     # Arrow takes no buffer that is nowhere
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags & ~PyBUF_WRITABLE)

    cdef int reserve(self, size_t more) except -1:
        cdef size_t wanted = self.size + more
        cdef size_t capacity = max(self.capacity * 2, max(wanted, <size_t>BYTES_MIN))
        cdef uint8_t* grown
        if wanted <= self.capacity:
            return 0
        if wanted > BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: read fewer rows at a time")
        grown = <uint8_t*>realloc(self.data, capacity)
        if grown == NULL:
            raise MemoryError
        self.data, self.capacity = grown, capacity
        return 0

    cdef int put_bit(self, size_t row, bint is_set) except -1:
        """Append a bit, which is that of `row`: the first of a byte is the lowest."""
        cdef uint8_t empty = 0
        if row % 8 == 0:
            self.put(&empty, 1)
        self.data[row // 8] |= <uint8_t>(is_set << (row % 8))
        return 0
