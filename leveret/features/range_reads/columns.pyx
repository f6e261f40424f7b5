"""Chunks: records of a log as columns, which a reader can wrap without looking at each.

docs/range-reads.md has the same for those who write a reader, and a test vector. All integers are
little-endian; positions count from the chunk's first byte, and every part begins at a multiple of 8.

    chunk header, 80 bytes and what follows
     0  u32  magic, b"LVRC"
     4  u16  version, 1
     6  u16  bytes of this header, the columns' places included
     8  u32  flags: 1 more records were committed at `next offset` when this was packed,
             2 the log is compacted, so that offsets may be missing
    12  u32  rows
    16  u64  bytes of the whole chunk
    24  u64  offset that was asked for
    32  u64  next offset: what to ask for next
    40  u64  first offset of the log that can be read
    48  u64  end: one past the last offset that can be read
    56  u64  missing: offsets from the asked one to the next whose records were removed or lost
    64  u64  log: another number means another log, whose offsets are others
    72  u32  partition
    76  u32  columns

    place of a column, 32 bytes
     0  u16  column (below)
     2  u16  kind: 0 numbers, 1 bytes
     4  u32  bytes of a number, or of an entry of the table
     8  u64  position of the numbers, or of the table: rows + 1 times i32, where each value begins
    16  u64  position of the values' bytes; 0 for numbers
    24  u64  bytes of the numbers, or of the values

    columns  0 offset i64 | 1 timestamp i64, ms since 1970 | 2 flags u32, RecordFlag |
             3 exchange | 4 routing key | 5 key: the text of the header x-partition-key, else the
             routing key | 6 content header as it is delivered | 7 value: the body

A chunk is a list of buffers, to be sent one after the other: nothing is put together. Compiled since
it handles every record; no object is made for one, but for the few with BCC, for large values, and
where a filter has to ask Python (leveret.features.filters.filters).
"""

cimport cython

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from leveret.features.filters.filters cimport RecordFilter
from leveret.ports.contents cimport Piece, open_header_of
from leveret.ports.partitioner cimport KEY_TEXT_BYTES, find_key
from leveret.ports.records cimport BLIND_COPIED, STORED, Batch, RecordView

import struct

# In the order of their numbers.
COLUMNS = ("offset", "timestamp", "flags", "exchange", "routing_key", "key", "header", "value")
MAGIC = b"LVRC"
VERSION = 1
MORE = 1                    # flags
COMPACTED = 2

_HEAD = struct.Struct("<4sHHIIQQQQQQQII")
_PLACE = struct.Struct("<HHIQQQ")

cdef enum:
    OFFSET = 0
    TIMESTAMP = 1
    FLAGS = 2
    EXCHANGE = 3
    ROUTING_KEY = 4
    KEY = 5
    HEADER = 6
    VALUE = 7
    COLUMN_COUNT = 8
    TABLE_ENTRY_BYTES = 4
    # A buffer grows to this size, by four times; then the next one begins.
    PART_BYTES_MIN = 1024
    PART_BYTES = 262144
    # Values from this size on are not copied but sent from where the batch lies.
    REFERENCE_BYTES_MIN = 32768
    # Of records that a filter looks at in one call: each may have headers as large as this.
    LOOK_BYTES = 65536
    # Of them between two looks at the clock: many tags may need microseconds for each.
    TIMED_LOOKS = 32
    COLUMN_BYTES_MAX = 0x7FFFFFFF   # what an entry of a table can tell

cdef const uint8_t* KEY_NAME = <const uint8_t*>b"x-partition-key"
cdef enum:
    KEY_NAME_SIZE = 15
cdef size_t[3] WIDTHS = [8, 8, 4]


@cython.final
cdef class ColumnBuffer:
    """A piece of memory that is filled once, and read as bytes (buffer protocol) afterwards."""

    cdef uint8_t* data
    cdef readonly size_t size
    cdef size_t capacity

    def __cinit__(self):
        self.data = NULL

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags & ~PyBUF_WRITABLE)

    cdef int reserve(self, size_t capacity) except -1:
        cdef uint8_t* grown = <uint8_t*>realloc(self.data, capacity)
        if grown == NULL:
            raise MemoryError
        self.data = grown
        self.capacity = capacity
        return 0


@cython.final
cdef class ColumnParts:
    """Bytes that are gathered in several buffers: none is moved once it is large.

    One that doubled would be copied now and then, megabytes at a time.
    """

    cdef list parts
    cdef ColumnBuffer tail      # the last one, not among the parts yet
    cdef size_t size            # of all bytes

    def __cinit__(self):
        self.parts = []
        self.tail = ColumnBuffer()

    cdef inline int put(self, const void* data, size_t size) except -1:
        if self.tail.size + size > self.tail.capacity:
            self.grow(size)
        memcpy(self.tail.data + self.tail.size, data, size)
        self.tail.size += size
        self.size += size
        return 0

    cdef int grow(self, size_t size) except -1:
        cdef size_t capacity = max(self.tail.capacity * 4, <size_t>PART_BYTES_MIN)
        if self.tail.capacity >= PART_BYTES:
            self.close_tail()
        self.tail.reserve(max(min(capacity, <size_t>PART_BYTES), self.tail.size + size))
        return 0

    cdef int close_tail(self) except -1:
        if self.tail.size:
            self.parts.append(memoryview(self.tail))
            self.tail = ColumnBuffer()
        return 0

    cdef int refer(self, Batch batch, const uint8_t* data, size_t size) except -1:
        """Take bytes of a batch without copying them; the batch stays in memory."""
        cdef size_t position = data - batch.data
        self.close_tail()
        self.parts.append(memoryview(batch)[position : position + size])
        self.size += size
        return 0


@cython.final
cdef class BytesColumn:
    """One column of bytes: where each value begins, and the values."""

    cdef ColumnParts table
    cdef ColumnParts values

    def __cinit__(self):
        cdef int32_t zero = 0
        self.table, self.values = ColumnParts(), ColumnParts()
        self.table.put(&zero, TABLE_ENTRY_BYTES)

    cdef inline int put(self, const uint8_t* data, size_t size) except -1:
        self.values.put(data, size)
        return self.note_end()

    cdef int refer(self, Batch batch, const uint8_t* data, size_t size) except -1:
        self.values.refer(batch, data, size)
        return self.note_end()

    cdef inline int note_end(self) except -1:
        cdef int32_t stop = <int32_t>self.values.size
        return self.table.put(&stop, TABLE_ENTRY_BYTES)


@cython.final
cdef class ColumnPacker:
    """Packs records into one chunk: the columns of the numbers in `columns`, ascending.

    With a filter, only the records that match are packed; those with a flag of `passed_over` never.
    """

    cdef readonly uint32_t rows
    cdef readonly size_t size           # bytes packed, roughly: what bounds a chunk
    cdef readonly size_t stored_bytes   # of the records in the log, whatever columns are wanted
    cdef uint32_t wanted                # a bit for each column
    cdef tuple columns
    cdef RecordFilter record_filter     # None: all records match
    cdef uint32_t passed_over           # records with one of these flags are not packed
    cdef ColumnParts offsets
    cdef ColumnParts times
    cdef ColumnParts flags
    cdef BytesColumn exchanges
    cdef BytesColumn routing_keys
    cdef BytesColumn keys
    cdef BytesColumn headers
    cdef BytesColumn values

    def __init__(self, columns, RecordFilter record_filter=None, uint32_t passed_over=0):
        self.columns = tuple(columns)
        self.record_filter = record_filter
        self.passed_over = passed_over
        for number in self.columns:
            self.wanted |= 1 << <int>number
        self.offsets, self.times, self.flags = ColumnParts(), ColumnParts(), ColumnParts()
        self.exchanges, self.routing_keys, self.keys = BytesColumn(), BytesColumn(), BytesColumn()
        self.headers, self.values = BytesColumn(), BytesColumn()

    def add(self, Batch batch not None, uint64_t first, uint64_t stop, uint32_t rows_max, size_t bytes_max):
        """Pack records [first, stop) of a batch: as many as fit, one at least.

        Returns the offset behind the last one looked at: below `stop` if the limits were reached,
        or if a filter has looked at many bytes, or its time is over.
        """
        cdef RecordView record
        cdef size_t position, size_max = self.size + bytes_max
        cdef uint64_t offset = first
        cdef uint32_t rows = 0
        if first >= stop:
            return stop
        if first < batch.base_offset or stop > batch.base_offset + batch.count:
            raise IndexError(stop)
        if self.record_filter is not None:
            return self.add_matching(batch, first, stop, rows_max, size_max)
        position = batch.locate(first)
        while offset < stop and (rows == 0 or rows < rows_max and self.size < size_max):
            position = batch.view(position, &record)
            if record.flags & self.passed_over:
                offset += 1
                continue
            if self.rows and self.is_full(&record):
                break
            self.put(batch, offset, &record)
            offset += 1
            rows += 1
        return offset

    cdef uint64_t add_matching(
        self, Batch batch, uint64_t offset, uint64_t stop, uint32_t rows_max, size_t size_max
    ) except? 0:
        """Pack those records of [offset, stop) that match: see `add`."""
        cdef RecordView record
        cdef size_t position, next_position, position_max
        cdef uint32_t rows = 0, looks = 0
        self.record_filter.begin()
        if not self.record_filter.may_want(batch):
            return stop
        position = batch.locate(offset)
        position_max = position + LOOK_BYTES
        while offset < stop and position < position_max and not self.record_filter.is_tired():
            if rows and (rows >= rows_max or self.size >= size_max):
                break
            next_position = position
            if self.record_filter.wants(batch, &next_position):
                batch.view(position, &record)
                if not record.flags & self.passed_over:
                    if self.rows and self.is_full(&record):
                        break
                    self.put(batch, offset, &record)
                    rows += 1
            position = next_position
            offset += 1
            looks += 1
            if looks % TIMED_LOOKS == 0 and self.record_filter.is_over():
                break
        self.record_filter.keep_place(batch, offset, position)
        return offset

    cdef bint is_full(self, const RecordView* record) noexcept:
        """Whether a record would not fit into the tables any more."""
        return (
            self.values.values.size + record.body_size > COLUMN_BYTES_MAX
            or self.headers.values.size + record.header_size > COLUMN_BYTES_MAX
        )

    cdef int put(self, Batch batch, uint64_t offset, RecordView* record) except -1:
        cdef uint32_t wanted = self.wanted, flags
        cdef uint64_t time
        cdef const uint8_t* key
        cdef size_t before = 0
        if wanted & (1 << OFFSET):
            self.offsets.put(&offset, 8)
        if wanted & (1 << TIMESTAMP):
            time = batch.time_of(record)
            self.times.put(&time, 8)
        if wanted & (1 << FLAGS):
            flags = record.flags & STORED
            self.flags.put(&flags, 4)
        if wanted & (1 << EXCHANGE):
            self.exchanges.put(record.address + 1, record.address[0])
        key = record.address + 1 + record.address[0]
        if wanted & (1 << ROUTING_KEY):
            self.routing_keys.put(key + 1, key[0])
        if wanted & (1 << KEY):
            self.put_key(record, key)
        if wanted & (1 << HEADER):
            self.put_header(record)
        if wanted & (1 << VALUE):
            if record.body_size >= REFERENCE_BYTES_MIN:
                self.values.refer(batch, record.body, record.body_size)
            else:
                self.values.put(record.body, record.body_size)
        self.rows += 1
        self.stored_bytes += record.size
        self.size = (
            <size_t>self.rows * 24 + self.exchanges.values.size + self.routing_keys.values.size
            + self.keys.values.size + self.headers.values.size + self.values.values.size
        )
        return 0

    cdef int put_header(self, const RecordView* record) except -1:
        cdef bytes shown
        if record.flags & BLIND_COPIED:
            shown = open_header_of(record.header, record.header_size)
            return self.headers.put(<const uint8_t*><const char*>shown, len(shown))
        return self.headers.put(record.header, record.header_size)

    cdef int put_key(self, const RecordView* record, const uint8_t* routing_key) except -1:
        """Pack the header x-partition-key, a number as its decimal text; else the routing key."""
        cdef char[KEY_TEXT_BYTES] text
        cdef Piece key
        if find_key(
            record.flags, record.header, record.header_size, KEY_NAME, KEY_NAME_SIZE, text, &key
        ):
            return self.keys.put(key.data, key.size)
        return self.keys.put(routing_key + 1, routing_key[0])

    def finish(
        self, *, offset, next_offset, first, end, missing, log, partition, flags
    ):
        """Return the chunk as a list of buffers. Nothing may be added any more."""
        head_bytes = _HEAD.size + _PLACE.size * len(self.columns)
        position = head_bytes
        places, buffers = [], []
        cdef BytesColumn column
        cdef ColumnParts numbers
        for number in self.columns:
            column = self.bytes_of(number)
            if column is None:
                numbers = self.numbers_of(number)
                places.append(
                    _PLACE.pack(number, 0, WIDTHS[<int>number], position, 0, numbers.size)
                )
                position = _append(buffers, numbers, position)
                continue
            values_at = _append(buffers, column.table, position)
            places.append(
                _PLACE.pack(number, 1, TABLE_ENTRY_BYTES, position, values_at, column.values.size)
            )
            position = _append(buffers, column.values, values_at)
        head = _HEAD.pack(
            MAGIC, VERSION, head_bytes, flags, self.rows, position, offset, next_offset,
            first, end, missing, log, partition, len(self.columns),
        )
        return [memoryview(head + b"".join(places)), *buffers]

    cdef ColumnParts numbers_of(self, int number):
        return self.offsets if number == OFFSET else self.times if number == TIMESTAMP else self.flags

    cdef BytesColumn bytes_of(self, int number):
        """Return a column of bytes; None if the number is of another kind."""
        if number == EXCHANGE:
            return self.exchanges
        if number == ROUTING_KEY:
            return self.routing_keys
        if number == KEY:
            return self.keys
        if number == HEADER:
            return self.headers
        return self.values if number == VALUE else None


cdef object _append(list buffers, ColumnParts bytes_, object position):
    """Append bytes, and zeros up to a multiple of 8. Returns the position behind them."""
    cdef size_t padding = -bytes_.size % 8
    bytes_.close_tail()
    buffers.extend(bytes_.parts)
    if padding:
        buffers.append(memoryview(bytes(padding)))
    return position + bytes_.size + padding
