from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from leveret.ports.contents cimport HeadersPlace


cdef class AddedField:
    cdef tuple names        # of the fields
    cdef uint32_t room      # the most bytes by which a content header grows

    cdef uint8_t* write_fields(self, uint64_t offset, uint8_t* out) except NULL
    cdef uint32_t copy(
        self, const uint8_t* header, uint32_t size, uint64_t offset, uint32_t size_max, uint8_t* out
    ) except? 0
    cdef uint8_t* copy_others(self, HeadersPlace* place, uint8_t* out) noexcept
    cdef bint is_ours(self, const uint8_t* field) noexcept


cdef class CountedFields(AddedField):
    cdef list counts        # of each name


cdef class PlacedFields(AddedField):
    cdef int64_t partition
    cdef list counts
