from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet


cdef struct Run:
    uint64_t first
    uint64_t stop
    bint redelivered            # all of its offsets, or none


cdef class LedgerBase:
    cdef readonly uint64_t committed    # offsets below it are ready, leased or settled

    cdef uint64_t count_ready(self) noexcept
    cdef Run next_run(self, uint64_t limit) except *
    cpdef commit(self, uint64_t stop)
    cpdef lease(self, uint64_t first, uint64_t stop)
    cpdef uint64_t settle(self, ranges) except? 0xFFFFFFFFFFFFFFFF


cdef RangeSet noted(RangeSet came_back, uint64_t first, uint64_t stop)


cdef class Fresh:
    cdef RangeSet offsets       # None while there are none, as nearly always

    cdef int pass_over(self, RangeSet ready, uint64_t first, uint64_t stop) except -1
    cdef bint kind(self, uint64_t first, uint64_t* stop) noexcept
    cdef int forget(self, uint64_t first, uint64_t stop) except -1
    cdef void clear(self) noexcept


cdef tuple alike(
    RangeSet ready, Fresh fresh, uint64_t redelivered_stop, uint64_t limit, uint64_t end
)
