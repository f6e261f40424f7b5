cimport cython
from libc.stdint cimport uint64_t


@cython.final
cdef class ServiceLine:
    cdef object priority
    cdef uint64_t turns                 # turn numbers given out so far
    cdef dict places                    # turn number of each consumer
    cdef list entries                   # (turn number, consumer), a heap; turn numbers are unique
    cdef set aside                      # consumers without an entry, until they are woken

    cdef object first(self)
    cdef int add(self, consumer) except -1
    cdef int remove(self, consumer) except -1
    cdef object next(self)
    cdef int set_aside(self, consumer) except -1
    cdef uint64_t share(self, uint64_t capacity, uint64_t ready_count) except? 0
    cdef int served(self, consumer) except -1
    cdef int wake(self, consumer) except -1
    cdef int wake_all(self) except -1
    cdef bint is_place(self, tuple entry) except -1
    cdef tuple last_place(self, consumer)
    cdef int stand_last(self, consumer) except -1
    cdef int tidy(self) except -1
    cdef int make_anew(self) except -1
