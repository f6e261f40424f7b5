from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t

from leveret.ports.records cimport Batch, RecordView


cdef class FilterCondition:
    cdef bint may_hold(self, Batch batch) noexcept
    cdef bint holds(self, RecordView* record) except -1


cdef class RecordFilter:
    cdef TagCondition tags      # None: no such condition
    cdef FilterCondition other
    cdef SqlCondition sql
    cdef object is_over
    cdef int timed              # number of evaluations in this call when the clock was last read
    cdef readonly bint tired    # whether this call ended, or ends, because its time is over

    cdef int begin(self) noexcept
    cdef bint is_tired(self) except -1
    cdef bint may_want(self, Batch batch) noexcept
    cdef int wants(self, Batch batch, size_t* position) except -1
    cdef bint holds(self, RecordView* record, int judged) except -1
    cdef int keep_place(self, Batch batch, uint64_t offset, size_t position) except -1


cdef class TagCondition(FilterCondition):
    cdef bytes joined                   # the tags, concatenated
    cdef const uint8_t* texts           # its bytes
    cdef uint32_t[64] start             # of each tag there
    cdef uint32_t[64] size
    cdef uint64_t[64] bit
    cdef int16_t[512] program
    cdef int steps
    cdef int tag_count
    cdef uint64_t judged_mask
    cdef int judged

    cdef int judge(self, uint64_t mask) noexcept nogil
    cdef int run_on_mask(self, uint64_t mask, bint joined) noexcept nogil
    cdef bint has_them(self, const uint8_t* header, uint32_t size) noexcept nogil
    cdef bint run_on_tags(self, uint64_t present, bint tagged) noexcept nogil


cdef class SqlCondition(FilterCondition):
    cdef object condition
    cdef object headers         # names of all headers that it reads
    cdef bint asks_properties
    cdef list names             # headers without which it cannot be true
    cdef list texts             # required text of each name, or None
    cdef int judgements         # evaluations in Python in this call

    cdef bint has_needed(self, RecordView* record) except -1
