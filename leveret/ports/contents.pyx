"""Codec of content headers: their properties, and the fields of their headers table.

A header is stored and delivered as the publisher wrote it. Compiled code reads it on the way, field
by field and without creating objects, and rewrites it only where the broker must change it: in a
dead letter, or for a reply-to of direct reply-to. Python code gets all properties as a dictionary.

    content header   u16 class | u16 weight | u64 body size | u16 property flags | properties
    flag, property   15 content-type   short string      8 expiration   short string
                     14 content-encoding   "             7 message-id       "
                     13 headers            table         6 timestamp    64 bits
                     12 delivery-mode      octet         5 type         short string
                     11 priority           octet         4 user-id          "
                     10 correlation-id     short string  3 app-id           "
                      9 reply-to           "             2 cluster-id       "
    table            u32 size of its fields | field …
    field            short string name | u8 letter | value

All integers are big-endian. The frame reader has checked that the properties fill their header;
only the length of the publisher's table was checked, so nothing here may trust its fields.
"""

import struct

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from leveret.ports.records cimport (
    HAS_EXPIRATION, HAS_HEADERS, HAS_PRIORITY, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT, RecordView,
)

from leveret.ports.tables import decode_fields, encode_fields

cdef extern from *:
    int __builtin_clz(unsigned int) noexcept nogil      # of GCC and Clang

cdef enum:
    CONTENT_TYPE_BIT = 15
    CONTENT_ENCODING_BIT = 14
    DELIVERY_MODE_BIT = 12
    PRIORITY_BIT = 11
    REPLY_TO_BIT = 9
    EXPIRATION_BIT = 8
    USER_ID_BIT = 4
    LAST_BIT = 2
    CONTINUES_BIT = 0       # another flag word follows: no property supported here needs one
    EXPIRATION_MS_MAX = 0xFFFFFFFF

CLASS_BASIC = 60
# Properties in the order of their flags, from bit 15 down, with their field kinds
# (leveret.ports.tables).
PROPERTIES = {
    "content_type": "r",
    "content_encoding": "r",
    "headers": "t",
    "delivery_mode": "o",
    "priority": "o",
    "correlation_id": "r",
    "reply_to": "r",
    "expiration": "r",
    "message_id": "r",
    "timestamp": "T",
    "type": "r",
    "user_id": "r",
    "app_id": "r",
    "cluster_id": "r",
}


cdef inline uint16_t be16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])


cdef int64_t property_size(int bit, const uint8_t* p, uint32_t rest) noexcept nogil:
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
    cdef uint32_t position = CONTENT_HEADER_BYTES
    cdef uint16_t bits = be16(header + 12)
    cdef int flags = 0
    cdef int bit
    cdef int64_t taken
    cdef const uint8_t* p
    if bits == 1 << DELIVERY_MODE_BIT and size == CONTENT_HEADER_BYTES + 1:      # the most common case
        return PERSISTENT if header[CONTENT_HEADER_BYTES] == 2 else 0
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


cdef const uint8_t* find_property(const RecordView* record, int wanted, uint32_t* size) noexcept nogil:
    """Return the value of a record's property and store its size; NULL if it is absent."""
    cdef const uint8_t* p = record.header + CONTENT_HEADER_BYTES
    cdef const uint8_t* end = record.header + record.header_size
    cdef uint16_t bits
    cdef int64_t taken
    cdef int bit
    if record.header_size < CONTENT_HEADER_BYTES:
        return NULL
    bits = be16(record.header + 12)
    if not bits & (1 << wanted):
        return NULL
    for bit in range(CONTENT_TYPE_BIT, wanted - 1, -1):
        if bits & (1 << bit):
            taken = property_size(bit, p, <uint32_t>(end - p))
            if taken < 0:
                return NULL
            if bit == wanted:
                break
            p += taken
    if wanted == HEADERS_BIT:
        p += 4
        taken -= 4
    elif wanted != DELIVERY_MODE_BIT and wanted != PRIORITY_BIT and wanted != TIMESTAMP_BIT:
        p += 1
        taken -= 1
    size[0] = <uint32_t>taken
    return p


cdef uint64_t expiration_ms(const RecordView* record) noexcept nogil:
    """Return the record's time to live in ms; the largest uint64 if it does not expire."""
    cdef uint32_t size, i
    cdef uint64_t value = 0
    cdef const uint8_t* text = find_property(record, EXPIRATION_BIT, &size)
    if text == NULL or size == 0:
        return <uint64_t>-1
    for i in range(text[0] == c"+", size):
        if not c"0" <= text[i] <= c"9":
            return <uint64_t>-1
        value = min(value * 10 + (text[i] - c"0"), <uint64_t>EXPIRATION_MS_MAX)
    return value


cdef int priority(const RecordView* record, int otherwise) noexcept nogil:
    """Return the record's priority, or `otherwise` if it states none."""
    cdef uint32_t size
    cdef const uint8_t* value = find_property(record, PRIORITY_BIT, &size)
    return otherwise if value == NULL else value[0]


cdef bint find_headers(const uint8_t* header, uint32_t size, HeadersPlace* place) noexcept nogil:
    """Locate the headers table, or where it would be. False if the content header is malformed."""
    cdef const uint8_t* p = header + CONTENT_HEADER_BYTES
    cdef uint16_t bits
    cdef int64_t taken
    cdef int bit
    if size < CONTENT_HEADER_BYTES:
        return False
    bits = be16(header + 12)
    if bits & (1 << CONTINUES_BIT):
        return False
    for bit in range(CONTENT_TYPE_BIT, HEADERS_BIT, -1):
        if bits & (1 << bit):
            taken = property_size(bit, p, <uint32_t>(header + size - p))
            if taken < 0:
                return False
            p += taken
    place.start = place.fields = place.stop = p
    if bits & (1 << HEADERS_BIT):
        taken = property_size(HEADERS_BIT, p, <uint32_t>(header + size - p))
        if taken < 0:
            return False
        place.fields = p + 4
        place.stop = p + taken
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


cdef bytes rewrite(const uint8_t* header, uint32_t size, bytes table, bytes reply_to, bint expires):
    """Return a checked content header with another table (length prefix included) or reply-to.

    None keeps the present value; without `expires` the expiration is removed.
    """
    cdef size_t added = (PyBytes_GET_SIZE(table) if table is not None else 0) + (
        PyBytes_GET_SIZE(reply_to) + 1 if reply_to is not None else 0
    )
    cdef bytes room = PyBytes_FromStringAndSize(NULL, size + added)
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(room)
    cdef uint8_t* o = start + CONTENT_HEADER_BYTES
    cdef uint16_t bits = be16(header + 12)
    cdef uint16_t kept = bits
    cdef const uint8_t* p = header + CONTENT_HEADER_BYTES
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
    if size < CONTENT_HEADER_BYTES or read_properties(data, size, &properties) < 0:
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
    cdef int flags = read_properties(data, size, &properties) if size >= CONTENT_HEADER_BYTES else -1
    if flags < 0:
        raise ValueError("no content header")
    if not flags & HAS_HEADERS:
        return b"\0\0\0\0"
    return (<const char*>properties.headers.data - 4)[: properties.headers.size + 4]


def decode_properties(bytes header not None, *, bint raw_headers=False):
    """Return the properties in a content header by name. Raises MalformedFieldError.

    With `raw_headers` the values of the headers table are RawValues. Like RabbitMQ, ignores the two
    lowest flag bits.
    """
    cdef int flags = int.from_bytes(header[CONTENT_HEADER_BYTES - 2 : CONTENT_HEADER_BYTES])
    names = [name for bit, name in enumerate(PROPERTIES) if flags & 1 << 15 - bit]
    kinds = "".join([PROPERTIES[name] for name in names])
    if raw_headers:
        kinds = kinds.replace("t", "w")
    return dict(zip(names, decode_fields(header, CONTENT_HEADER_BYTES, kinds), strict=True))


def encode_properties(properties, body_bytes):
    """Return the content header of a message with these properties; None means absent.

    Raises ValueError for a value that its property cannot hold.
    """
    cdef int flags = 0
    kinds, values = "", []
    for bit, (name, kind) in enumerate(PROPERTIES.items()):
        value = properties.get(name)
        if value is not None:
            flags |= 1 << 15 - bit
            kinds += kind
            values.append(value)
    head = struct.pack(">HHQH", CLASS_BASIC, 0, body_bytes, flags)
    return head + encode_fields(kinds, values)
