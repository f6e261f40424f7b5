"""Delayed messages whose only scheduling header is an `x-delay` in milliseconds.

These are nearly all delayed messages. The content header is kept with the delay negated, which
marks that it was delayed, and otherwise unchanged: no table is decoded. Gives the same result as
`leveret.features.delay.rules` for the same headers; called by `leveret.features.delay`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from leveret.ports.contents cimport Properties, be32, field_end, field_is, read_properties, store_be32
from leveret.ports.records cimport HAS_HEADERS

cdef enum:
    CONTENT_HEADER_BYTES = 14
    INTEGER_BYTES = 5           # a signed integer of 32 bits, and the letter before it
    DELAY_MAX = 0x7FFFFFFF      # 24 days in ms: the largest such integer
    TABLE_BYTES_MAX = 4096      # longer tables, or those with nested values, are decoded
    FIELDS_MAX = 64


cdef inline int64_t integer_at(const uint8_t* letter) noexcept nogil:
    """Return a field's value if it is an integer from 1 to DELAY_MAX, of any width; else 0."""
    cdef const uint8_t* value = letter + 1
    cdef uint32_t found = 0
    if letter[0] == c"I" or letter[0] == c"i":
        found = be32(value)
    elif letter[0] == c"l" or letter[0] == c"L":
        found = be32(value + 4) if be32(value) == 0 else 0
    elif letter[0] == c"s":
        found = (value[0] << 8) | value[1] if value[0] < 0x80 else 0
    elif letter[0] == c"u":
        found = (value[0] << 8) | value[1]
    elif letter[0] == c"b":
        found = value[0] if value[0] < 0x80 else 0
    elif letter[0] == c"B":
        found = value[0]
    return found if found <= DELAY_MAX else 0


cdef inline bint is_of_schedules(const uint8_t* field) noexcept nogil:
    """Whether a header's name begins like one of those that `leveret.features.delay.rules` reads."""
    cdef const uint8_t* name = field + 1
    return field[0] > 3 and name[0] == c"x" and name[1] == c"-" and (
        (name[2] == c"d" and name[3] == c"e")
        or (name[2] == c"r" and name[3] == c"e")
        or (name[2] == c"c" and name[3] == c"r")
        or (name[2] == c"s" and name[3] == c"c")
    )


cdef inline bint is_ascii(const uint8_t* field) noexcept nogil:
    cdef uint8_t i
    for i in range(field[0]):
        if field[1 + i] >= 0x80:
            return False
    return True


def plain_delay(bytes header not None):
    """Return (delay in ms, content header to store) of a message with a simple `x-delay`.

    None if the header uses any other scheduling header, or needs full decoding.
    """
    cdef Properties properties
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(header)
    cdef const uint8_t* stop
    cdef const uint8_t* field
    cdef const uint8_t* end
    cdef const uint8_t* letter = NULL
    cdef const uint8_t* behind = NULL
    cdef int64_t delay = 0
    cdef size_t size = PyBytes_GET_SIZE(header)
    cdef size_t before
    cdef int fields = 0
    cdef bytes kept
    cdef uint8_t* out
    if size < CONTENT_HEADER_BYTES or size > TABLE_BYTES_MAX * 2:
        return None
    fields = read_properties(start, <uint32_t>size, &properties)
    if fields < 0 or not fields & HAS_HEADERS or properties.headers.size > TABLE_BYTES_MAX:
        return None
    field = properties.headers.data
    stop = field + properties.headers.size
    fields = 0
    while field < stop:
        end = field_end(field, stop)
        fields += 1
        if end == NULL or fields > FIELDS_MAX or not is_ascii(field):
            return None
        if field_is(field, b"x-delay", 7):
            if letter != NULL:
                return None     # stated twice
            letter, behind = field + 1 + field[0], end
            delay = integer_at(letter)
            if delay == 0:
                return None
        elif is_of_schedules(field):
            return None
        elif field[1 + field[0]] == c"F" or field[1 + field[0]] == c"A":
            return None
        field = end
    if letter == NULL:
        return None
    before = letter - start
    kept = PyBytes_FromStringAndSize(NULL, size - (behind - letter) + INTEGER_BYTES)
    out = <uint8_t*>PyBytes_AS_STRING(kept)
    memcpy(out, start, before)
    out[before] = c"I"
    store_be32(out + before + 1, <uint32_t>-delay)
    memcpy(out + before + INTEGER_BYTES, behind, size - (behind - start))
    store_be32(
        out + (properties.headers.data - start) - 4,
        <uint32_t>(properties.headers.size - (behind - letter) + INTEGER_BYTES),
    )
    return delay, kept
