from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport Batch

cimport cython


@cython.final
cdef class LogTail:
    cdef list bases
    cdef readonly list batches          # None where a batch has left
    cdef readonly size_t bytes          # of those that have not
    cdef Py_ssize_t head                # everything before has left
    cdef object spill                   # writes down what must leave; raises StorageError
    cdef Py_ssize_t stuck               # batches that should have left and could not be written down

    cpdef list read(self, uint64_t offset, uint64_t stop, size_t bytes_max)
    cpdef Batch holding(self, uint64_t offset, uint64_t stop)
    cpdef Py_ssize_t place(self, uint64_t offset) except? -1
    cdef int leave(self, Py_ssize_t at) except -1


@cython.final
cdef class TailCache:
    cdef size_t bytes_max
    cdef size_t excess_max
    cdef readonly size_t bytes
    cdef readonly uint64_t dropped_bytes    # since the start, of batches that have left
    cdef object tails                       # of each batch, in the order in which they came
    cdef object stuck_tails                 # the same of those that could not be written down

    cpdef int add(self, LogTail tail, Batch batch) except -1
    cpdef int settle(
        self, LogTail tail, uint64_t first, uint64_t stop, RangeSet settled
    ) except -1
    cpdef int write_down_stuck(self) except -1
    cdef int forget(self, LogTail tail, Batch batch) except -1
    cdef int drop(self, LogTail tail, Batch batch) except -1
    cdef int shrink(self) except -1
    cdef bint is_spilled(self, LogTail tail, Batch batch) except -1
