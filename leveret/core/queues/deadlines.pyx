# distutils: language = c++
"""Deadlines of records with an own expiration, and expiry checks for a few records.

A queue with the same TTL for all messages needs no list of deadlines: its oldest message expires
first. A message with its own `expiration` may expire before older ones: those are kept in
`Deadlines`, neighbours with the same deadline as one entry.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp.algorithm cimport make_heap, pop_heap, push_heap
from libcpp.vector cimport vector

from leveret.ports.contents cimport TIMESTAMP_BIT, expiration_ms, find_property
from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, HAS_EXPIRATION, RecordView

cdef uint64_t _NEVER = <uint64_t>-1
# Longer lifetimes count as unlimited: added to a time they might exceed 64 bits.
LIVES_MS_MAX = 1 << 62
# Entries taken at once: about a millisecond of work when they expire or are requeued.
cdef Py_ssize_t TAKEN_MAX = 256


cdef struct Entry:
    uint64_t deadline       # milliseconds since 1970
    uint64_t first
    uint64_t stop


cdef bint _later(const Entry& one, const Entry& other) noexcept nogil:
    """Order of a heap that has the earliest deadline in front."""
    return one.deadline > other.deadline or (
        one.deadline == other.deadline and one.first > other.first
    )


cdef inline uint64_t _deadline(const RecordView* record, uint64_t first_time, uint64_t ttl) noexcept nogil:
    cdef uint64_t lives = ttl
    if record.flags & HAS_EXPIRATION:
        lives = min(lives, expiration_ms(record))
    return _NEVER if lives == _NEVER else first_time + record.time_delta + lives


cdef uint64_t _lives(ttl) except? 0:
    """Return the lifetime for a queue's `ttl`, in ms; None: unlimited."""
    return _NEVER if ttl is None or ttl > LIVES_MS_MAX else ttl


cdef class Deadlines:
    """Heap of offset ranges by their deadlines; `len()` is the number of entries.

    Entries of records delivered meanwhile are discovered when they are due, or by `prune`.
    """

    cdef vector[Entry] heap

    def __len__(self):
        return self.heap.size()

    @property
    def held_bytes(self):
        """Memory reserved for entries, in bytes."""
        return self.heap.capacity() * sizeof(Entry)

    @property
    def next(self):
        """Earliest deadline, or None."""
        return None if self.heap.empty() else self.heap.front().deadline

    def index(self, Batch batch not None):
        """Add the records of a batch that have an expiration."""
        cdef RecordView record
        cdef Entry run
        cdef uint64_t deadline, offset = batch.base_offset
        cdef uint64_t first_time = batch.first_time
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint32_t i
        run.first = run.stop = run.deadline = 0
        for i in range(batch.count):
            position = batch.view(position, &record)
            if record.flags & HAS_EXPIRATION:
                deadline = _deadline(&record, first_time, _NEVER)
                if run.stop != offset or run.deadline != deadline:
                    if run.stop > run.first:
                        self._push(run)
                    run.first = offset
                    run.deadline = deadline
                run.stop = offset + 1
            offset += 1
        if run.stop > run.first:
            self._push(run)

    def add(self, uint64_t first, uint64_t stop, uint64_t deadline):
        """Add [first, stop) with a deadline, whatever its records say."""
        self._push(Entry(deadline, first, stop))

    def take_due(self, uint64_t now):
        """Remove due entries, at most TAKEN_MAX: [(first, stop)], the earliest first.

        With equal deadlines, the lowest offsets come first. `next` tells whether more are due.
        """
        cdef list due = []
        while not self.heap.empty() and self.heap.front().deadline <= now and len(due) < TAKEN_MAX:
            due.append((self.heap.front().first, self.heap.front().stop))
            pop_heap(self.heap.begin(), self.heap.end(), &_later)
            self.heap.pop_back()
        return due

    def prune(self, RangeSet live not None):
        """Remove entries without an offset in `live`."""
        cdef size_t i, kept = 0
        for i in range(self.heap.size()):
            if live.overlap(self.heap[i].first, self.heap[i].stop):
                self.heap[kept] = self.heap[i]
                kept += 1
        self._keep(kept)

    def truncate(self, uint64_t offset):
        """Remove all offsets from `offset` on."""
        cdef size_t i, kept = 0
        for i in range(self.heap.size()):
            if self.heap[i].first < offset:
                self.heap[kept] = self.heap[i]
                self.heap[kept].stop = min(self.heap[kept].stop, offset)
                kept += 1
        self._keep(kept)

    cdef int _keep(self, size_t kept) except -1:
        """Keep the first `kept` entries and restore the heap order."""
        self.heap.resize(kept)
        make_heap(self.heap.begin(), self.heap.end(), &_later)
        return 0

    cdef int _push(self, Entry entry) except -1:
        self.heap.push_back(entry)
        push_heap(self.heap.begin(), self.heap.end(), &_later)
        return 0


def deadline(Batch batch not None, uint64_t offset, ttl):
    """Return the deadline of a record under a queue's `ttl` (None: unlimited); None: never."""
    cdef RecordView record
    cdef uint64_t found
    batch.view(batch.locate(offset), &record)
    found = _deadline(&record, batch.first_time, _lives(ttl))
    return None if found == _NEVER else found


def same_fate(list batches, uint64_t first, uint64_t stop, uint64_t now, ttl):
    """Return (stop, expired): how far the records from `first` on are all expired, or all not.

    `batches` contain `first`; records behind the last batch are not checked.
    """
    cdef Batch batch
    cdef uint64_t lives = _lives(ttl)
    cdef uint64_t offset = first, end
    cdef bint expired = False, known = False
    for batch in batches:
        end = batch.base_offset + batch.count
        if offset >= end or offset >= stop:
            continue
        if not _judge(batch, &offset, min(end, stop), now, lives, &expired, &known):
            break
    return offset, bool(expired)


cdef bint _judge(
    Batch batch, uint64_t* offset, uint64_t stop, uint64_t now, uint64_t ttl, bint* expired, bint* known
) except -1:
    """Check one batch. Returns whether all of it agrees with the records before."""
    cdef RecordView record
    cdef uint64_t first_time = batch.first_time
    cdef bint own = (<int>batch.features & HAS_EXPIRATION) != 0
    cdef bint fate
    cdef size_t position
    if not own and (ttl == _NEVER or first_time + ttl > now):
        if known[0] and expired[0]:
            return False
        known[0] = True
        offset[0] = stop
        return True
    position = batch.locate(offset[0])
    while offset[0] < stop:
        position = batch.view(position, &record)
        fate = _deadline(&record, first_time, ttl) <= now
        if known[0] and fate != expired[0]:
            return False
        known[0] = True
        expired[0] = fate
        offset[0] += 1
    return True


def timestamp_of(Batch batch not None, uint64_t offset):
    """Return a record's `timestamp` property, in seconds since 1970; None if it has none."""
    cdef RecordView record
    cdef uint32_t size
    cdef const uint8_t* value
    batch.view(batch.locate(offset), &record)
    value = find_property(&record, TIMESTAMP_BIT, &size)
    return None if value == NULL else int.from_bytes((<const char*>value)[:size])
