"""Compaction per record: the latest offset of each key, and the parts of a batch that are kept.

Compiled, because it looks at each record of a log, and no Python object is made for one.

    entry of the map, 24 bytes
     0  two u64  SipHash-2-4, 128 bits, of the key: the value of the header, its type letter included
    16  u64      the highest offset of a record with that key

Two keys with the same hash would be one: 128 bits make that impossible in practice, and the hash is
keyed anew for each map, so that nobody can look for two such keys.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from leveret.ports.contents cimport HeadersPlace, field_end, field_is, find_headers
from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport (
    BATCH_HEADER_BYTES, COMPACTED, DATED, PENDING, Batch, RecordView, load64,
)

from leveret.ports.partitioner import KEY_HEADER

ENTRY_BYTES = 24
SECRET_BYTES = 16
ENTRIES_MIN = 16

cdef enum:
    HEADER_BYTES_MIN = 14       # of a content header: anything shorter has no properties

cdef bytes _NAME = KEY_HEADER.encode()
cdef const uint8_t* NAME = _NAME
cdef uint8_t NAME_BYTES = len(_NAME)
cdef uint64_t NOTHING = <uint64_t>0xFFFFFFFFFFFFFFFF   # offset of an empty entry

cdef struct Hash:
    uint64_t low
    uint64_t high

cdef struct Entry:
    Hash key
    uint64_t offset


cdef inline uint64_t rotated(uint64_t v, int bits) noexcept nogil:
    return (v << bits) | (v >> (64 - bits))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] = rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] = rotated(v[2], 32)


cdef Hash siphash(const uint8_t* data, size_t size, uint64_t k0, uint64_t k1) noexcept nogil:
    """SipHash-2-4 with 128 bits, as its reference implementation computes it."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef size_t i, whole = size - size % 8
    cdef int j
    cdef Hash made
    v[0] = <uint64_t>0x736F6D6570736575 ^ k0
    v[1] = <uint64_t>0x646F72616E646F6D ^ k1 ^ 0xEE
    v[2] = <uint64_t>0x6C7967656E657261 ^ k0
    v[3] = <uint64_t>0x7465646279746573 ^ k1
    for i in range(0, whole, 8):
        word = load64(data + i)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    word = <uint64_t>size << 56
    for i in range(size - whole):
        word |= <uint64_t>data[whole + i] << (8 * i)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for j in range(4):
        sip_round(v)
    made.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for j in range(4):
        sip_round(v)
    made.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return made


cdef bint find_key(const RecordView* record, const uint8_t** key, size_t* size) noexcept nogil:
    """Find the value of a record's `x-partition-key`, its type letter included. False: no key."""
    cdef HeadersPlace place
    cdef const uint8_t* field
    cdef const uint8_t* after
    if record.header_size < HEADER_BYTES_MIN:
        return False
    if not find_headers(record.header, record.header_size, &place):
        return False
    field = place.fields
    while field < place.stop:
        after = field_end(field, place.stop)
        if after == NULL:
            return False
        if field_is(field, NAME, NAME_BYTES):
            key[0] = field + 1 + NAME_BYTES
            size[0] = after - key[0]
            return key[0][0] != c"V"
        field = after
    return False


def sip_hash(const unsigned char[::1] data not None, const unsigned char[::1] secret not None):
    """Return the hash of a key, 16 bytes, under a secret of as many. For tests."""
    cdef Hash made
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    if secret.shape[0] != 16:
        raise ValueError("the secret has 16 bytes")
    made = siphash(start, data.shape[0], load64(&secret[0]), load64(&secret[8]))
    return (<char*>&made)[:sizeof(Hash)]


@cython.final
cdef class KeyMap:
    """The latest offset of each key, for `count_max` keys in `held_bytes` of memory.

    A table with open addressing, three quarters full at most; it does not grow.
    """

    cdef Entry* entries
    cdef uint64_t mask
    cdef uint64_t k0
    cdef uint64_t k1
    cdef readonly uint64_t count
    cdef readonly uint64_t count_max

    def __cinit__(self, uint64_t bytes_max, const unsigned char[::1] secret not None):
        """Take the greatest power of two entries within `bytes_max`, ENTRIES_MIN at least."""
        cdef uint64_t size = ENTRIES_MIN
        if secret.shape[0] != 16:
            raise ValueError("the secret has 16 bytes")
        while 2 * size * sizeof(Entry) <= bytes_max:
            size *= 2
        self.entries = <Entry*>malloc(size * sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError
        memset(self.entries, 0xFF, size * sizeof(Entry))
        self.mask = size - 1
        self.count_max = size // 4 * 3
        self.k0, self.k1 = load64(&secret[0]), load64(&secret[8])

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    @property
    def held_bytes(self):
        """Bytes of memory that the map takes."""
        return (self.mask + 1) * sizeof(Entry)

    cdef Entry* _find(self, Hash key) noexcept nogil:
        """Return the entry of a key, or the empty one where it belongs."""
        cdef uint64_t at = key.low & self.mask
        cdef Entry* entry = &self.entries[at]
        while entry.offset != NOTHING and (entry.key.low != key.low or entry.key.high != key.high):
            at = (at + 1) & self.mask
            entry = &self.entries[at]
        return entry

    cdef bint _note(self, const RecordView* record, uint64_t offset) noexcept nogil:
        """Note that a record with some key stands at `offset`. False: there is no room."""
        cdef const uint8_t* key
        cdef size_t size
        cdef Hash hashed
        cdef Entry* entry
        if not find_key(record, &key, &size):
            return True
        hashed = siphash(key, size, self.k0, self.k1)
        entry = self._find(hashed)
        if entry.offset == NOTHING:
            if self.count == self.count_max:
                return False
            self.count += 1
            entry.key = hashed
            entry.offset = offset
        elif offset > entry.offset:
            entry.offset = offset
        return True

    def note(self, Batch batch not None, RangeSet live not None, uint64_t first):
        """Note the keys of the `live` records of a batch from offset `first` on.

        Returns the offset at which the map was full; else where the batch ends. Raises
        CorruptBatchError.
        """
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = batch.base_offset, stop = batch.base_offset + batch.count
        while offset < stop:
            position = batch.view(position, &record)
            if offset >= first and live.contains(offset, offset + 1):
                if not self._note(&record, offset):
                    return offset
            offset += 1
        return stop


@cython.final
cdef class Sieve:
    """Records that go of one segment, mostly since a later one of their key supersedes them.

    `live` are the records of the segment that are not settled; all others go. `keys` has the latest
    offset of each key below `covered` that was written since an earlier compaction. A tombstone is
    a record with a key and no body: it goes at the time that its batch says, if that is not after
    `now_ms`; where it says none it is to get one, `undated` counts them.

    `removed` are the offsets that go, those of them that were live are `superseded`; `kept` counts
    the records that stay. `due_ms` is the first time at which a tombstone may go, 0 where none has
    a time.
    """

    cdef KeyMap keys
    cdef RangeSet live
    cdef uint64_t covered
    cdef uint64_t now_ms
    cdef readonly RangeSet removed
    cdef readonly uint64_t kept
    cdef readonly RangeSet superseded
    cdef readonly uint64_t undated
    cdef readonly uint64_t due_ms

    def __init__(
        self, KeyMap keys not None, RangeSet live not None, uint64_t covered, uint64_t now_ms
    ):
        self.keys = keys
        self.live = live
        self.covered = covered
        self.now_ms = now_ms
        self.removed = RangeSet()
        self.superseded = RangeSet()

    def look(self, Batch batch not None):
        """Look at the records of the next batch. Raises CorruptBatchError."""
        cdef RecordView record
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = batch.base_offset, stop = batch.base_offset + batch.count
        cdef uint64_t due_ms = due_of(batch)
        while offset < stop:
            position = batch.view(position, &record)
            if not self.live.contains(offset, offset + 1):
                self.removed.add(offset, offset + 1)
            elif self._goes(&record, offset, due_ms):
                self.superseded.add(offset, offset + 1)
                self.removed.add(offset, offset + 1)
            else:
                self.kept += 1
            offset += 1

    cdef bint _goes(self, const RecordView* record, uint64_t offset, uint64_t due_ms) except -1:
        cdef const uint8_t* key
        cdef size_t size
        cdef Entry* entry
        if not find_key(record, &key, &size):
            return False
        entry = self.keys._find(siphash(key, size, self.keys.k0, self.keys.k1))
        if entry.offset != NOTHING and entry.offset > offset:
            return True
        if record.body_size:
            return False
        if due_ms:
            if due_ms <= self.now_ms:
                return True
            self.due_ms = min(self.due_ms, due_ms) if self.due_ms else due_ms
        elif offset < self.covered:
            self.undated += 1
        return False


cdef uint64_t due_of(Batch batch) noexcept:
    """Return the time from which on a batch's tombstones may go; 0 if it says none."""
    return load64(batch.data + 48) if (load64(batch.data + 16) >> 32) & DATED else 0


def parts_of(Batch batch not None, RangeSet removed not None, bint follows, uint64_t covered, uint64_t due_ms):
    """Return the batches that keep a batch's records, without the `removed` ones.

    A list: each stretch of records in a row becomes a batch with the same offsets, whose attribute
    COMPACTED says that offsets in front of it are missing. `follows`: the batch's own offset is the
    one that is expected. Tombstones below `covered` get the time `due_ms` where they have none. A
    batch of a transaction, which must have committed, is one like any other afterwards. The batch
    itself is returned where nothing of it changes. The caller sets the checksums. Raises
    CorruptBatchError.
    """
    cdef uint64_t first = batch.base_offset, stop = batch.base_offset + batch.count
    cdef uint64_t start, end, offset = first, own_due_ms = due_of(batch)
    cdef uint32_t attributes = <uint32_t>(load64(batch.data + 16) >> 32) & 0xFFFF
    cdef size_t position = BATCH_HEADER_BYTES
    cdef list made = []
    if not attributes & PENDING and (follows or attributes & COMPACTED):
        if removed.overlap(first, stop) == 0 and (
            own_due_ms or not has_tombstone(batch, first, min(stop, covered))
        ):
            return [batch]
    for start, end in removed.gaps(first, stop):
        while offset < start:
            position += batch._size_at(position)
            offset += 1
        position = copied(
            made, batch, position, start, end,
            gap=not follows or start > first or attributes & COMPACTED,
            due_ms=own_due_ms if own_due_ms else due_ms if end <= covered else 0,
        )
        offset = end
    return made


cdef bint has_tombstone(Batch batch, uint64_t first, uint64_t stop) except -1:
    """Whether a record with a key and no body is among those with offsets in [first, stop)."""
    cdef RecordView record
    cdef size_t position = BATCH_HEADER_BYTES
    cdef uint64_t offset = batch.base_offset
    cdef const uint8_t* key
    cdef size_t size
    while offset < stop:
        position = batch.view(position, &record)
        if offset >= first and not record.body_size and find_key(&record, &key, &size):
            return True
        offset += 1
    return False


cdef size_t copied(
    list made, Batch batch, size_t position, uint64_t start, uint64_t stop, bint gap, uint64_t due_ms
) except 0:
    """Append a batch with the records [start, stop), of which the first stands at `position`.

    Returns the position behind the last.
    """
    cdef RecordView record
    cdef const uint8_t* key
    cdef size_t begin = position, key_size
    cdef uint32_t features = 0, attributes
    cdef uint64_t tag_mask = 0, offset = start, last_time = 0, base_time = load64(batch.data + 32)
    cdef bint tombstones = False
    cdef Batch part = Batch.__new__(Batch)
    while offset < stop:
        position = batch.view(position, &record)
        features |= record.flags
        tag_mask |= record.tag_mask
        last_time = base_time + record.time_delta
        if not record.body_size and find_key(&record, &key, &key_size):
            tombstones = True
        offset += 1
    part.data = <uint8_t*>malloc(BATCH_HEADER_BYTES + position - begin)
    if part.data == NULL:
        raise MemoryError
    part.size = BATCH_HEADER_BYTES + position - begin
    part.base_offset = start
    part.count = <uint32_t>(stop - start)
    memcpy(part.data, batch.data, BATCH_HEADER_BYTES)
    memcpy(part.data + BATCH_HEADER_BYTES, batch.data + begin, position - begin)
    attributes = <uint32_t>(load64(batch.data + 16) >> 32) & 0xFFFF
    attributes &= ~<uint32_t>(PENDING | DATED | COMPACTED)
    if gap:
        attributes |= COMPACTED
    if tombstones and due_ms:
        attributes |= DATED
    else:
        due_ms = 0
    _store(part.data + 4, part.size, 4)
    _store(part.data + 8, start, 8)
    _store(part.data + 20, attributes, 2)
    _store(part.data + 22, features & 0xFFFF, 2)
    _store(part.data + 24, part.count, 4)
    _store(part.data + 40, last_time, 8)
    _store(part.data + 48, due_ms, 8)
    _store(part.data + 56, tag_mask, 8)
    made.append(part)
    return position


cdef inline void _store(uint8_t* p, uint64_t v, int size) noexcept:
    """Store a little-endian integer; the machine is one, too, as everywhere here."""
    memcpy(p, &v, size)
