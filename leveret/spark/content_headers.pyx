"""Content headers made of Arrow columns: what `leveret.spark.property_columns` does, turned round.

    columns of a record batch ─► HeaderPacker ─► a content header for each row, one behind the other

Compiled since it writes every record; no object is made for one. leveret.ports.contents draws what
is written. Buffers come from Arrow and are checked: a column whose offsets leave its bytes is a
ValueError, and so is a value that AMQP has no room for, with its row.
"""

cimport cython

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from leveret.ports.contents cimport CONTENT_HEADER_BYTES, HEADERS_BIT, store_be32
from leveret.spark.arrow_buffer cimport ArrowBuffer

from leveret.spark.property_columns import STRINGS

cdef enum:
    CLASS_BASIC = 60
    DELIVERY_MODE_BIT = 12
    PRIORITY_BIT = 11
    LAST_STRING_BIT = 3
    SHORT_STRING_MAX = 255

cdef const char* KEY_NAME = "x-partition-key"
cdef const char* TAGS_NAME = "x-tags"
cdef const char* DELAY_NAME = "x-delay"
cdef const char* TIME_NAME = "x-deliver-at"


cdef struct Text:
    const uint8_t* data     # NULL: the value is null
    size_t size


cdef class ArrowColumn:
    """A column of a record batch: row n of it is entry `first` + n of its buffers.

    `valid` is the bitmap of what is not null; None: nothing is.
    """

    cdef size_t first
    cdef const uint8_t[::1] valid

    def __init__(self, size_t first, valid):
        self.first = first
        self.valid = valid

    cdef inline bint is_null(self, size_t row) except -1:
        cdef size_t at = self.first + row
        if self.valid is None:
            return False
        if at // 8 >= <size_t>self.valid.shape[0]:
            raise ValueError("a bitmap is shorter than its column")
        return not self.valid[at // 8] >> (at % 8) & 1


@cython.final
cdef class TextColumn(ArrowColumn):
    """Strings or bytes: entry n is `values[offsets[n] : offsets[n + 1]]`."""

    cdef const int32_t[::1] offsets
    cdef const uint8_t[::1] values

    def __init__(self, first, valid, offsets, values):
        ArrowColumn.__init__(self, first, valid)
        self.offsets = offsets
        self.values = values

    cdef Text text(self, size_t row) except *:
        cdef Text found
        cdef size_t at = self.first + row
        cdef int32_t begin, end
        found.data, found.size = NULL, 0
        if self.is_null(row):
            return found
        if at + 1 >= <size_t>self.offsets.shape[0]:
            raise ValueError("a column's offsets are fewer than its rows")
        begin, end = self.offsets[at], self.offsets[at + 1]
        if not 0 <= begin <= end <= self.values.shape[0]:
            raise ValueError("a column's offsets leave its bytes")
        found.size = <size_t>(end - begin)
        # Any address but NULL will do for an empty value.
        found.data = &self.values[begin] if found.size else <const uint8_t*>KEY_NAME
        return found


@cython.final
cdef class NumberColumn(ArrowColumn):
    """64-bit integers."""

    cdef const int64_t[::1] values

    def __init__(self, first, valid, values):
        ArrowColumn.__init__(self, first, valid)
        self.values = values

    cdef int64_t number(self, size_t row) except? -1:
        if self.first + row >= <size_t>self.values.shape[0]:
            raise ValueError("a column's numbers are fewer than its rows")
        return self.values[self.first + row]


@cython.final
cdef class ListColumn(ArrowColumn):
    """Lists: those of row n are entries `offsets[n]` to `offsets[n + 1]` of `items`.

    `names` are the keys of the same entries, where it is a column of maps.
    """

    cdef const int32_t[::1] offsets
    cdef TextColumn items
    cdef TextColumn names

    def __init__(self, first, valid, offsets, TextColumn items not None, TextColumn names=None):
        ArrowColumn.__init__(self, first, valid)
        self.offsets = offsets
        self.items = items
        self.names = names

    cdef int bounds(self, size_t row, size_t* begin, size_t* end) except -1:
        """Set the entries of a row; none where it is null."""
        cdef size_t at = self.first + row
        begin[0] = end[0] = 0
        if self.is_null(row):
            return 0
        if at + 1 >= <size_t>self.offsets.shape[0]:
            raise ValueError("a list's offsets are fewer than its rows")
        if not 0 <= self.offsets[at] <= self.offsets[at + 1]:
            raise ValueError("a list's offsets do not ascend")
        begin[0], end[0] = <size_t>self.offsets[at], <size_t>self.offsets[at + 1]
        return 0


@cython.final
cdef class HeaderPacker:
    """Packs the content headers of a record batch; the body size in them is 0.

    `columns` has what a message may have, each of which may be missing: strings by the names of
    properties, `priority` (NumberColumn), `headers` (ListColumn with names), `key` (TextColumn),
    `tags` (ListColumn), `delay` and `deliver_at` in milliseconds (NumberColumn). Where a column and
    an entry of `headers` say the same, the column holds.
    """

    cdef list strings       # TextColumn or None, by the bit of their flag
    cdef NumberColumn priority
    cdef ListColumn headers
    cdef TextColumn key
    cdef ListColumn tags
    cdef NumberColumn delay
    cdef NumberColumn deliver_at
    cdef uint8_t delivery_mode
    cdef readonly ArrowBuffer table
    cdef readonly ArrowBuffer values
    cdef size_t row

    def __init__(self, dict columns, *, bint persistent):
        self.strings = [None] * 16
        for name, bit in STRINGS.items():
            self.strings[bit] = columns.get(name)
        self.priority = columns.get("priority")
        self.headers = columns.get("headers")
        self.key = columns.get("key")
        self.tags = columns.get("tags")
        self.delay = columns.get("delay")
        self.deliver_at = columns.get("deliver_at")
        self.delivery_mode = 2 if persistent else 1

    def pack(self, size_t first, size_t stop):
        """Pack the headers of some rows into `values`; `table` says where each begins and ends.

        Raises ValueError, which names the row and the column.
        """
        cdef int32_t end = 0
        self.table, self.values = ArrowBuffer(), ArrowBuffer()
        self.table.put(&end, 4)
        for self.row in range(first, stop):
            self.pack_row()
            end = <int32_t>self.values.size
            self.table.put(&end, 4)

    cdef int pack_row(self) except -1:
        cdef size_t start = self.values.size
        cdef uint8_t[CONTENT_HEADER_BYTES] front
        cdef uint16_t flags = 0
        cdef int bit
        cdef int64_t priority
        cdef uint8_t octet
        for bit in range(CONTENT_HEADER_BYTES):
            front[bit] = 0
        front[1] = CLASS_BASIC
        self.values.put(front, CONTENT_HEADER_BYTES)
        for bit in range(15, LAST_STRING_BIT - 1, -1):
            if self.strings[bit] is not None:
                flags |= self.put_string(bit)
            elif bit == HEADERS_BIT:
                flags |= self.put_headers()
            elif bit == DELIVERY_MODE_BIT:
                self.values.put(&self.delivery_mode, 1)
                flags |= 1 << DELIVERY_MODE_BIT
            elif bit == PRIORITY_BIT and self.priority is not None and not self.priority.is_null(self.row):
                priority = self.priority.number(self.row)
                if not 0 <= priority <= 255:
                    raise self.wrong("priority", f"is {priority}, and must be 0 to 255")
                octet = <uint8_t>priority
                self.values.put(&octet, 1)
                flags |= 1 << PRIORITY_BIT
        self.values.data[start + 12] = <uint8_t>(flags >> 8)
        self.values.data[start + 13] = <uint8_t>flags
        return 0

    cdef int put_string(self, int bit) except -1:
        """Append a property, if it is there. Returns its flag."""
        cdef Text text = (<TextColumn?>self.strings[bit]).text(self.row)
        if text.data == NULL:
            return 0
        if text.size > SHORT_STRING_MAX:
            name = next(name for name, each in STRINGS.items() if each == bit)
            raise self.too_long(name, text.size)
        self.put_short(text)
        return 1 << bit

    cdef int put_short(self, Text text) except -1:
        cdef uint8_t size = <uint8_t>text.size
        self.values.put(&size, 1)
        return self.values.put(text.data, text.size)

    cdef int put_long(self, Text text) except -1:
        cdef uint8_t[4] size
        store_be32(size, <uint32_t>text.size)
        self.values.put(size, 4)
        return self.values.put(text.data, text.size)

    cdef int put_headers(self) except -1:
        """Append the headers table, unless it is empty. Returns its flag."""
        cdef size_t start = self.values.size
        cdef uint8_t[4] size
        store_be32(size, 0)
        self.values.put(size, 4)
        self.put_entries()
        self.put_key()
        self.put_tags()
        self.put_number(self.delay, DELAY_NAME)
        self.put_number(self.deliver_at, TIME_NAME)
        if self.values.size == start + 4:
            self.values.size = start
            return 0
        store_be32(self.values.data + start, <uint32_t>(self.values.size - start - 4))
        return 1 << HEADERS_BIT

    cdef int put_entries(self) except -1:
        cdef size_t begin, end, entry
        cdef Text name, value
        if self.headers is None:
            return 0
        self.headers.bounds(self.row, &begin, &end)
        for entry in range(begin, end):
            name = self.headers.names.text(entry)
            if name.data == NULL:
                raise self.wrong("headers", "has an entry without a key")
            if name.size > SHORT_STRING_MAX:
                raise self.too_long("headers", name.size)
            if self.has_column(name):
                continue
            self.put_short(name)
            value = self.headers.items.text(entry)
            self.values.put(b"V" if value.data == NULL else b"S", 1)
            if value.data != NULL:
                self.put_long(value)
        return 0

    cdef bint has_column(self, Text name) except -1:
        """Whether a column with a value in this row stands for the header of this name."""
        return (
            is_name(name, KEY_NAME) and self.key is not None and not self.key.is_null(self.row)
            or is_name(name, TAGS_NAME) and self.tags is not None and not self.tags.is_null(self.row)
            or is_name(name, DELAY_NAME) and self.delay is not None and not self.delay.is_null(self.row)
            or is_name(name, TIME_NAME)
            and self.deliver_at is not None
            and not self.deliver_at.is_null(self.row)
        )

    cdef int put_name(self, const char* name) except -1:
        cdef Text text
        text.data, text.size = <const uint8_t*>name, len(name)
        return self.put_short(text)

    cdef int put_key(self) except -1:
        cdef Text key
        if self.key is None:
            return 0
        key = self.key.text(self.row)
        if key.data == NULL:
            return 0
        self.put_name(KEY_NAME)
        self.values.put(b"S", 1)
        return self.put_long(key)

    cdef int put_tags(self) except -1:
        cdef size_t begin, end, entry, start
        cdef uint8_t[4] size
        cdef Text tag
        if self.tags is None:
            return 0
        self.tags.bounds(self.row, &begin, &end)
        if begin == end:
            return 0
        self.put_name(TAGS_NAME)
        self.values.put(b"A", 1)
        start = self.values.size
        store_be32(size, 0)
        self.values.put(size, 4)
        for entry in range(begin, end):
            tag = self.tags.items.text(entry)
            if tag.data == NULL:
                raise self.wrong("tags", "has a null")
            self.values.put(b"S", 1)
            self.put_long(tag)
        store_be32(self.values.data + start, <uint32_t>(self.values.size - start - 4))
        return 0

    cdef int put_number(self, NumberColumn column, const char* name) except -1:
        cdef uint64_t number
        cdef uint8_t[8] octets
        cdef int i
        if column is None or column.is_null(self.row):
            return 0
        number = <uint64_t>column.number(self.row)
        for i in range(8):
            octets[i] = <uint8_t>(number >> (56 - 8 * i))
        self.put_name(name)
        self.values.put(b"l", 1)
        return self.values.put(octets, 8)

    cdef too_long(self, str column, size_t size):
        return self.wrong(column, f"has {size} bytes where AMQP has room for {SHORT_STRING_MAX}")

    cdef wrong(self, str column, str what):
        return ValueError(f"column '{column}' of row {self.row} {what}")


cdef bint is_name(Text text, const char* name) noexcept:
    cdef size_t size = 0
    while name[size]:
        size += 1
    return text.size == size and memcmp(text.data, name, size) == 0
