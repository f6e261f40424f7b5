from libc.stdint cimport uint8_t, uint32_t, uint64_t


# Tags of a message as encoded in its headers: items, each with type letter and length first.
cdef struct TagItems:
    const uint8_t* next
    const uint8_t* stop


cdef uint64_t tag_bit(const uint8_t* tag, uint32_t size) noexcept nogil
cdef bint find_tags(const uint8_t* header, uint32_t size, TagItems* items) noexcept nogil
cdef bint next_tag(TagItems* items, const uint8_t** tag, uint32_t* size) noexcept nogil
cdef uint64_t mask_of(const uint8_t* header, uint32_t size) noexcept nogil
cdef uint64_t checked_mask(const uint8_t* fields, const uint8_t* stop) except? 0
