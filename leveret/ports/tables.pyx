"""Decoding and encoding of field tables and method arguments.

`amqp` uses it for methods and headers, and lower packages where a feature reads or writes a
message's headers (dead letters).

The arguments of a method and the properties of a message are a sequence of *fields*, described by one
letter each (`FIELD_KINDS` below); a field table nests. Reading is one pass over checked pointers:
whatever the bytes are, the result is values or a `MalformedFieldError`, in time and memory
proportional to what was sent.

    field table  = length:32 { name-length:8 name letter value }
    field array  = length:32 { letter value }

    letter  value on the wire         in Python
    t       octet                     bool
    b B     8 bits, signed / not      WireInteger
    s u     16 bits, signed / not     WireInteger
    I i     32 bits, signed / not     int / WireInteger
    l L     64 bits, signed           int; WireInteger where 32 bits would do
    f d     IEEE 754, 32 / 64 bits    float
    D       scale:8 signed:32         Decimal
    S       length:32 octets          str, or bytes when it is not UTF-8
    x       length:32 octets          bytearray
    T       64 bits                   Timestamp
    A F     array, table              list, dict
    V       nothing                   None

These are the letters RabbitMQ reads (the specification's errata). A name that occurs twice keeps its
first value, as RabbitMQ's look-ups find the first. Names that are not UTF-8 survive as surrogate escapes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

import struct
from datetime import datetime, timezone
from decimal import Decimal

from leveret.ports.fields import WireInteger

# No legitimate table nests this deep (x-death is table, array, table), and 64 levels stay far below
# the interpreter's recursion limit of 1,000 for code that walks the values later: json, copy, repr.
TABLE_DEPTH_MAX = 64
# A table lies in one frame, and frame_max is 128 KiB unless the operator raised it; a Python value costs
# up to forty times its bytes, so that 1 MiB on the wire is the most that is worth opening.
TABLE_BYTES_MAX = 1 << 20
# Values of one table, nested ones included: an array of a million `V` would be a list of 8 MB.
TABLE_VALUES_MAX = 1 << 16

cdef int DEPTH_MAX = TABLE_DEPTH_MAX
cdef size_t BYTES_MAX = TABLE_BYTES_MAX
cdef int VALUES_MAX = TABLE_VALUES_MAX

FIELD_KINDS = {
    "o": "octet",
    "h": "16 bits, unsigned",
    "l": "32 bits, unsigned",
    "q": "64 bits, unsigned",
    "b": "bit: up to eight neighbours share an octet",
    "s": "short string, must be UTF-8",
    "r": "short string of any octets: exchange names and keys on the publish path, message properties",
    "S": "long string, given as bytes",
    "t": "field table",
    "w": "field table whose values stay as they are on the wire (RawValue)",
    "T": "timestamp",
}


class MalformedFieldError(ValueError):
    """Raised when bytes are not the expected fields."""


class MalformedTextError(MalformedFieldError):
    """Raised for a short string that must be UTF-8 and is not."""


class TableLimitError(MalformedFieldError):
    """Raised for a table beyond TABLE_DEPTH_MAX, TABLE_BYTES_MAX or TABLE_VALUES_MAX."""


class Timestamp(int):
    """Seconds since 1970 as the peer sent them, 64 bits unsigned; not converted to a datetime."""

    __slots__ = ()

    def __repr__(self):
        return f"Timestamp({int(self)})"


class RawValue(bytes):
    """A table value as on the wire, type letter included: passed on with its exact type."""

    __slots__ = ()


cdef struct Cursor:
    const uint8_t* data
    size_t position
    size_t stop
    int depth
    int values_max      # of one table, nested ones included
    int values_left


cdef const uint8_t* take(Cursor* cursor, size_t size) except NULL:
    """Consume and return the next `size` bytes."""
    if size > cursor.stop - cursor.position:
        raise MalformedFieldError("a field reaches beyond the end of the data")
    cdef const uint8_t* start = cursor.data + cursor.position
    cursor.position += size
    return start


cdef uint64_t unsigned(Cursor* cursor, int size) except? 0xDEADBEEF:
    cdef const uint8_t* start = take(cursor, size)
    cdef uint64_t value = 0
    cdef int index
    for index in range(size):
        value = value << 8 | start[index]
    return value


cdef size_t enclosed(Cursor* cursor, size_t* outer_stop) except? 0xDEADBEEF:
    """Enter a length-prefixed table or array: limit the cursor to its end, saving the outer end."""
    cdef size_t size = unsigned(cursor, 4)
    if size > cursor.stop - cursor.position:
        raise MalformedFieldError("a table reaches beyond the end of the data")
    if size > BYTES_MAX:
        raise TableLimitError(f"field table larger than {TABLE_BYTES_MAX} bytes")
    if cursor.depth >= DEPTH_MAX:
        raise TableLimitError(f"field table nested deeper than {TABLE_DEPTH_MAX}")
    outer_stop[0] = cursor.stop
    cursor.stop = cursor.position + size
    cursor.depth += 1
    return size


cdef object text(Cursor* cursor, size_t size, const char* errors):
    cdef const uint8_t* start = take(cursor, size)
    return PyUnicode_DecodeUTF8(<const char*>start, size, errors)


cdef object long_string(Cursor* cursor):
    cdef size_t size = unsigned(cursor, 4)
    cdef const uint8_t* start = take(cursor, size)
    return (<const char*>start)[:size]


cdef object text_or_bytes(Cursor* cursor):
    cdef bytes value = long_string(cursor)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


cdef object floating(Cursor* cursor, int size):
    cdef uint64_t bits = unsigned(cursor, size)
    cdef uint32_t bits32 = <uint32_t>bits
    cdef float single
    cdef double value
    if size == 4:
        memcpy(&single, &bits32, 4)
        return <double>single
    memcpy(&value, &bits, 8)
    return value


cdef object decimal(Cursor* cursor):
    cdef int scale = <int>unsigned(cursor, 1)
    cdef int32_t mantissa = <int32_t>unsigned(cursor, 4)
    return Decimal(mantissa).scaleb(-scale)


cdef object long_integer(int64_t value):
    return value if value != <int32_t>value else WireInteger(value, "long")


cdef object value_of(Cursor* cursor):
    """Decode one value, preceded by its type letter."""
    cdef uint8_t letter = take(cursor, 1)[0]
    if cursor.values_left <= 0:
        raise TableLimitError(f"field table of more than {cursor.values_max} values")
    cursor.values_left -= 1
    if letter == c"S":
        return text_or_bytes(cursor)
    if letter == c"I":
        return <int32_t>unsigned(cursor, 4)
    if letter == c"l" or letter == c"L":
        return long_integer(<int64_t>unsigned(cursor, 8))
    if letter == c"t":
        return unsigned(cursor, 1) != 0
    if letter == c"F":
        return table(cursor)
    if letter == c"A":
        return array(cursor)
    if letter == c"T":
        return Timestamp(unsigned(cursor, 8))
    if letter == c"V":
        return None
    if letter == c"b":
        return WireInteger(<int8_t>unsigned(cursor, 1), "byte")
    if letter == c"B":
        return WireInteger(unsigned(cursor, 1), "unsignedbyte")
    if letter == c"s":
        return WireInteger(<int16_t>unsigned(cursor, 2), "short")
    if letter == c"u":
        return WireInteger(unsigned(cursor, 2), "unsignedshort")
    if letter == c"i":
        return WireInteger(unsigned(cursor, 4), "unsignedint")
    if letter == c"d":
        return floating(cursor, 8)
    if letter == c"f":
        return floating(cursor, 4)
    if letter == c"D":
        return decimal(cursor)
    if letter == c"x":
        return bytearray(long_string(cursor))
    raise MalformedFieldError(f"unknown field type {letter}")


cdef object raw_value(Cursor* cursor):
    cdef size_t start = cursor.position
    value_of(cursor)    # decoded to validate it and to find its length
    return RawValue((<const char*>cursor.data)[start:cursor.position])


cdef dict table(Cursor* cursor, bint raw=False):
    cdef size_t outer_stop = 0
    cdef dict values = {}
    enclosed(cursor, &outer_stop)
    while cursor.position < cursor.stop:
        name = text(cursor, unsigned(cursor, 1), "surrogateescape")
        value = raw_value(cursor) if raw else value_of(cursor)
        values.setdefault(name, value)
    cursor.stop = outer_stop
    cursor.depth -= 1
    return values


cdef list array(Cursor* cursor):
    cdef size_t outer_stop = 0
    cdef list values = []
    enclosed(cursor, &outer_stop)
    while cursor.position < cursor.stop:
        values.append(value_of(cursor))
    cursor.stop = outer_stop
    cursor.depth -= 1
    return values


cdef object field(Cursor* cursor, Py_UCS4 kind):
    if kind == u"s":
        try:
            return text(cursor, unsigned(cursor, 1), NULL)
        except UnicodeDecodeError as error:
            raise MalformedTextError("Malformed UTF-8 in shortstr") from error
    if kind == u"r":
        return text(cursor, unsigned(cursor, 1), "surrogateescape")
    if kind == u"o":
        return unsigned(cursor, 1)
    if kind == u"h":
        return unsigned(cursor, 2)
    if kind == u"l":
        return unsigned(cursor, 4)
    if kind == u"q":
        return unsigned(cursor, 8)
    if kind == u"S":
        return long_string(cursor)
    if kind == u"T":
        return Timestamp(unsigned(cursor, 8))
    cursor.values_left = cursor.values_max
    if kind == u"t":
        return table(cursor)
    if kind == u"w":
        return table(cursor, raw=True)
    raise AssertionError(f"no field kind {chr(kind)}")


def decode_fields(bytes data not None, size_t position, str kinds not None, int values_max=VALUES_MAX):
    """Decode `data` from `position` to its end: one value for each letter of `kinds`.

    A table may have `values_max` values. Raises MalformedFieldError (or one of its two subclasses)
    unless the bytes are exactly those fields.
    """
    cdef Cursor cursor
    cdef int bit = 8        # next bit of the shared octet; 8: none is open
    cdef uint8_t octet = 0
    cdef list values = []
    cursor.data = <const uint8_t*>PyBytes_AS_STRING(data)
    cursor.stop = PyBytes_GET_SIZE(data)
    cursor.position = min(position, cursor.stop)
    cursor.depth = 0
    cursor.values_max = values_max
    cursor.values_left = VALUES_MAX
    for kind in kinds:
        if kind != u"b":
            bit = 8
            values.append(field(&cursor, kind))
            continue
        if bit == 8:
            bit = 0
            octet = <uint8_t>unsigned(&cursor, 1)
        values.append((octet >> bit & 1) != 0)
        bit += 1
    if cursor.position != cursor.stop:
        raise MalformedFieldError("octets are left behind the last field")
    return values


def encode_fields(str kinds not None, values):
    """Encode values as `decode_fields` reads them.

    Raises ValueError for values the wire cannot carry.
    """
    cdef bytearray out = bytearray()
    cdef int bit = 8
    for kind, value in zip(kinds, values, strict=True):
        if kind == "b":
            if bit == 8:
                bit = 0
                out.append(0)
            out[len(out) - 1] |= bool(value) << bit
            bit += 1
            continue
        bit = 8
        write_field(out, kind, value)
    return bytes(out)


cdef object INTEGER_FORMATS = {"o": ">B", "h": ">H", "l": ">I", "q": ">Q", "T": ">Q"}


cdef int write_field(bytearray out, str kind, value) except -1:
    if kind in "sr":
        write_short(out, octets(value))
    elif kind == "S":
        write_long(out, octets(value))
    elif kind in "tw":
        out += encode_table(value)
    else:
        write_integer(out, INTEGER_FORMATS[kind], seconds(value) if kind == "T" else value)
    return 0


cdef object octets(value):
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


cdef object seconds(value):
    if not isinstance(value, datetime):
        return value
    return int((value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp())


cdef int write_integer(bytearray out, str layout, value) except -1:
    try:
        out += struct.pack(layout, value)
    except struct.error as error:
        raise ValueError(f"{value!r} does not fit its field") from error
    return 0


cdef int write_short(bytearray out, value) except -1:
    if len(value) > 255:
        raise ValueError(f"short string of {len(value)} bytes")
    out.append(len(value))
    out += value
    return 0


cdef int write_long(bytearray out, value) except -1:
    write_integer(out, ">I", len(value))
    out += value
    return 0


cdef int write_value(bytearray out, value, int depth) except -1:
    """Append `value` with a common type letter: every integer as 64 bits, as in x-death."""
    if isinstance(value, RawValue):
        out += value
    elif isinstance(value, bool):
        out += b"t\x01" if value else b"t\x00"
    elif isinstance(value, (str, bytes)) and not isinstance(value, bytearray):
        out += b"S"
        write_long(out, octets(value))
    elif isinstance(value, (Timestamp, datetime)):
        out += b"T"
        write_integer(out, ">Q", seconds(value))
    elif isinstance(value, int):
        out += b"l"
        write_integer(out, ">q", value)
    elif isinstance(value, float):
        out += b"d" + struct.pack(">d", value)
    elif isinstance(value, dict):
        out += b"F"
        write_table(out, value, depth + 1)
    elif isinstance(value, (list, tuple)):
        out += b"A"
        write_array(out, value, depth + 1)
    elif value is None:
        out += b"V"
    elif isinstance(value, Decimal):
        out += b"D"
        write_decimal(out, value)
    elif isinstance(value, bytearray):
        out += b"x"
        write_long(out, value)
    else:
        raise ValueError(f"{type(value).__name__} has no place in a field table")
    return 0


cdef int write_decimal(bytearray out, value) except -1:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent > 0 or exponent < -255:
        raise ValueError(f"{value} does not fit a decimal field")
    mantissa = int("".join(map(str, digits)))
    out.append(-exponent)
    return write_integer(out, ">i", -mantissa if sign else mantissa)


cdef int write_table(bytearray out, dict values, int depth) except -1:
    cdef bytearray inner = bytearray()
    check_depth(depth)
    for name, value in values.items():
        write_short(inner, octets(name))
        write_value(inner, value, depth)
    return write_long(out, inner)


cdef int write_array(bytearray out, values, int depth) except -1:
    cdef bytearray inner = bytearray()
    check_depth(depth)
    for value in values:
        write_value(inner, value, depth)
    return write_long(out, inner)


cdef int check_depth(int depth) except -1:
    if depth > DEPTH_MAX:
        raise ValueError(f"field table nested deeper than {TABLE_DEPTH_MAX}")
    return 0


def decode_table(bytes data not None):
    """Decode a table with its length prefix and nothing behind it. Raises MalformedFieldError."""
    return decode_fields(data, 0, "t")[0]


def encode_table(dict values):
    """Encode a table with its length prefix; None is an empty one.

    Raises ValueError as encode_fields.
    """
    cdef bytearray out = bytearray()
    write_table(out, values or {}, 1)
    return bytes(out)


def decode_value(data):
    """Decode a RawValue, type letter included. Raises MalformedFieldError."""
    cdef bytes octets = bytes(data)     # of the exact type
    cdef Cursor cursor
    cursor.data = <const uint8_t*>PyBytes_AS_STRING(octets)
    cursor.stop = PyBytes_GET_SIZE(octets)
    cursor.position = 0
    cursor.depth = 0
    cursor.values_max = VALUES_MAX
    cursor.values_left = VALUES_MAX
    value = value_of(&cursor)
    if cursor.position != cursor.stop:
        raise MalformedFieldError("octets are left behind the value")
    return value


def decode_raw_table(bytes data not None):
    """Decode as decode_table, but keep every value as a RawValue with its exact type."""
    return decode_fields(data, 0, "w")[0]
