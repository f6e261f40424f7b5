"""Batches, the unit of write, checksum, replication and read; and the records packed in them.

All packages handle batches; only this module knows their bytes. All integers are little-endian.

    batch header, 64 bytes
     0  u32  magic and version, b"LVB1"
     4  u32  length of the batch in bytes, this header included
     8  u64  base offset: the number of the first record (of a control batch: the log's end)
    16  u32  CRC-32C over bytes 20 to the end
    20  u16  attributes: 1 control, 2 encrypted (then storage/encryption.py draws what
             follows the header), 4 transient, 8 pending, 16 compacted, 32 dated
    22  u16  features: the records' flag words joined by OR
    24  u32  count of records (of a control batch: 0, it uses up no offset)
    28  u32  leader epoch
    32  u64  timestamp of the first record, milliseconds since 1970
    40  u64  timestamp of the last record
    48  u64  producer id, 0 when there is none; of a pending batch the transaction whose outcome
             decides whether it counts; of a segment's checkpoint the id of the key that seals its
             batches, 0 when none does; of a dated batch the time in milliseconds since 1970 from
             which on compaction may remove its tombstones
    56  u64  tag mask: the records' tag masks joined by OR
    64       records, one after the other

    record, 20 bytes and what follows
     0  u32  size of the record in bytes, this field included
     4  u32  flags (RecordFlag)
     8  u32  milliseconds since the batch's first timestamp
    12  u64  tag mask: a bit for each of its tags (leveret.ports.tags); in a delayed-message store,
             where no filter reads it, the time when the record is due (leveret.features.delay.due_list)
    20       exchange, short string as on the wire (one length byte, then the bytes)
             routing key, short string
             u32  size of the content header
             content header payload as the publisher sent it (class, weight, body size, properties)
             body: the rest of the record

The base offset stands before the checksum, so that the same packed records can be appended to
several partitions; recovery checks it by continuity, which only a compacted batch may break. A change of this layout takes a new magic, a
reader for both, and a golden file of the old one (tests/golden/).
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from crc32c import crc32c

from leveret.errors import CorruptBatchError
from leveret.ports.counters cimport _PUBLISH
from leveret.ports.ranges cimport RangeSet
from leveret.ports.tags cimport mask_of

MAGIC = 0x3142564C          # b"LVB1"
HEADER_BYTES = BATCH_HEADER_BYTES
RECORD_BYTES_MIN = RECORD_HEADER_BYTES + 6  # of one whose names, header and body are empty
CHECKSUM_FROM = 20          # the first byte that the CRC covers
BUILDER_BYTES_MIN = 4096    # smaller initial blocks cost a realloc for nearly every batch

cdef uint32_t _MAGIC = MAGIC
cdef Py_ssize_t _CHECKSUM_FROM = CHECKSUM_FROM
cdef object _crc32c = crc32c


cdef inline void store16(uint8_t* p, uint16_t v) noexcept nogil:
    memcpy(p, &v, 2)


cdef inline void store32(uint8_t* p, uint32_t v) noexcept nogil:
    memcpy(p, &v, 4)


cdef inline void store64(uint8_t* p, uint64_t v) noexcept nogil:
    memcpy(p, &v, 8)


def first_time_of(const unsigned char[::1] header):
    """Return the first record's timestamp from a batch header, in ms. Raises CorruptBatchError."""
    if header.shape[0] < BATCH_HEADER_BYTES or load32(&header[0]) != _MAGIC:
        raise CorruptBatchError("no batch header")
    return load64(&header[32])


# Not tracked by the garbage collector: clearing a cycle would reset `owner` before `__dealloc__`
# checks it, and memory of a larger read would be freed as the batch's own. An owner holds bytes, so
# no cycle can form.
@cython.no_gc
cdef class Batch:
    """One batch in memory, readable as bytes (buffer protocol: os.write, crc32c, sendmsg).

    It either owns its memory (made by a builder) or points into a larger read, whose owner it keeps
    alive. Its header fields are properties; its records are accessible from compiled code only
    (`locate`, `view`), and from tests by `records()`.
    """

    def __cinit__(self):
        self.data = NULL
        self.owner = None

    def __dealloc__(self):
        if self.owner is None:
            free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags & ~PyBUF_WRITABLE)

    def __repr__(self):
        return f"Batch(base_offset={self.base_offset}, count={self.count}, size={self.size})"

    @property
    def stop_offset(self):
        """One past the offset of the last record."""
        return self.base_offset + self.count

    @property
    def checksum(self):
        """CRC-32C stored in the header."""
        return load32(self.data + 16)

    @property
    def attributes(self):
        """BatchAttribute bits."""
        return load16(self.data + 20)

    @property
    def features(self):
        """Flag words of all records, joined by OR."""
        return load16(self.data + 22)

    @property
    def leader_epoch(self):
        """Leader epoch in which the batch was written."""
        return load32(self.data + 28)

    cdef uint64_t time_of(self, const RecordView* record) noexcept:
        """Return the time when a record of this batch was stored, in ms since 1970."""
        return load64(self.data + 32) + record.time_delta

    @property
    def first_time(self):
        """Timestamp of the first record, milliseconds since 1970."""
        return load64(self.data + 32)

    @property
    def last_time(self):
        """Timestamp of the last record, milliseconds since 1970."""
        return self.last_ms()

    cdef uint64_t last_ms(self) noexcept:
        return load64(self.data + 40)

    @property
    def tag_mask(self):
        """Tag masks of all records, joined by OR."""
        return load64(self.data + 56)

    @property
    def is_control(self):
        """Whether the batch carries settlements instead of messages."""
        return bool(load16(self.data + 20) & CONTROL)

    @property
    def payload(self):
        """All bytes behind the header, as a memoryview."""
        return memoryview(self)[BATCH_HEADER_BYTES:]

    @property
    def checked(self):
        """Bytes covered by the checksum, as a memoryview."""
        return memoryview(self)[CHECKSUM_FROM:]

    @property
    def transaction(self):
        """Id of the transaction that a pending batch belongs to; 0 if none."""
        return load64(self.data + 48) if load16(self.data + 20) & PENDING else 0

    cdef void set_leader_epoch(self, uint32_t epoch) noexcept:
        """Set the epoch in which the batch is written. The caller must set its checksum again."""
        store32(self.data + 28, epoch)

    def set_pending(self, uint64_t transaction):
        """Mark the batch as part of a transaction. The caller must set its checksum again."""
        store16(self.data + 20, load16(self.data + 20) | PENDING)
        store64(self.data + 48, transaction)

    cpdef int set_checksum(self) except -1:
        """Write the CRC-32C of `checked` into the header."""
        cdef char* checked = <char*>self.data + _CHECKSUM_FROM
        store32(
            self.data + 16,
            _crc32c(PyMemoryView_FromMemory(checked, self.size - _CHECKSUM_FROM, PyBUF_READ)),
        )
        return 0

    def offset_at(self, uint64_t time_ms):
        """Return the first offset stored at `time_ms` or later; `stop_offset` if there is none."""
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = self.base_offset
        cdef uint64_t first_time = load64(self.data + 32)
        cdef RecordView record
        while offset < self.base_offset + self.count:
            position = self.view(position, &record)
            if first_time + record.time_delta >= time_ms:
                break
            offset += 1
        return offset

    cdef size_t locate(self, uint64_t offset) except 0:
        """Return the position of the record with this offset.

        Raises IndexError if it is not in the batch.
        """
        cdef size_t position
        cdef uint64_t at
        cdef uint32_t size
        if offset < self.base_offset or offset >= self.base_offset + self.count:
            raise IndexError(offset)
        if self.cursor_position and self.cursor_offset <= offset:
            at, position = self.cursor_offset, self.cursor_position
        else:
            at, position = self.base_offset, BATCH_HEADER_BYTES
        while at < offset:
            size = self._size_at(position)
            position += size
            at += 1
        self.cursor_offset, self.cursor_position = at, position
        return position

    cdef uint32_t _size_at(self, size_t position) except 0:
        cdef uint32_t size
        if position + RECORD_HEADER_BYTES > self.size:
            raise CorruptBatchError(f"record at {position} begins behind its batch's end")
        size = load32(self.data + position)
        if size < RECORD_HEADER_BYTES or position + size > self.size:
            raise CorruptBatchError(f"record at {position} has the impossible size {size}")
        return size

    cdef size_t view(self, size_t position, RecordView* record) except 0:
        """Fill `record` with the record at `position` and return the position behind it.

        Raises CorruptBatchError if the sizes in the record are inconsistent.
        """
        cdef uint32_t size = self._size_at(position)
        cdef const uint8_t* p = self.data + position
        cdef const uint8_t* end = p + size
        cdef const uint8_t* q = p + RECORD_HEADER_BYTES
        record.size = size
        record.flags = load32(p + 4)
        record.time_delta = load32(p + 8)
        record.tag_mask = load64(p + 12)
        record.address = q
        if q + 1 > end or q + 1 + q[0] + 1 > end:
            raise CorruptBatchError(f"record at {position} has no room for its exchange")
        q += 1 + q[0]
        if q + 1 + q[0] + 4 > end:
            raise CorruptBatchError(f"record at {position} has no room for its routing key")
        q += 1 + q[0]
        record.address_size = <uint32_t>(q - record.address)
        record.header_size = load32(q)
        q += 4
        if record.header_size > <size_t>(end - q):
            raise CorruptBatchError(f"record at {position} has no room for its content header")
        record.header = q
        record.body = q + record.header_size
        record.body_size = end - record.body
        return position + size

    def records(self):
        """Yield (offset, flags, ms, exchange, routing key, content header, body) of each record.

        `ms` is its time since 1970. Makes one Python tuple per message: for messages handled one by
        one, and for tests.
        """
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = self.base_offset
        cdef uint32_t i
        for i in range(self.count):
            position = self.view(position, &record)
            yield offset, *_as_tuple(&record, self.first_time)
            offset += 1

    def flagged(self, uint32_t flags):
        """Return the offsets of the records that have one of `flags`, as a RangeSet."""
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint32_t i
        cdef RangeSet found = RangeSet()
        if self.features & flags:
            for i in range(self.count):
                position = self.view(position, &record)
                if record.flags & flags:
                    found.add(self.base_offset + i, self.base_offset + i + 1)
        return found

    def record(self, uint64_t offset):
        """Return (flags, time in ms, exchange, routing key, content header, body) of one record."""
        cdef RecordView record
        self.view(self.locate(offset), &record)
        return _as_tuple(&record, self.first_time)

    @staticmethod
    def parse(data, size_t position=0):
        """Return the batch at `position` of a bytes-like object, which it keeps alive.

        The header is validated; the caller checks the checksum (`checked`). Raises
        CorruptBatchError if there is no complete batch.
        """
        cdef const unsigned char[::1] window = data
        cdef Batch batch = Batch.__new__(Batch)
        cdef size_t available
        cdef uint32_t length
        if position > <size_t>window.shape[0]:
            raise CorruptBatchError("batch begins behind the end of the data")
        available = window.shape[0] - position
        batch.owner = data
        if available < BATCH_HEADER_BYTES:
            raise CorruptBatchError(f"{available} bytes hold no batch header")
        batch.data = <uint8_t*>&window[position]
        if load32(batch.data) != _MAGIC:
            raise CorruptBatchError(f"no batch magic at position {position}")
        length = load32(batch.data + 4)
        if length < BATCH_HEADER_BYTES or length > available:
            raise CorruptBatchError(f"batch of {length} bytes with {available} bytes at hand")
        batch.size = length
        batch.base_offset = load64(batch.data + 8)
        batch.count = load32(batch.data + 24)
        if batch.count > (length - BATCH_HEADER_BYTES) // RECORD_HEADER_BYTES and not batch.is_control:
            raise CorruptBatchError(f"{batch.count} records cannot stand in {length} bytes")
        return batch

    @staticmethod
    def control(
        uint64_t end_offset, payload, uint64_t now, uint32_t leader_epoch=0, uint64_t producer_id=0
    ):
        """Return a control batch, which takes no offset. The caller sets its checksum."""
        cdef const unsigned char[::1] content = payload
        cdef size_t n = content.shape[0]
        cdef Batch batch = Batch.__new__(Batch)
        batch.data = <uint8_t*>malloc(BATCH_HEADER_BYTES + n)
        if batch.data == NULL:
            raise MemoryError
        batch.size = BATCH_HEADER_BYTES + n
        batch.base_offset = end_offset
        batch.count = 0
        memset(batch.data, 0, BATCH_HEADER_BYTES)
        _write_header(batch.data, batch.size, end_offset, CONTROL, 0, 0, leader_epoch, now, now)
        store64(batch.data + 48, producer_id)
        if n:
            memcpy(batch.data + BATCH_HEADER_BYTES, &content[0], n)
        return batch


cdef object _as_tuple(RecordView* record, uint64_t first_time):
    cdef const uint8_t* p = record.address
    cdef bytes exchange = (<const char*>p + 1)[: p[0]]
    p += 1 + p[0]
    cdef bytes routing_key = (<const char*>p + 1)[: p[0]]
    return (
        record.flags,
        first_time + record.time_delta,
        exchange,
        routing_key,
        (<const char*>record.header)[: record.header_size],
        (<const char*>record.body)[: record.body_size],
    )


cdef void _write_header(
    uint8_t* p, size_t size, uint64_t base_offset, uint16_t attributes, uint16_t features,
    uint32_t count, uint32_t leader_epoch, uint64_t first_time, uint64_t last_time,
) noexcept:
    store32(p, _MAGIC)
    store32(p + 4, <uint32_t>size)
    store64(p + 8, base_offset)
    store16(p + 20, attributes)
    store16(p + 22, features)
    store32(p + 24, count)
    store32(p + 28, leader_epoch)
    store64(p + 32, first_time)
    store64(p + 40, last_time)


cdef class BatchBuilder:
    """Buffer that gathers the records of one log until the turn of the event loop ends.

    The frame reader packs publishes of all connections directly into it; the log seals it. `owner`
    is the core's queue, which the reader notifies of the first record.
    """

    def __cinit__(self, owner=None):
        self.owner = owner
        self.data = NULL
        self._reset()

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.count

    @property
    def held_bytes(self):
        """Memory reserved for records, in bytes."""
        return self.capacity

    cdef void _reset(self) noexcept:
        self.data = NULL
        self.capacity = 0
        self.size = BATCH_HEADER_BYTES
        self.count = 0
        self.features = 0
        self.tag_mask = 0
        self.transient = True
        self.first_time = 0
        self.last_time = 0

    cdef int reserve(self, size_t extra) except -1:
        """Make room for `extra` more bytes."""
        cdef size_t wanted = self.size + extra
        cdef uint8_t* grown
        if wanted <= self.capacity:
            return 0
        if wanted > 0xFFFFFFFF:
            raise OverflowError("a batch is at most 4 GiB long")
        wanted = max(wanted, self.capacity * 2, BUILDER_BYTES_MIN)
        grown = <uint8_t*>realloc(self.data, wanted)
        if grown == NULL:
            raise MemoryError
        self.data = grown
        self.capacity = wanted
        return 0

    cdef int append(
        self, uint32_t flags, uint64_t now, uint64_t tag_mask,
        const uint8_t* address, uint32_t address_size,
        const uint8_t* header, uint32_t header_size,
        const uint8_t* body, size_t body_size,
    ) except -1:
        """Pack one record. `now` is in ms since 1970 and must not go back within a batch."""
        cdef size_t size = RECORD_HEADER_BYTES + address_size + 4 + header_size + body_size
        cdef uint8_t* p
        self.reserve(size)
        if self.count == 0:
            self.first_time = now
        self.last_time = max(self.last_time, now)
        p = self.data + self.size
        store32(p, <uint32_t>size)
        store32(p + 4, flags)
        store32(p + 8, <uint32_t>(self.last_time - self.first_time))
        store64(p + 12, tag_mask)
        memcpy(p + RECORD_HEADER_BYTES, address, address_size)
        p += RECORD_HEADER_BYTES + address_size
        store32(p, header_size)
        memcpy(p + 4, header, header_size)
        memcpy(p + 4 + header_size, body, body_size)
        self.size += size
        self.count += 1
        self.features |= flags
        self.tag_mask |= tag_mask
        if flags & PERSISTENT:
            self.transient = False
        return 0

    def add(
        self, uint32_t flags, uint64_t now, bytes exchange, bytes routing_key, bytes header,
        bytes body,
    ):
        """Pack one record from Python, for messages handled singly.

        These are events, delayed messages and tests. The tag mask is computed from the header.
        """
        cdef uint64_t tag_mask = 0
        cdef bytes address = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
        if flags & HAS_HEADERS:
            tag_mask = mask_of(<const uint8_t*><const char*>header, <uint32_t>len(header))
            flags = flags | HAS_TAGS if tag_mask else flags & ~<uint32_t>HAS_TAGS
        self.append(
            flags, now, tag_mask, <const uint8_t*><const char*>address, <uint32_t>len(address),
            <const uint8_t*><const char*>header, <uint32_t>len(header),
            <const uint8_t*><const char*>body, len(body),
        )

    def add_all(self, BatchBuilder source not None):
        """Pack all records of another builder, whose times count as now."""
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef Batch gathered
        cdef uint32_t i
        if source.count == 0:
            return
        gathered = source.preview(0)
        for i in range(source.count):
            position = gathered.view(position, &record)
            self.append(
                record.flags, source.last_time, record.tag_mask, record.address, record.address_size,
                record.header, record.header_size, record.body, record.body_size,
            )

    def for_message(self, uint32_t flags, bytes routing_key, bytes header, number=None):
        """Return itself: the builder for a message, as `Partitioner.for_message` does."""
        return self

    cpdef Batch seal(self, uint64_t base_offset):
        """Return the gathered records as a Batch and start anew. The caller sets its checksum.

        Raises ValueError if the builder is empty.
        """
        cdef Batch batch = Batch.__new__(Batch)
        cdef uint8_t* fitted
        if self.count == 0:
            raise ValueError("an empty builder makes no batch")
        # Free what doubling has over-allocated: batches may stay in the tail cache for long.
        if self.capacity - self.size > self.size // 8:
            fitted = <uint8_t*>realloc(self.data, self.size)
            if fitted != NULL:
                self.data = fitted
        self._write_header(base_offset)
        batch.data = self.data
        batch.size = self.size
        batch.base_offset = base_offset
        batch.count = self.count
        if self.counters is not None:
            self.counters.add(_PUBLISH, self.count)
        self.was_sealed = True
        self._reset()
        return batch

    def preview(self, uint64_t base_offset):
        """Return the batch that `seal` would make.

        It reads the builder's memory and is valid until the next change.
        """
        cdef Batch batch = Batch.__new__(Batch)
        if self.count == 0:
            raise ValueError("an empty builder makes no batch")
        self._write_header(base_offset)
        batch.owner = self
        batch.data = self.data
        batch.size = self.size
        batch.base_offset = base_offset
        batch.count = self.count
        return batch

    def body_bytes(self):
        """Return the bytes of all bodies."""
        cdef Batch gathered
        cdef RecordView record
        cdef uint64_t body_bytes = 0
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint32_t i
        if self.count:
            gathered = self.preview(0)
            for i in range(self.count):
                position = gathered.view(position, &record)
                body_bytes += record.body_size
        return body_bytes

    def refuse(self, uint64_t records_max, uint64_t body_bytes_max, bint keep):
        """Apply a length limit record by record: keep each that still fits, remove the others.

        Returns the indexes of the refused records as a RangeSet, and the records as a batch, or
        None without `keep` or if none was refused.
        """
        cdef Batch gathered = self.preview(0)
        cdef RangeSet indexes = RangeSet()
        cdef BatchBuilder refused = BatchBuilder()
        cdef RecordView record
        cdef uint64_t admitted = 0, body_bytes = 0
        cdef size_t position = BATCH_HEADER_BYTES, after, end = BATCH_HEADER_BYTES
        cdef uint32_t i
        for i in range(self.count):
            after = gathered.view(position, &record)
            if admitted < records_max and record.body_size <= body_bytes_max - body_bytes:
                memmove(self.data + end, self.data + position, after - position)
                end += after - position
                admitted += 1
                body_bytes += record.body_size
            else:
                indexes.add(i, i + 1)
                if keep:
                    refused._copy(self, position, after)
            position = after
        self.size = end
        self.count = <uint32_t>admitted
        if admitted == 0:
            self.clear()
        return indexes, refused.seal(0) if refused.count else None

    def drop(self, RangeSet indexes not None):
        """Remove the records at these indexes."""
        cdef Batch gathered = self.preview(0)
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES, after, end = BATCH_HEADER_BYTES
        cdef uint32_t i, kept = 0
        for i in range(self.count):
            after = gathered.view(position, &record)
            if i not in indexes:
                memmove(self.data + end, self.data + position, after - position)
                end += after - position
                kept += 1
            position = after
        self.size = end
        self.count = kept
        if kept == 0:
            self.clear()

    cdef int _copy(self, BatchBuilder source, size_t position, size_t after) except -1:
        """Append a record copied from another builder."""
        self.reserve(after - position)
        memcpy(self.data + self.size, source.data + position, after - position)
        self.size += after - position
        self.count += 1
        self.features = source.features
        self.tag_mask = source.tag_mask
        self.transient = source.transient
        self.first_time = source.first_time
        self.last_time = source.last_time
        return 0

    cdef void _write_header(self, uint64_t base_offset) noexcept:
        memset(self.data, 0, BATCH_HEADER_BYTES)
        _write_header(
            self.data, self.size, base_offset, TRANSIENT if self.transient else 0,
            <uint16_t>self.features, self.count, 0, self.first_time, self.last_time,
        )
        store64(self.data + 56, self.tag_mask)

    def split(self, size_t bytes_max):
        """Return builders that have the records in order, and leave this one empty.

        Each makes a batch of at most `bytes_max` bytes, or one of a single record.
        """
        cdef Batch gathered = self.preview(0)
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef BatchBuilder portion = None
        cdef list portions = []
        cdef uint32_t i
        for i in range(self.count):
            position = gathered.view(position, &record)
            if portion is None or portion.size + record.size > bytes_max:
                portion = BatchBuilder()
                portion.counters = self.counters
                portions.append(portion)
            portion.append(
                record.flags, self.first_time + record.time_delta, record.tag_mask,
                record.address, record.address_size,
                record.header, record.header_size, record.body, record.body_size,
            )
        self.was_sealed = True
        self.clear()
        return portions

    def clear(self):
        """Discard all records, e.g. because the queue was deleted."""
        free(self.data)
        self._reset()
