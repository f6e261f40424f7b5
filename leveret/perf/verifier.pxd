from libc.stdint cimport uint64_t

cdef struct Run:
    uint64_t first
    uint64_t stop

cdef class Verifier:
    cdef size_t publishers
    cdef size_t numbers
    cdef size_t slots
    cdef Run* runs
    cdef dict ranges
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t foreign

    cdef int note(self, size_t slot, uint64_t identity) except -1
    cdef int _store(self, size_t stream) except -1
