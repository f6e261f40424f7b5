"""Content headers as Arrow columns: properties as strings, headers as lists of keys and values.

A chunk of a range read has each record's content header as AMQP has it (leveret.ports.contents
draws it). Compiled since it looks at every record; an object is made only for values that are
tables, arrays, decimals or floating-point numbers. Nothing in the bytes is trusted: what cannot be
parsed ends the record's properties.
"""

cimport cython

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from leveret.ports.contents cimport (
    CONTENT_HEADER_BYTES, HEADERS_BIT, be32, field_end, property_size,
)
from leveret.spark.arrow_buffer cimport ArrowBuffer

import json

from leveret.ports.tables import MalformedFieldError, decode_value

# By the bit of their flag: all properties that are short strings.
STRINGS = {
    "content_type": 15,
    "content_encoding": 14,
    "correlation_id": 10,
    "reply_to": 9,
    "expiration": 8,
    "message_id": 7,
    "type": 5,
    "user_id": 4,
    "app_id": 3,
}
PRIORITY = "priority"

cdef enum:
    PRIORITY_BIT = 11
    LAST_BIT = 2
    NUMBER_TEXT_BYTES = 32


@cython.final
cdef class NullableBytes:
    """A column of strings or bytes."""

    cdef readonly ArrowBuffer valid
    cdef readonly ArrowBuffer offsets
    cdef readonly ArrowBuffer values
    cdef readonly size_t rows
    cdef readonly size_t nulls

    def __cinit__(self):
        cdef int32_t zero = 0
        self.valid, self.offsets, self.values = ArrowBuffer(), ArrowBuffer(), ArrowBuffer()
        self.offsets.put(&zero, 4)

    @property
    def buffers(self):
        """The buffers in Arrow's order."""
        return [self.valid, self.offsets, self.values]

    cdef int end_row(self, bint is_valid) except -1:
        cdef int32_t stop = <int32_t>self.values.size
        self.offsets.put(&stop, 4)
        self.nulls += not is_valid
        self.rows += 1
        return self.valid.put_bit(self.rows - 1, is_valid)

    cdef int put_bytes(self, const uint8_t* data, size_t size) except -1:
        self.values.put(data, size)
        return self.end_row(True)

    cdef int put_text(self, const uint8_t* data, size_t size) except -1:
        """Append a string; bytes that are no UTF-8 become U+FFFD."""
        cdef bytes shown
        cdef size_t i
        for i in range(size):
            if data[i] & 0x80:
                shown = PyUnicode_DecodeUTF8(<const char*>data, size, "replace").encode()
                self.values.put(<const char*>shown, len(shown))
                return self.end_row(True)
        self.values.put(data, size)
        return self.end_row(True)


@cython.final
cdef class NullableNumbers:
    """A column of 32-bit integers."""

    cdef readonly ArrowBuffer valid
    cdef readonly ArrowBuffer values
    cdef readonly size_t rows
    cdef readonly size_t nulls

    def __cinit__(self):
        self.valid, self.values = ArrowBuffer(), ArrowBuffer()

    @property
    def buffers(self):
        """The buffers in Arrow's order."""
        return [self.valid, self.values]

    cdef int put(self, bint is_valid, int32_t value) except -1:
        self.values.put(&value, 4)
        self.nulls += not is_valid
        self.rows += 1
        return self.valid.put_bit(self.rows - 1, is_valid)


@cython.final
cdef class PropertyColumns:
    """Columns made of content headers: the properties in `names`, and maybe the headers.

    `strings` has a NullableBytes for each name that is a string, `priorities` those of `priority`.
    The headers of row n are entries `ends[n]` to `ends[n + 1]` (32-bit) of `keys` and `values`.
    """

    cdef readonly dict strings
    cdef readonly NullableNumbers priorities
    cdef readonly ArrowBuffer ends
    cdef readonly NullableBytes keys
    cdef readonly NullableBytes values
    cdef bint has_headers
    cdef list by_bit        # NullableBytes or None

    def __init__(self, names, bint has_headers):
        cdef int32_t zero = 0
        self.has_headers = has_headers
        self.strings = {}
        self.by_bit = [None] * 16
        for name in names:
            if name == PRIORITY:
                self.priorities = NullableNumbers()
            else:
                self.strings[name] = self.by_bit[STRINGS[name]] = NullableBytes()
        self.ends, self.keys, self.values = ArrowBuffer(), NullableBytes(), NullableBytes()
        self.ends.put(&zero, 4)

    def add(self, const uint8_t[::1] headers, const int32_t[::1] table, size_t first, size_t stop):
        """Take the content headers `first` to `stop` of a chunk. Raises ValueError.

        `table` says where each begins and ends in `headers`.
        """
        cdef size_t row
        cdef int32_t begin, end
        if stop >= <size_t>table.shape[0] or first > stop:
            raise ValueError(f"rows {first} to {stop} of {table.shape[0] - 1}")
        for row in range(first, stop):
            begin, end = table[row], table[row + 1]
            if not 0 <= begin <= end <= headers.shape[0]:
                raise ValueError(f"the content header of row {row} is outside of its column")
            if begin == end:
                self.put(NULL, 0)
            else:
                self.put(&headers[begin], <uint32_t>(end - begin))

    cdef int put(self, const uint8_t* header, uint32_t size) except -1:
        cdef NullableBytes column
        cdef const uint8_t* p
        cdef int32_t stop
        cdef int64_t taken
        cdef uint16_t bits = 0
        cdef bint is_broken = False
        cdef uint32_t position = CONTENT_HEADER_BYTES
        cdef int bit
        cdef int32_t priority = -1
        if size >= CONTENT_HEADER_BYTES:
            bits = <uint16_t>((header[12] << 8) | header[13])
        for bit in range(15, LAST_BIT - 1, -1):
            column = self.by_bit[bit]
            if is_broken or not bits & (1 << bit):
                if column is not None:
                    column.end_row(False)
                continue
            p = header + position
            taken = property_size(bit, p, size - position)
            if taken < 0:
                is_broken = True
                if column is not None:
                    column.end_row(False)
                continue
            if column is not None:
                column.put_text(p + 1, p[0])
            elif bit == HEADERS_BIT and self.has_headers:
                self.put_fields(p + 4, p + taken)
            elif bit == PRIORITY_BIT:
                priority = p[0]
            position += <uint32_t>taken
        if self.priorities is not None:
            self.priorities.put(priority >= 0, max(priority, 0))
        if self.has_headers:
            stop = <int32_t>self.keys.rows
            self.ends.put(&stop, 4)
        return 0

    cdef int put_fields(self, const uint8_t* field, const uint8_t* stop) except -1:
        cdef const uint8_t* after
        while field < stop:
            after = field_end(field, stop)
            if after == NULL:
                return 0
            self.keys.put_text(field + 1, field[0])
            self.put_value(field, after)
            field = after
        return 0

    cdef int put_value(self, const uint8_t* field, const uint8_t* after) except -1:
        """Append a header's value: strings as they are, other values as text, None as null."""
        cdef char[NUMBER_TEXT_BYTES] text
        cdef uint8_t letter = field[1 + field[0]]
        cdef const uint8_t* value = field + 2 + field[0]
        cdef bytes shown
        cdef uint64_t number = 0
        cdef const uint8_t* p
        cdef int size
        if letter == c"S" or letter == c"x":
            return self.values.put_bytes(value + 4, be32(value))
        if letter == c"V":
            return self.values.end_row(False)
        if letter == c"t":
            return self.put_truth(value[0] != 0)
        if letter == c"F" or letter == c"A" or letter == c"D" or letter == c"f" or letter == c"d":
            shown = _as_json((<const char*>value - 1)[: after - value + 1])
            return self.values.put_bytes(<const uint8_t*><const char*>shown, len(shown))
        p = value
        while p < after:
            number = number << 8 | p[0]
            p += 1
        size = _write_number(text, letter, number)
        return self.values.put_bytes(<const uint8_t*>text, size)

    cdef int put_truth(self, bint is_true) except -1:
        if is_true:
            return self.values.put_bytes(<const uint8_t*>b"true", 4)
        return self.values.put_bytes(<const uint8_t*>b"false", 5)


cdef int _write_number(char* text, uint8_t letter, uint64_t number) noexcept:
    """Write an integer of a field's type as decimal text. Returns its size."""
    cdef int64_t signed_number = <int64_t>number
    if letter == c"b":
        signed_number = <int8_t>number
    elif letter == c"s":
        signed_number = <int16_t>number
    elif letter == c"I":
        signed_number = <int32_t>number
    elif letter == c"T":
        return snprintf(text, NUMBER_TEXT_BYTES, b"%llu", <unsigned long long>number)
    return snprintf(text, NUMBER_TEXT_BYTES, b"%lld", <long long>signed_number)


cdef bytes _as_json(bytes field):
    """Return a field's value, after its letter, as JSON text; nothing if it cannot be decoded."""
    try:
        value = decode_value(field)
    except MalformedFieldError:
        return b""
    return json.dumps(value, default=_as_text, ensure_ascii=False, sort_keys=True).encode(
        "utf-8", "replace"
    )


def _as_text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
