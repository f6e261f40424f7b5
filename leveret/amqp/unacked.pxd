cimport cython
from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet, Runs


cdef struct Entry:
    uint64_t tag
    uint64_t stop       # one past the last tag
    uint64_t offset     # of the record `tag` stands for
    Py_ssize_t holder   # index into `holders`


@cython.final
cdef class Unacked(Runs):
    cdef readonly uint64_t count
    cdef list holders
    cdef dict holder_numbers
    cdef RangeSet ended         # tags; None until there are some

    cdef Entry* _at(self, Py_ssize_t i) noexcept
    cdef Py_ssize_t _holder(self, holder) except -1
    cpdef int add(self, uint64_t tag, uint64_t count, uint64_t offset, holder) except -1
    cpdef tuple take(self, uint64_t first, uint64_t last)
    cdef bint _skip_ended(self, uint64_t* tag) except -1
    cdef uint64_t _cut(self, Py_ssize_t i, uint64_t first, uint64_t last, list taken) except 0
    cdef void _drop_first(self) noexcept
