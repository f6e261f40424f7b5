# distutils: language = c++
"""Due times of records in a delayed-message store, as arrays without Python objects per record.

    packed form, as in the durable index: for each record, little-endian
     0  u64  due time, milliseconds since 1970
     8  u64  offset

A record's due time is stored in its `tag_mask`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp.algorithm cimport pop_heap, push_heap, sort
from libcpp.vector cimport vector

from leveret.ports.ranges cimport RangeSet, range_at
from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, BatchBuilder, RecordView

DUE_MS_MAX = (1 << 48) - 2      # the year 10889: the limit of the timing wheel

# Sizes of buckets, as powers of two of milliseconds: 4 s, 65 s, 17 min, 5 h, 3 days.
BITS_MIN = 12
BITS_MAX = 28
cdef enum:
    BITS_STEP = 4
    TAG_MASK_FROM = 12      # in a record (see ports.records)


cdef bint _precedes(const Due& one, const Due& other) noexcept nogil:
    """Order by due time, then offset."""
    return one.due_ms < other.due_ms or (one.due_ms == other.due_ms and one.offset < other.offset)


cdef class DueList:
    """A growable array of (due time, offset)."""

    def __len__(self):
        return self.items.size()

    def __iter__(self):
        cdef size_t i = 0
        while i < self.items.size():
            yield self.items[i].due_ms, self.items[i].offset
            i += 1

    cdef int push(self, uint64_t due_ms, uint64_t offset) except -1:
        cdef Due item
        item.due_ms = due_ms
        item.offset = offset
        self.items.push_back(item)
        return 0

    def add(self, uint64_t due_ms, uint64_t offset):
        """Append one record."""
        self.push(due_ms, offset)

    def extend(self, DueList other not None):
        """Append all records of another list."""
        self.items.insert(self.items.end(), other.items.begin(), other.items.end())

    def index(self, Batch batch not None, RangeSet settled not None):
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

    def index_gathered(self, BatchBuilder records not None, uint64_t first):
        """Append the records of a builder, whose offsets will be `first` and those behind it."""
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint32_t size
        cdef uint64_t due_ms
        while position < records.size:
            memcpy(&size, records.data + position, 4)
            memcpy(&due_ms, records.data + position + TAG_MASK_FROM, 8)
            self.push(due_ms, first)
            position += size
            first += 1

    def take_below(self, uint64_t offset):
        """Remove the leading records up to the first at or above `offset`, and return them."""
        cdef DueList taken = DueList()
        cdef size_t count = 0
        while count < self.items.size() and self.items[count].offset < offset:
            count += 1
        taken.items.assign(self.items.begin(), self.items.begin() + count)
        self.items.erase(self.items.begin(), self.items.begin() + count)
        return taken

    def truncate(self, uint64_t offset):
        """Remove records at or above `offset`."""
        cdef size_t kept = 0
        cdef Due item
        for item in self.items:
            if item.offset < offset:
                self.items[kept] = item
                kept += 1
        self.items.resize(kept)

    def forget(self, RangeSet settled not None):
        """Remove the records that are in `settled`."""
        cdef size_t kept = 0
        cdef Due item
        for item in self.items:
            if not _holds(settled, item.offset):
                self.items[kept] = item
                kept += 1
        self.items.resize(kept)

    def sort(self):
        """Sort by due time, then offset, and remove duplicates."""
        cdef size_t kept = 0
        cdef Due item
        sort(self.items.begin(), self.items.end(), _precedes)
        for item in self.items:
            if not kept or _precedes(self.items[kept - 1], item):
                self.items[kept] = item
                kept += 1
        self.items.resize(kept)

    def between(self, uint64_t from_ms, uint64_t before_ms):
        """Return the records due in [from_ms, before_ms), in list order, as a new list."""
        cdef DueList found = DueList()
        cdef Due item
        for item in self.items:
            if from_ms <= item.due_ms < before_ms:
                found.items.push_back(item)
        return found

    def buckets(self, uint64_t base_ms):
        """Sort, and split by buckets of the durable index: [(start, bits, DueList)] in order.

        A bucket covers 2 ** bits milliseconds from `start` on. Each record goes to the largest
        bucket that begins at least its own length after `base_ms`, else to one of the smallest: so
        each record has been moved to smaller buckets before it is due.
        """
        cdef list found = []
        cdef DueList part
        cdef size_t i = 0
        cdef int bits
        cdef uint64_t start, stop, due
        self.sort()
        while i < self.items.size():
            due = self.items[i].due_ms
            bits = BITS_MAX
            while bits > BITS_MIN and due >> bits << bits < base_ms + (<uint64_t>1 << bits):
                bits -= BITS_STEP
            start = due >> bits << bits
            stop = start + (<uint64_t>1 << bits)
            part = DueList()
            while i < self.items.size() and self.items[i].due_ms < stop:
                part.items.push_back(self.items[i])
                i += 1
            found.append((start, bits, part))
        return found

    def pieces(self, size_t count_max):
        """Return the packed form in chunks of at most `count_max` records: [(count, bytes)]."""
        cdef list found = []
        cdef size_t i, count
        for i in range(0, self.items.size(), count_max):
            count = min(count_max, self.items.size() - i)
            found.append((count, (<char*>&self.items[i])[: count * sizeof(Due)]))
        return found

    def offsets(self):
        """Return the offsets in list order."""
        cdef Due item
        return [item.offset for item in self.items]

    def unpack(self, const unsigned char[::1] data):
        """Append records packed by `pieces`. Raises ValueError for an invalid length."""
        cdef size_t count = data.shape[0] // sizeof(Due), size = self.items.size()
        if data.shape[0] % sizeof(Due):
            raise ValueError("a due list is pairs of 64-bit numbers")
        if count:
            self.items.resize(size + count)
            memcpy(&self.items[size], &data[0], count * sizeof(Due))


cdef class DuePage:
    """The first records by due time and offset, selected from records offered in any order.

    Only records after `after` (due time, offset) and due before `before_ms`, at most `count_max`.
    """

    cdef vector[Due] heap       # of the records selected so far, the last in front
    cdef size_t count_max
    cdef Due after
    cdef bint from_start
    cdef uint64_t before_ms

    def __cinit__(self, after, before_ms, Py_ssize_t count_max):
        self.from_start = after is None
        if after is not None:
            self.after.due_ms, self.after.offset = after
        self.before_ms = <uint64_t>-1 if before_ms is None else before_ms
        self.count_max = max(count_max, 0)

    cdef bint is_full(self) noexcept:
        return self.heap.size() >= self.count_max

    @property
    def full_until_ms(self):
        """Due time beyond which no record can enter the page; None while it is not full."""
        return self.heap.front().due_ms if self.heap.size() and self.is_full() else None

    def look(self, DueList shown not None, RangeSet settled not None, RangeSet leased not None):
        """Offer records; those in `settled` or `leased` are skipped."""
        cdef Due item
        if self.count_max == 0:
            return
        for item in shown.items:
            if item.due_ms >= self.before_ms:
                continue
            if not self.from_start and not _precedes(self.after, item):
                continue
            if self.is_full() and not _precedes(item, self.heap.front()):
                continue
            if not (_holds(settled, item.offset) or _holds(leased, item.offset)):
                self._put(item)

    cdef int _put(self, Due item) except -1:
        cdef Due held
        for held in self.heap:      # offered twice: pages are small
            if held.offset == item.offset:
                return 0
        if self.is_full():
            pop_heap(self.heap.begin(), self.heap.end(), _precedes)
            self.heap.pop_back()
        self.heap.push_back(item)
        push_heap(self.heap.begin(), self.heap.end(), _precedes)
        return 0

    def page(self):
        """Return the selected records in order: [(due time, offset)]."""
        cdef Due item
        return sorted([(item.due_ms, item.offset) for item in self.heap])


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


def flagged_headers(Batch batch not None, uint32_t flags):
    """Return [(offset, content header)] of the records that have one of these flags.

    Raises CorruptBatchError.
    """
    cdef RecordView record
    cdef size_t position = BATCH_HEADER_BYTES
    cdef uint64_t offset = batch.base_offset
    cdef uint32_t i
    cdef list found = []
    for i in range(batch.count):
        position = batch.view(position, &record)
        if record.flags & flags:
            found.append((offset, (<const char*>record.header)[: record.header_size]))
        offset += 1
    return found


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
