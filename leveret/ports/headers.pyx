"""Navigation in the headers table of a stored content header, without creating Python objects.

For compiled code of other packages that reads one field of many messages. All integers are
big-endian.

    content header  u16 class | u16 weight | u64 body size | u16 property flags | properties
    properties      content-type: short string, content-encoding: short string, headers: table, …
                    each if its bit (15, 14, 13, …) is set in the flags
    table           u32 size of its fields | field …
    field           short string name | u8 letter | value

Only the length of the publisher's table was checked, so nothing here may trust its content.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp

cdef enum:
    CONTENT_TYPE_BIT = 1 << 15
    CONTENT_ENCODING_BIT = 1 << 14
    CONTINUES_BIT = 1           # another flag word follows: no property supported here needs one


cdef uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef bint find_headers(const uint8_t* header, uint32_t size, HeadersPlace* place) noexcept nogil:
    """Locate the headers table, or where it would be. False if the content header is malformed."""
    cdef const uint8_t* end = header + size
    cdef const uint8_t* p = header + CONTENT_HEADER_BYTES
    cdef uint16_t flags
    if size < CONTENT_HEADER_BYTES:
        return False
    flags = <uint16_t>((header[12] << 8) | header[13])
    if flags & CONTINUES_BIT:
        return False
    if flags & CONTENT_TYPE_BIT:
        if p == end or p[0] >= end - p:
            return False
        p += 1 + p[0]
    if flags & CONTENT_ENCODING_BIT:
        if p == end or p[0] >= end - p:
            return False
        p += 1 + p[0]
    place.start = place.fields = place.stop = p
    if flags & HEADERS_BIT:
        if end - p < 4 or be32(p) > <size_t>(end - p - 4):
            return False
        place.fields = p + 4
        place.stop = p + 4 + be32(p)
    return True


cdef const uint8_t* field_end(const uint8_t* field, const uint8_t* stop) noexcept nogil:
    """Return the end of the field that begins at `field`; NULL if it does not end before `stop`."""
    cdef const uint8_t* value
    cdef size_t size
    cdef uint8_t letter
    if field[0] + 2 > stop - field:
        return NULL
    letter = field[1 + field[0]]
    value = field + 2 + field[0]
    if letter == c"S" or letter == c"F" or letter == c"A" or letter == c"x":
        if stop - value < 4:
            return NULL
        size = 4 + <size_t>be32(value)
    elif letter == c"I" or letter == c"i" or letter == c"f":
        size = 4
    elif letter == c"l" or letter == c"L" or letter == c"d" or letter == c"T":
        size = 8
    elif letter == c"t" or letter == c"b" or letter == c"B":
        size = 1
    elif letter == c"s" or letter == c"u":
        size = 2
    elif letter == c"D":
        size = 5
    elif letter == c"V":
        size = 0
    else:
        return NULL
    return value + size if size <= <size_t>(stop - value) else NULL


cdef bint field_is(const uint8_t* field, const uint8_t* name, uint8_t name_size) noexcept nogil:
    """Whether the field, whose end was found, has this name."""
    return field[0] == name_size and memcmp(field + 1, name, name_size) == 0
