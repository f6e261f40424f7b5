cimport cython
from libc.stdint cimport uint64_t


@cython.final
cdef class ServiceLine:
    cdef readonly object priority
    cdef uint64_t turns                 # turn numbers given out so far
    cdef dict places                    # turn number of each consumer
    cdef list entries                   # (turn number, consumer), a heap; turn numbers are unique
    cdef set aside                      # consumers without an entry, until they are woken

    cpdef object next(self)
    cpdef int set_aside(self, consumer) except -1
    cpdef object share(self, capacity, uint64_t ready_count)
    cpdef object served(self, consumer)
    cpdef object wake(self, consumer)
    cpdef object wake_all(self)
    cdef bint is_place(self, tuple entry) except -1
    cdef tuple last_place(self, consumer)
    cdef int stand_last(self, consumer) except -1
    cdef int tidy(self) except -1
    cdef int make_anew(self) except -1
