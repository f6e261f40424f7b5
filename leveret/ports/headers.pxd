from libc.stdint cimport uint8_t, uint32_t


cdef enum:
    CONTENT_HEADER_BYTES = 14       # class, weight, body size, flag word
    HEADERS_BIT = 1 << 13           # of the flag word


# Location of the headers table in a content header, or where one would be inserted.
cdef struct HeadersPlace:
    const uint8_t* start        # the table's length prefix, or the place of insertion
    const uint8_t* fields       # the table's fields; equal to `stop` if there is no table
    const uint8_t* stop


cdef bint find_headers(const uint8_t* header, uint32_t size, HeadersPlace* place) noexcept nogil
cdef const uint8_t* field_end(const uint8_t* field, const uint8_t* stop) noexcept nogil
cdef bint field_is(const uint8_t* field, const uint8_t* name, uint8_t name_size) noexcept nogil
cdef uint32_t be32(const uint8_t* p) noexcept nogil
