"""Chunks that a writer uploads: their rows are checked and packed as records.

The layout is that of range reads (leveret.features.range_reads.columns, docs/range-reads.md). Of a chunk only
the four columns are used that make a message; the others, and what the header tells about a log, are
ignored, so that a chunk which was read can be staged as it is. Nothing in it is trusted: the places of the
columns are checked at once, each entry of a table and each content header when its row is packed.

Compiled since it handles every message; an object is made only where the exchange changes, and for messages
that ask for features.
"""

cimport cython

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from leveret.core.queues.content_checks cimport LOOKED_INTO, check_content, is_reply_name
from leveret.ports.contents cimport CONTENT_HEADER_BYTES, Properties, be32, read_properties, store_be32
from leveret.ports.records cimport (
    HAS_REPLY_TO, HAS_RETRY, RECORD_HEADER_BYTES, SELECTS_KEYS, WANTS_DELAY, WANTS_ORDER, WANTS_PREPARE, BatchBuilder,
)

from leveret.errors import ChannelError

FRONT_BYTES = 24            # of a chunk: those that tell how long it is

cdef enum:
    HEAD_BYTES = 80
    PLACE_BYTES = 32
    TABLE_ENTRY_BYTES = 4
    BYTES_KIND = 1
    EXCHANGE = 3
    ROUTING_KEY = 4
    HEADER = 6
    VALUE = 7
    COLUMNS_MAX = 64        # of a chunk; those that are known have numbers below 8
    _ROWS_MAX = 1000000     # of a chunk, as in range reads
    SHORT_BYTES_MAX = 255   # of a short string
    # Of a content header: what fits into a frame of the size that clients and nodes agree on by default.
    CONTENT_HEADER_BYTES_MAX = 131064
    CLASS_BASIC = 60
    LOOKED_AT = SELECTS_KEYS | WANTS_DELAY | HAS_RETRY      # by `checks.content`
    REFUSED = WANTS_PREPARE | WANTS_ORDER
    # Work of a slice, in rows: a content header that is looked into costs some rows, a call of Python more.
    WORK_CALL = 64
    WORK_COPIED_BYTES = 4096

ROWS_MAX = _ROWS_MAX


class InvalidChunkError(ValueError):
    """Raised for bytes that are no chunk, or have no rows to be staged."""


cdef struct RowColumn:
    const uint8_t* table
    const uint8_t* values
    uint32_t size           # bytes of all values


cdef inline uint16_t le16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return v


cdef inline uint32_t le32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t le64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v


def chunk_size(const unsigned char[::1] front not None):
    """Return the size of the chunk that begins with these FRONT_BYTES bytes. Raises InvalidChunkError."""
    if front.shape[0] < FRONT_BYTES or memcmp(&front[0], b"LVRC", 4) or le16(&front[4]) != 1:
        raise InvalidChunkError("no chunk of version 1 begins here")
    if le64(&front[16]) < HEAD_BYTES:
        raise InvalidChunkError(f"a chunk of {le64(&front[16])} bytes")
    return le64(&front[16])


@cython.final
cdef class ChunkRows:
    """Rows of one whole chunk, of which `row` is the next to be packed. Raises InvalidChunkError."""

    cdef object owner
    cdef const uint8_t* data
    cdef size_t size
    cdef readonly uint32_t rows
    cdef readonly uint32_t row
    cdef RowColumn[VALUE + 1] columns
    cdef const uint8_t* header          # of the row before, with its flags; NULL: none
    cdef uint32_t header_size
    cdef int flags
    cdef uint64_t tag_mask

    def __init__(self, bytes data not None):
        cdef uint32_t head_bytes, count, i
        cdef int number
        self.owner = data
        self.data = <const uint8_t*><const char*>data
        self.size = len(data)
        if self.size < HEAD_BYTES or chunk_size(data) != self.size:
            raise InvalidChunkError(f"{self.size} bytes are not one chunk")
        head_bytes, self.rows, count = le16(self.data + 6), le32(self.data + 12), le32(self.data + 76)
        if self.rows > _ROWS_MAX:
            raise InvalidChunkError(f"a chunk has at most {_ROWS_MAX} rows")
        if count > COLUMNS_MAX or head_bytes < HEAD_BYTES + count * PLACE_BYTES or head_bytes > self.size:
            raise InvalidChunkError(f"a chunk with {count} columns in a header of {head_bytes} bytes")
        for i in range(count):
            self.read_place(self.data + HEAD_BYTES + i * PLACE_BYTES)
        for number in (EXCHANGE, ROUTING_KEY, HEADER, VALUE):
            if self.columns[number].table == NULL:
                raise InvalidChunkError(f"the chunk lacks the column with the number {number}")

    cdef int read_place(self, const uint8_t* place) except -1:
        """Check and note where a column is, if it is one of those that are needed."""
        cdef uint16_t number = le16(place)
        cdef uint64_t table = le64(place + 8), values = le64(place + 16), size = le64(place + 24)
        cdef uint64_t table_bytes = (<uint64_t>self.rows + 1) * TABLE_ENTRY_BYTES
        cdef RowColumn* column
        if number not in (EXCHANGE, ROUTING_KEY, HEADER, VALUE):
            return 0
        column = &self.columns[number]
        if column.table != NULL:
            raise InvalidChunkError(f"column {number} is there twice")
        if le16(place + 2) != BYTES_KIND or le32(place + 4) != TABLE_ENTRY_BYTES:
            raise InvalidChunkError(f"column {number} is of another kind than bytes")
        if table % 8 or values % 8 or not (self.holds(table, table_bytes) and self.holds(values, size)):
            raise InvalidChunkError(f"column {number} is not within its chunk")
        column.table, column.values = self.data + table, self.data + values
        if size > 0x7FFFFFFF or le32(column.table) or le32(column.table + self.rows * TABLE_ENTRY_BYTES) != size:
            raise InvalidChunkError(f"the table of column {number} does not fit its values")
        column.size = <uint32_t>size
        return 0

    cdef bint holds(self, uint64_t at, uint64_t size) noexcept:
        return at <= self.size and size <= self.size - at

    cdef inline const uint8_t* value(self, int number, uint32_t* size) except NULL:
        """Return the value of the next row, and store its size. Raises InvalidChunkError."""
        cdef RowColumn* column = &self.columns[number]
        cdef const uint8_t* entry = column.table + <size_t>self.row * TABLE_ENTRY_BYTES
        cdef uint32_t first = le32(entry), stop = le32(entry + TABLE_ENTRY_BYTES)
        if first > stop or stop > column.size:
            raise InvalidChunkError(f"the table of column {number} runs from {first} to {stop}")
        size[0] = stop - first
        return column.values + first


@cython.final
cdef class RowStager:
    """Packs the rows of one upload. `user` is who may be named in `user_id`; None: anyone.

    `checks.exchange(name)` is called where another exchange follows, and returns whether each of its keys must
    be checked, by `checks.key(exchange, key)`; `checks.content(flags, exchange, header)` is called for
    messages with features that must be valid. All raise what refuses the message; then no part of it was
    packed, and the same call goes on with it. Bodies have at most `body_bytes_max` bytes.
    """

    cdef object checks
    cdef bytes user
    cdef size_t body_bytes_max
    cdef uint8_t[2 * (SHORT_BYTES_MAX + 1)] address      # of the row before, as two short strings
    cdef uint32_t address_size          # 0: there was none
    cdef bint each_key
    cdef readonly uint64_t rows
    cdef readonly uint64_t packed_bytes # of the records

    def __init__(self, checks, bytes user, size_t body_bytes_max):
        self.checks = checks
        self.user = user
        self.body_bytes_max = body_bytes_max

    def pack(self, ChunkRows chunk not None, BatchBuilder builder not None, uint64_t now, int work_max):
        """Pack the next rows of a chunk, until the work is done; one at least. Returns whether more follow.

        `now` is in ms since 1970. Raises InvalidChunkError, ChannelError.
        """
        cdef int work = 0
        while chunk.row < chunk.rows and work < work_max:
            work += self.pack_row(chunk, builder, now)
        return chunk.row < chunk.rows

    cdef int pack_row(self, ChunkRows chunk, BatchBuilder builder, uint64_t now) except -1:
        """Check and pack one row. Returns how much work it was."""
        cdef uint32_t header_size, body_size, exchange_size, key_size
        cdef const uint8_t* exchange = chunk.value(EXCHANGE, &exchange_size)
        cdef const uint8_t* key = chunk.value(ROUTING_KEY, &key_size)
        cdef const uint8_t* header = chunk.value(HEADER, &header_size)
        cdef const uint8_t* body = chunk.value(VALUE, &body_size)
        cdef uint8_t* stored
        cdef size_t before = builder.size
        cdef int work = 1 + body_size // WORK_COPIED_BYTES
        if body_size > self.body_bytes_max:
            raise ChannelError(406, f"message size {body_size} is larger than max size {self.body_bytes_max}")
        work += self.note_address(chunk, exchange, exchange_size, key, key_size)
        work += self.note_header(chunk, header, header_size)
        builder.append(
            <uint32_t>chunk.flags, now, chunk.tag_mask, self.address, self.address_size,
            header, header_size, body, body_size,
        )
        # The header as it was packed, with the size that the body has.
        stored = builder.data + builder.size - body_size - header_size
        store_be32(stored + 4, 0)
        store_be32(stored + 8, body_size)
        self.rows += 1
        self.packed_bytes += builder.size - before
        chunk.row += 1
        return work

    cdef int note_address(
        self, ChunkRows chunk, const uint8_t* exchange, uint32_t exchange_size, const uint8_t* key, uint32_t key_size
    ) except -1:
        """Check exchange and routing key, unless they are those of the row before. Returns the work."""
        cdef uint8_t* at = self.address
        cdef bint is_new = (
            self.address_size == 0 or at[0] != exchange_size or memcmp(at + 1, exchange, exchange_size) != 0
        )
        cdef int work = 0
        if exchange_size > SHORT_BYTES_MAX or key_size > SHORT_BYTES_MAX:
            raise InvalidChunkError("an exchange or a routing key is longer than 255 bytes")
        if is_new:
            self.address_size = 0
            chunk.header = NULL     # it may mean something else there
            self.each_key = self.checks.exchange((<const char*>exchange)[:exchange_size])
            at[0] = <uint8_t>exchange_size
            memcpy(at + 1, exchange, exchange_size)
            work = WORK_CALL
        at += 1 + exchange_size
        if not is_new and at[0] == key_size and memcmp(at + 1, key, key_size) == 0:
            return work
        self.address_size = 0       # until it has passed
        if not is_ascii(key, key_size):
            check_utf8((<const char*>key)[:key_size])
            work += 1
        if self.each_key:
            self.checks.key((<const char*>exchange)[:exchange_size], (<const char*>key)[:key_size])
            work += WORK_CALL
        at[0] = <uint8_t>key_size
        memcpy(at + 1, key, key_size)
        self.address_size = exchange_size + key_size + 2
        return work

    cdef int note_header(self, ChunkRows chunk, const uint8_t* header, uint32_t size) except -1:
        """Check a content header, unless the row before has the same. Returns the work."""
        cdef Properties properties
        cdef int flags
        cdef uint64_t tag_mask = 0
        cdef int work = 0
        if (
            chunk.header != NULL and chunk.header_size == size and memcmp(chunk.header, header, size) == 0
            and not (self.each_key and chunk.flags & SELECTS_KEYS)
        ):
            return 0
        chunk.header = NULL
        if not CONTENT_HEADER_BYTES <= size <= CONTENT_HEADER_BYTES_MAX or be32(header) != CLASS_BASIC << 16:
            raise InvalidChunkError("a content header is not one of class 60")
        flags = read_properties(header, size, &properties)
        if flags < 0:
            raise InvalidChunkError("the properties do not fill their content header")
        if flags & LOOKED_INTO:
            work = 4
            if flags & HAS_REPLY_TO and is_reply_name(&properties.reply_to):
                raise ChannelError(406, "fast reply consumer does not exist")
            flags = check_content(flags, &properties, self.user, &tag_mask)
            if flags & REFUSED:
                raise ChannelError(
                    406, "a message of a batch is neither prepared nor numbered: the batch is, as a whole"
                )
            if flags & LOOKED_AT:
                self.checks.content(
                    flags, (<const char*>self.address + 1)[: self.address[0]], (<const char*>header)[:size]
                )
                work = WORK_CALL
        chunk.header, chunk.header_size, chunk.flags, chunk.tag_mask = header, size, flags, tag_mask
        return work


cdef bint is_ascii(const uint8_t* text, uint32_t size) noexcept nogil:
    cdef uint32_t i
    cdef uint8_t joined = 0
    for i in range(size):
        joined |= text[i]
    return joined < 128


cdef int check_utf8(bytes text) except -1:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise InvalidChunkError("a routing key is no UTF-8") from None
    return 0
