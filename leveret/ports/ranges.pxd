from libc.stdint cimport uint64_t


cdef struct Range:
    uint64_t first
    uint64_t stop


cdef class RangeSet:
    cdef Range* block           # the allocation; what lies before `ranges` is room to grow to the front
    cdef Range* ranges
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity    # from `ranges` on
    cdef readonly uint64_t count

    cdef Py_ssize_t _find(self, uint64_t offset) noexcept
    cdef int _reserve(self, Py_ssize_t extra) except -1
    cdef int _reserve_before(self, Py_ssize_t extra) except -1
    cdef int _move_to(self, Py_ssize_t room, Py_ssize_t before) except -1
    cdef int _splice(self, Py_ssize_t at, Py_ssize_t removed, Range* put, Py_ssize_t added) except -1
    cpdef uint64_t add(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF
    cpdef uint64_t remove(self, uint64_t first, uint64_t stop) except? 0xFFFFFFFFFFFFFFFF
