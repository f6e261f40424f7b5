from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from leveret.ports.records cimport RecordView


cdef enum:
    CONTENT_HEADER_BYTES = 14       # class, weight, body size, property flags
    HEADERS_BIT = 13                # of the property flags
    TIMESTAMP_BIT = 6


cdef struct Piece:
    const uint8_t* data
    uint32_t size


# Properties that the broker reads; the fields of an absent property are left unset.
cdef struct Properties:
    Piece headers        # the table's fields, without its length
    Piece reply_to
    Piece expiration
    Piece user_id


# Location of the headers table in a content header, or where one would be inserted.
cdef struct HeadersPlace:
    const uint8_t* start        # the table's length prefix, or the place of insertion
    const uint8_t* fields       # the table's fields; equal to `stop` if there is no table
    const uint8_t* stop


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline void store_be32(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v


cdef int64_t property_size(int bit, const uint8_t* p, uint32_t rest) noexcept nogil
cdef int read_properties(const uint8_t* header, uint32_t size, Properties* properties) noexcept nogil
cdef const uint8_t* find_property(const RecordView* record, int wanted, uint32_t* size) noexcept nogil
cdef uint64_t expiration_ms(const RecordView* record) noexcept nogil
cdef int priority(const RecordView* record, int otherwise) noexcept nogil
cdef bint find_headers(const uint8_t* header, uint32_t size, HeadersPlace* place) noexcept nogil
cdef const uint8_t* field_end(const uint8_t* field, const uint8_t* stop) noexcept nogil
cdef bint field_is(const uint8_t* field, const uint8_t* name, uint8_t name_size) noexcept nogil
cdef bytes open_header_of(const uint8_t* header, uint32_t size)
cdef bytes rewrite(const uint8_t* header, uint32_t size, bytes table, bytes reply_to, bint expires)
