"""Content headers of messages: reading the properties, and rewriting some of them.

A header is stored and delivered as the publisher wrote it. Compiled code reads it on the way (the
frame reader: user-id, reply-to) and rewrites it only where the broker must change it: in a dead
letter, or for a reply-to of direct reply-to.

    content header   u16 class | u16 weight | u64 body size | u16 property flags | properties
    flag, property   15 content-type   short string      8 expiration   short string
                     14 content-encoding   "             7 message-id       "
                     13 headers            table         6 timestamp    64 bits
                     12 delivery-mode      octet         5 type         short string
                     11 priority           octet         4 user-id          "
                     10 correlation-id     short string  3 app-id           "
                      9 reply-to           "             2 cluster-id       "
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from leveret.ports.headers cimport be32, field_end, field_is
from leveret.ports.records cimport (
    HAS_EXPIRATION, HAS_HEADERS, HAS_PRIORITY, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT,
)

cdef extern from *:
    int __builtin_clz(unsigned int) noexcept nogil      # of GCC and Clang

cdef enum:
    FIXED_BYTES = 14        # class, weight, body size, property flags
    HEADERS_BIT = 13
    DELIVERY_MODE_BIT = 12
    PRIORITY_BIT = 11
    REPLY_TO_BIT = 9
    EXPIRATION_BIT = 8
    TIMESTAMP_BIT = 6
    USER_ID_BIT = 4
    LAST_BIT = 2


cdef inline uint16_t be16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])


cdef inline void store_be32(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v


cdef inline int64_t property_size(int bit, const uint8_t* p, uint32_t rest) noexcept nogil:
    """Return the size of the property at `p`, length included; -1 if it exceeds `rest` bytes."""
    cdef uint32_t size
    if bit == HEADERS_BIT:
        if rest < 4:
            return -1
        size = be32(p)
        return -1 if size > rest - 4 else <int64_t>size + 4
    if bit == DELIVERY_MODE_BIT or bit == PRIORITY_BIT:
        size = 1
    elif bit == TIMESTAMP_BIT:
        size = 8
    elif rest == 0:
        return -1
    else:
        size = <uint32_t>p[0] + 1
    return -1 if size > rest else <int64_t>size


cdef inline void note_short(Piece* text, const uint8_t* p) noexcept nogil:
    text.data = p + 1
    text.size = p[0]


cdef int read_properties(const uint8_t* header, uint32_t size, Properties* properties) noexcept nogil:
    """Return the RecordFlag bits of a content header; -1 unless its properties fill it exactly."""
    cdef uint32_t position = FIXED_BYTES
    cdef uint16_t bits = be16(header + 12)
    cdef int flags = 0
    cdef int bit
    cdef int64_t taken
    cdef const uint8_t* p
    if bits == 1 << DELIVERY_MODE_BIT and size == FIXED_BYTES + 1:      # the most common case
        return PERSISTENT if header[FIXED_BYTES] == 2 else 0
    if bits & 3:        # a second flag word, and a property that does not exist
        return -1
    while bits:         # from the highest flag down, skipping those that are not set
        bit = 31 - __builtin_clz(bits)
        bits ^= <uint16_t>(1 << bit)
        p = header + position
        taken = property_size(bit, p, size - position)
        if taken < 0:
            return -1
        if bit == HEADERS_BIT:
            flags |= HAS_HEADERS
            properties.headers.data = p + 4
            properties.headers.size = <uint32_t>taken - 4
        elif bit == DELIVERY_MODE_BIT:
            if p[0] == 2:
                flags |= PERSISTENT
        elif bit == PRIORITY_BIT:
            flags |= HAS_PRIORITY
        elif bit == REPLY_TO_BIT:
            flags |= HAS_REPLY_TO
            note_short(&properties.reply_to, p)
        elif bit == EXPIRATION_BIT:
            flags |= HAS_EXPIRATION
            note_short(&properties.expiration, p)
        elif bit == USER_ID_BIT:
            flags |= HAS_USER_ID
            note_short(&properties.user_id, p)
        position += <uint32_t>taken
    return flags if position == size else -1


cdef bytes rewrite(const uint8_t* header, uint32_t size, bytes table, bytes reply_to, bint expires):
    """Return a checked content header with another table (length prefix included) or reply-to.

    None keeps the present value; without `expires` the expiration is removed.
    """
    cdef size_t added = (PyBytes_GET_SIZE(table) if table is not None else 0) + (
        PyBytes_GET_SIZE(reply_to) + 1 if reply_to is not None else 0
    )
    cdef bytes room = PyBytes_FromStringAndSize(NULL, size + added)
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(room)
    cdef uint8_t* o = start + FIXED_BYTES
    cdef uint16_t bits = be16(header + 12)
    cdef uint16_t kept = bits
    cdef const uint8_t* p = header + FIXED_BYTES
    cdef int64_t taken
    cdef int bit
    memcpy(start, header, 12)
    for bit in range(15, LAST_BIT - 1, -1):
        taken = property_size(bit, p, <uint32_t>(header + size - p)) if bits & (1 << bit) else 0
        if bit == HEADERS_BIT and table is not None:
            kept |= 1 << bit
            o = put(o, <const uint8_t*>PyBytes_AS_STRING(table), PyBytes_GET_SIZE(table))
        elif bit == REPLY_TO_BIT and reply_to is not None:
            kept |= 1 << bit
            o[0] = <uint8_t>PyBytes_GET_SIZE(reply_to)
            o = put(o + 1, <const uint8_t*>PyBytes_AS_STRING(reply_to), PyBytes_GET_SIZE(reply_to))
        elif bit == EXPIRATION_BIT and not expires:
            kept &= ~(1 << bit)
        else:
            o = put(o, p, taken)
        p += taken
    start[12] = <uint8_t>(kept >> 8)
    start[13] = <uint8_t>kept
    return room[: o - start]


cdef bytes open_header_of(const uint8_t* header, uint32_t size):
    """Return a content header without the header BCC; unchanged if it is malformed."""
    cdef Properties properties
    cdef const uint8_t* field
    cdef const uint8_t* stop
    cdef const uint8_t* end
    cdef bytes table
    cdef uint8_t* start
    cdef uint8_t* o
    cdef int flags = read_properties(header, size, &properties)
    if flags < 0 or not flags & HAS_HEADERS:
        return (<const char*>header)[:size]
    field, stop = properties.headers.data, properties.headers.data + properties.headers.size
    table = PyBytes_FromStringAndSize(NULL, properties.headers.size + 4)
    start = <uint8_t*>PyBytes_AS_STRING(table)
    o = start + 4
    while field < stop:
        end = field_end(field, stop)
        if end == NULL:     # malformed fields are copied unchanged
            end = stop
        elif field_is(field, b"BCC", 3):
            field = end
            continue
        o = put(o, field, end - field)
        field = end
    store_be32(start, <uint32_t>(o - start - 4))
    return rewrite(header, size, table[: o - start], None, True)


cdef inline uint8_t* put(uint8_t* o, const uint8_t* data, size_t size) noexcept nogil:
    memcpy(o, data, size)
    return o + size


def with_properties(bytes header not None, *, bytes table=None, bytes reply_to=None, bint expires=True):
    """Return a content header with properties replaced, as `rewrite`.

    Raises ValueError if malformed.
    """
    cdef Properties properties
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(header)
    cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(header)
    if size < FIXED_BYTES or read_properties(data, size, &properties) < 0:
        raise ValueError("no content header")
    return rewrite(data, size, table, reply_to, expires)


def open_header(bytes header not None):
    """Return a content header without the header BCC. Raises ValueError if it is malformed."""
    with_properties(header)
    return open_header_of(<const uint8_t*>PyBytes_AS_STRING(header), <uint32_t>PyBytes_GET_SIZE(header))


def headers_table(bytes header not None):
    """Return the headers table with its length prefix, empty if there is none.

    Raises ValueError.
    """
    cdef Properties properties
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(header)
    cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(header)
    cdef int flags = read_properties(data, size, &properties) if size >= FIXED_BYTES else -1
    if flags < 0:
        raise ValueError("no content header")
    if not flags & HAS_HEADERS:
        return b"\0\0\0\0"
    return (<const char*>properties.headers.data - 4)[: properties.headers.size + 4]
