from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef struct Piece:
    const uint8_t* data
    uint32_t size


# Properties that the broker reads; the fields of an absent property are left unset.
cdef struct Properties:
    Piece headers        # the table's fields, without its length
    Piece reply_to
    Piece expiration
    Piece user_id


cdef int read_properties(const uint8_t* header, uint32_t size, Properties* properties) noexcept nogil
cdef bytes open_header_of(const uint8_t* header, uint32_t size)
cdef bytes rewrite(const uint8_t* header, uint32_t size, bytes table, bytes reply_to, bint expires)
