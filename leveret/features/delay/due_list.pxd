from libc.stdint cimport uint64_t
from libcpp.vector cimport vector


cdef struct Due:
    uint64_t due_ms
    uint64_t offset


cdef class DueList:
    cdef vector[Due] items

    cdef int push(self, uint64_t due_ms, uint64_t offset) except -1
