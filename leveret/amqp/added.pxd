from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from leveret.ports.headers cimport HeadersPlace


cdef class AddedField:
    cdef bytes name
    cdef uint32_t room      # the most bytes by which a content header grows

    cdef bint value_of(self, uint64_t offset, int64_t* value) except -1
    cdef uint32_t copy(
        self, const uint8_t* header, uint32_t size, uint64_t offset, uint32_t size_max, uint8_t* out
    ) except? 0
    cdef uint8_t* write_field(self, int64_t value, uint8_t* out) noexcept
    cdef uint8_t* copy_others(self, HeadersPlace* place, uint8_t* out) noexcept


cdef class CountedField(AddedField):
    cdef dict counts
