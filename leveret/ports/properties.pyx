"""Reading of the properties that a queue obeys, from a stored record's content header.

    content header   u16 class | u16 weight | u64 body size | u16 property flags | properties

The frame reader has checked that the properties fit into their header; one that does not is treated
as missing all the same. For compiled code only.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from leveret.ports.records cimport Batch, RecordView

cdef enum:
    CONTENT_HEADER_BYTES = 14
    HEADERS_BIT = 13
    DELIVERY_MODE_BIT = 12
    PRIORITY_BIT = 11
    EXPIRATION_BIT = 8
    TIMESTAMP_BIT = 6
    EXPIRATION_MS_MAX = 0xFFFFFFFF


cdef const uint8_t* find_property(const RecordView* record, int wanted, uint32_t* size) noexcept nogil:
    """Return a property's value and store its size; NULL if it is absent."""
    cdef const uint8_t* p = record.header + CONTENT_HEADER_BYTES
    cdef const uint8_t* end = record.header + record.header_size
    cdef uint32_t bits
    cdef int bit
    if record.header_size < CONTENT_HEADER_BYTES:
        return NULL
    bits = (record.header[12] << 8) | record.header[13]
    if not bits & (1 << wanted):
        return NULL
    for bit in range(15, wanted - 1, -1):
        if not bits & (1 << bit):
            continue
        if bit == HEADERS_BIT:
            if end - p < 4:
                return NULL
            size[0] = (<uint32_t>p[0] << 24) | (p[1] << 16) | (p[2] << 8) | p[3]
            p += 4
        elif bit == DELIVERY_MODE_BIT or bit == PRIORITY_BIT:
            size[0] = 1
        elif bit == TIMESTAMP_BIT:
            size[0] = 8
        else:
            if p == end:
                return NULL
            size[0] = p[0]
            p += 1
        if size[0] > <size_t>(end - p):
            return NULL
        if bit == wanted:
            return p
        p += size[0]
    return NULL


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


def timestamp_of(Batch batch not None, uint64_t offset):
    """Return a record's `timestamp` property, in seconds since 1970; None if it has none."""
    cdef RecordView record
    cdef uint32_t size
    cdef const uint8_t* value
    batch.view(batch.locate(offset), &record)
    value = find_property(&record, TIMESTAMP_BIT, &size)
    return None if value == NULL else int.from_bytes((<const char*>value)[:size])
