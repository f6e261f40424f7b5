"""Due times of records in a delayed-message store, as arrays without Python objects per record.

    packed form, as in the durable index: for each record, little-endian
     0  u64  due time, milliseconds since 1970
     8  u64  offset

A record's due time is stored in its `tag_mask`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove

from leveret.ports.ranges cimport RangeSet, range_at
from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, BatchBuilder, RecordView

DUE_MS_MAX = (1 << 48) - 2      # the year 10889: the limit of the timing wheel

# Sizes of buckets, as powers of two of milliseconds: 4 s, 65 s, 17 min, 5 h, 3 days.
BITS_MIN = 12
BITS_MAX = 28
cdef enum:
    BITS_STEP = 4


cdef int _compare(const void* one, const void* other) noexcept nogil:
    cdef const Due* a = <const Due*>one
    cdef const Due* b = <const Due*>other
    if a.due_ms != b.due_ms:
        return -1 if a.due_ms < b.due_ms else 1
    if a.offset != b.offset:
        return -1 if a.offset < b.offset else 1
    return 0


cdef class DueList:
    """A growable array of (due time, offset)."""

    def __cinit__(self):
        self.items = NULL
        self.size = self.capacity = 0

    def __dealloc__(self):
        free(self.items)

    def __len__(self):
        return self.size

    def __iter__(self):
        cdef Py_ssize_t i = 0
        while i < self.size:
            yield self.items[i].due_ms, self.items[i].offset
            i += 1

    cdef int reserve(self, Py_ssize_t extra) except -1:
        cdef Py_ssize_t wanted = self.size + extra
        cdef Due* grown
        if wanted <= self.capacity:
            return 0
        wanted = max(wanted, self.capacity + self.capacity // 2, 16)
        grown = <Due*>realloc(self.items, wanted * sizeof(Due))
        if grown == NULL:
            raise MemoryError
        self.items = grown
        self.capacity = wanted
        return 0

    cdef int push(self, uint64_t due_ms, uint64_t offset) except -1:
        if self.size == self.capacity:
            self.reserve(1)
        self.items[self.size].due_ms = due_ms
        self.items[self.size].offset = offset
        self.size += 1
        return 0

    def add(self, uint64_t due_ms, uint64_t offset):
        """Append one record."""
        self.push(due_ms, offset)

    def extend(self, DueList other not None):
        """Append all records of another list."""
        self.reserve(other.size)
        if other.size:
            memcpy(&self.items[self.size], other.items, other.size * sizeof(Due))
        self.size += other.size

    def learn(self, Batch batch not None, RangeSet settled not None):
        """Append the unsettled records of a batch. Raises CorruptBatchError."""
        cdef RecordView record
        cdef uint64_t offset = batch.base_offset, first, stop
        cdef size_t position = BATCH_HEADER_BYTES
        for first, stop in settled.gaps(batch.base_offset, offset + batch.count):
            while offset < stop:
                position = batch.view(position, &record)
                if offset >= first:
                    self.push(record.tag_mask, offset)
                offset += 1

    def take_below(self, uint64_t offset):
        """Remove the leading records up to the first at or above `offset`.

        DelayedRequeue as a new list.
        """
        cdef DueList taken = DueList()
        cdef Py_ssize_t i = 0
        while i < self.size and self.items[i].offset < offset:
            i += 1
        taken.reserve(i)
        if i:
            memcpy(taken.items, self.items, i * sizeof(Due))
            memmove(self.items, &self.items[i], (self.size - i) * sizeof(Due))
        taken.size = i
        self.size -= i
        return taken

    def cut(self, uint64_t offset):
        """Remove records at or above `offset`."""
        cdef Py_ssize_t i, kept = 0
        for i in range(self.size):
            if self.items[i].offset < offset:
                self.items[kept] = self.items[i]
                kept += 1
        self.size = kept

    def forget(self, RangeSet settled not None):
        """Remove the records that are in `settled`."""
        cdef Py_ssize_t i, kept = 0
        cdef Py_ssize_t at
        cdef uint64_t offset
        for i in range(self.size):
            offset = self.items[i].offset
            at = settled._find(offset)
            if at < settled.size and range_at(settled, at).first <= offset:
                continue
            self.items[kept] = self.items[i]
            kept += 1
        self.size = kept

    def sort(self):
        """Sort by due time, then offset, and remove duplicates."""
        cdef Py_ssize_t i, kept = 0
        if self.size < 2:
            return
        qsort(self.items, self.size, sizeof(Due), _compare)
        for i in range(1, self.size):
            if _compare(&self.items[i], &self.items[kept]):
                kept += 1
                self.items[kept] = self.items[i]
        self.size = kept + 1

    def between(self, uint64_t from_ms, uint64_t before_ms):
        """Return the records due in [from_ms, before_ms), in list order, as a new list."""
        cdef DueList found = DueList()
        cdef Py_ssize_t i
        for i in range(self.size):
            if from_ms <= self.items[i].due_ms < before_ms:
                found.push(self.items[i].due_ms, self.items[i].offset)
        return found

    def buckets(self, uint64_t base_ms):
        """Sort, and split by buckets of the durable index: [(start, bits, DueList)] in order.

        A bucket covers 2 ** bits milliseconds from `start` on. Each record goes to the largest
        bucket that begins at least its own length after `base_ms`, else to one of the smallest: so
        each record has been moved to smaller buckets before it is due.
        """
        cdef list found = []
        cdef DueList part
        cdef Py_ssize_t i = 0
        cdef int bits
        cdef uint64_t start, stop, due
        self.sort()
        while i < self.size:
            due = self.items[i].due_ms
            bits = BITS_MAX
            while bits > BITS_MIN and due >> bits << bits < base_ms + (<uint64_t>1 << bits):
                bits -= BITS_STEP
            start = due >> bits << bits
            stop = start + (<uint64_t>1 << bits)
            part = DueList()
            while i < self.size and self.items[i].due_ms < stop:
                part.push(self.items[i].due_ms, self.items[i].offset)
                i += 1
            found.append((start, bits, part))
        return found

    def pieces(self, Py_ssize_t count_max):
        """Return the packed form in chunks of at most `count_max` records: [(count, bytes)]."""
        cdef list found = []
        cdef Py_ssize_t i, count
        for i in range(0, self.size, count_max):
            count = min(count_max, self.size - i)
            found.append((count, (<char*>&self.items[i])[: count * sizeof(Due)]))
        return found

    def offsets(self):
        """Return the offsets in list order."""
        cdef Py_ssize_t i
        return [self.items[i].offset for i in range(self.size)]

    @property
    def first_due_ms(self):
        """Earliest due time; None if the list is empty."""
        cdef Py_ssize_t i
        cdef uint64_t found = <uint64_t>-1
        for i in range(self.size):
            found = min(found, self.items[i].due_ms)
        return found if self.size else None

    def clear(self):
        """Remove all records and free the memory."""
        free(self.items)
        self.items = NULL
        self.size = self.capacity = 0

    def unpack(self, const unsigned char[::1] data):
        """Append records packed by `pieces`. Raises ValueError for an invalid length."""
        cdef Py_ssize_t count = data.shape[0] // sizeof(Due)
        if data.shape[0] % sizeof(Due):
            raise ValueError("a due list is pairs of 64-bit numbers")
        self.reserve(count)
        if count:
            memcpy(&self.items[self.size], &data[0], count * sizeof(Due))
        self.size += count


cdef class DuePage:
    """The first records by due time and offset, selected from records offered in any order.

    Only records after `after` (due time, offset) and due before `before_ms`, at most `count_max`.
    """

    cdef Due* heap              # max-heap of the records selected so far
    cdef Py_ssize_t size
    cdef Py_ssize_t count_max
    cdef Due after
    cdef bint from_start
    cdef uint64_t before_ms

    def __cinit__(self, after, before_ms, Py_ssize_t count_max):
        self.from_start = after is None
        if after is not None:
            self.after.due_ms, self.after.offset = after
        self.before_ms = <uint64_t>-1 if before_ms is None else before_ms
        self.count_max = max(count_max, 0)
        self.size = 0
        self.heap = <Due*>malloc(max(self.count_max, 1) * sizeof(Due))
        if self.heap == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.heap)

    @property
    def full_until_ms(self):
        """Due time beyond which no record can enter the page; None while it is not full."""
        return self.heap[0].due_ms if self.size and self.size == self.count_max else None

    def look(self, DueList shown not None, RangeSet settled not None, RangeSet leased not None):
        """Offer records; those in `settled` or `leased` are skipped."""
        cdef Py_ssize_t i
        cdef Due item
        if self.count_max == 0:
            return
        for i in range(shown.size):
            item = shown.items[i]
            if item.due_ms >= self.before_ms:
                continue
            if not self.from_start and _compare(&item, &self.after) <= 0:
                continue
            if self.size == self.count_max and _compare(&item, &self.heap[0]) >= 0:
                continue
            if _holds(settled, item.offset) or _holds(leased, item.offset):
                continue
            self._put(item)

    cdef void _put(self, Due item):
        cdef Py_ssize_t i, parent, child
        for i in range(self.size):      # offered twice: pages are small
            if self.heap[i].offset == item.offset:
                return
        if self.size < self.count_max:
            i = self.size
            self.size += 1
            while i:
                parent = (i - 1) >> 1
                if _compare(&self.heap[parent], &item) >= 0:
                    break
                self.heap[i] = self.heap[parent]
                i = parent
            self.heap[i] = item
            return
        i = 0
        child = 1
        while child < self.size:
            if child + 1 < self.size and _compare(&self.heap[child + 1], &self.heap[child]) > 0:
                child += 1
            if _compare(&self.heap[child], &item) <= 0:
                break
            self.heap[i] = self.heap[child]
            i = child
            child = 2 * i + 1
        self.heap[i] = item

    def page(self):
        """Return the selected records in order: [(due time, offset)]."""
        cdef Py_ssize_t i
        return sorted([(self.heap[i].due_ms, self.heap[i].offset) for i in range(self.size)])


cdef bint _holds(RangeSet ranges, uint64_t offset):
    cdef Py_ssize_t at = ranges._find(offset)
    return at < ranges.size and range_at(ranges, at).first <= offset


def record_of(Batch batch not None, uint64_t offset):
    """Return (due time, offset, flags, exchange, routing key, content header, body) of a record.

    Raises CorruptBatchError, IndexError.
    """
    cdef RecordView record
    cdef const uint8_t* p
    cdef bytes exchange, routing_key
    batch.view(batch.locate(offset), &record)
    p = record.address
    exchange = (<const char*>p + 1)[: p[0]]
    p += 1 + p[0]
    routing_key = (<const char*>p + 1)[: p[0]]
    return (
        record.tag_mask, offset, record.flags, exchange, routing_key,
        (<const char*>record.header)[: record.header_size],
        (<const char*>record.body)[: record.body_size],
    )


def put_record(
    BatchBuilder builder not None, uint64_t due_ms, uint32_t flags, uint64_t now, bytes exchange,
    bytes routing_key, bytes header, bytes body,
):
    """Pack one record that is due at `due_ms`, with its flags unchanged."""
    cdef bytes address = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
    builder.append(
        flags, now, due_ms, <const uint8_t*><const char*>address, <uint32_t>len(address),
        <const uint8_t*><const char*>header, <uint32_t>len(header),
        <const uint8_t*><const char*>body, len(body),
    )
