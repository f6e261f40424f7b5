from libc.stdint cimport uint32_t, uint64_t


cdef class PublishTags:
    cdef list runs              # finished runs: (first index, stop index, publisher, first tag)
    cdef object publisher       # of the current run, which may grow
    cdef uint32_t first
    cdef uint32_t stop
    cdef uint64_t tag           # of record `first`

    cdef int note(self, object publisher, uint64_t tag, uint32_t index) except -1
    cdef void _close(self)
