from libc.stdint cimport uint64_t


cdef struct Due:
    uint64_t due_ms
    uint64_t offset


cdef class DueList:
    cdef Due* items
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef int reserve(self, Py_ssize_t extra) except -1
    cdef int push(self, uint64_t due_ms, uint64_t offset) except -1
