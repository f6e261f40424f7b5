"""De-duplication keys: lookup by key, with the time and the offset of each message.

For queues and exchanges with `x-dedup-window`. A key is 128 bits of SipHash-2-4 over the value of
the header x-dedup-id, or else over the property message-id: so a key has a fixed size whatever the
publisher sends, and a collision among a thousand million keys has a chance of 1 in 10^20.

    ring    the keys in order of arrival, 32 bytes each; times never decrease along it
    slots   open addressing with linear probing: the ring index of each key, and 0 for none; the
            home slot of a key is given by a second, secret hash

Compiled because it handles every record of such a queue.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from leveret.ports.contents cimport HeadersPlace, field_end, field_is, find_headers, find_property
from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport BATCH_HEADER_BYTES, HAS_HEADERS, PUT_BACK, Batch, RecordView

cdef enum:
    MESSAGE_ID_BIT = 7
    KEY_BYTES = 16
    ENTRY_BYTES = 32
    RING_ENTRIES_MIN = 16
    SLOTS_PER_ENTRY = 2     # a table that is at most half full

cdef bytes _NAME = b"x-dedup-id"
cdef const uint8_t* NAME = <const uint8_t*><const char*>_NAME
cdef uint8_t NAME_SIZE = <uint8_t>len(_NAME)

# Key of the reference's test vectors. Clients that can publish to a queue can repeat an identifier
# anyway and need no collision; so it is no secret, and never changes, as the hashes are stored on
# disk.
cdef uint64_t K0 = 0x0706050403020100ULL
cdef uint64_t K1 = 0x0F0E0D0C0B0A0908ULL

# Home slots must be secret, or clients could make up thousands of keys with the same one, each
# compared with all others. Random per process: it is not stored.
cdef uint64_t SECRET_0 = <uint64_t>(hash("leveret.features.dedup.keys 0") & 0xFFFFFFFFFFFFFFFF)
cdef uint64_t SECRET_1 = <uint64_t>(hash("leveret.features.dedup.keys 1") & 0xFFFFFFFFFFFFFFFF)


cdef struct Key:
    uint64_t low
    uint64_t high


cdef struct Entry:
    Key key             # both 0: removed
    uint64_t time       # milliseconds since 1970
    uint64_t offset     # offset of its message in the log


cdef inline uint64_t rotl(uint64_t x, int b) noexcept nogil:
    return (x << b) | (x >> (64 - b))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotl(v[1], 13) ^ v[0]
    v[0] = rotl(v[0], 32)
    v[2] += v[3]
    v[3] = rotl(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotl(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotl(v[1], 17) ^ v[2]
    v[2] = rotl(v[2], 32)


cdef Key sip_hash(const uint8_t* data, size_t size, uint8_t kind) noexcept nogil:
    """Return the 128-bit SipHash-2-4; values of another `kind` (0: text) have different keys."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef size_t whole = size - size % 8
    cdef size_t i
    cdef Key key
    v[0] = K0 ^ 0x736F6D6570736575ULL
    v[1] = K1 ^ 0x646F72616E646F6DULL ^ 0xEE ^ (<uint64_t>kind << 8)
    v[2] = K0 ^ 0x6C7967656E657261ULL
    v[3] = K1 ^ 0x7465646279746573ULL
    for i in range(0, whole, 8):
        memcpy(&word, data + i, 8)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    word = 0
    memcpy(&word, data + whole, size - whole)
    word |= <uint64_t>(size & 0xFF) << 56
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for i in range(4):
        sip_round(v)
    key.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        sip_round(v)
    key.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    if key.low == 0 and key.high == 0:
        key.low = 1
    return key


cdef uint64_t home_of(const Key* key) noexcept nogil:
    """Return a key's home for a table of any size: SipHash-1-3 of its 16 bytes with the secret."""
    cdef uint64_t v[4]
    cdef int i
    v[0] = SECRET_0 ^ 0x736F6D6570736575ULL
    v[1] = SECRET_1 ^ 0x646F72616E646F6DULL
    v[2] = SECRET_0 ^ 0x6C7967656E657261ULL
    v[3] = SECRET_1 ^ 0x7465646279746573ULL
    v[3] ^= key.low
    sip_round(v)
    v[0] ^= key.low
    v[3] ^= key.high
    sip_round(v)
    v[0] ^= key.high
    v[2] ^= 0xFF
    for i in range(3):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef bint key_of(const RecordView* record, Key* key) noexcept nogil:
    """Compute the key of a record. Returns False if it has none, and so is never a duplicate."""
    cdef HeadersPlace place
    cdef const uint8_t* field
    cdef const uint8_t* after
    cdef const uint8_t* value
    cdef uint32_t size
    cdef uint8_t letter
    if record.flags & HAS_HEADERS and find_headers(record.header, record.header_size, &place):
        field = place.fields
        while field < place.stop:
            after = field_end(field, place.stop)
            if after == NULL:
                break
            if field_is(field, NAME, NAME_SIZE):
                value = field + 2 + NAME_SIZE
                letter = field[1 + NAME_SIZE]
                if letter == c"S":
                    value += 4
                    if after > value:
                        key[0] = sip_hash(value, after - value, 0)
                        return True
                elif after > value:
                    key[0] = sip_hash(value, after - value, letter)
                    return True
            field = after
    value = find_property(record, MESSAGE_ID_BIT, &size)
    if value == NULL or size == 0:
        return False
    key[0] = sip_hash(value, size, 0)
    return True


def message_key(uint32_t flags, bytes header not None):
    """Return a message's key as 16 bytes, None if it has none; `header` is its content header."""
    cdef RecordView record
    cdef Key key
    record.flags = flags
    record.header = <const uint8_t*>PyBytes_AS_STRING(header)
    record.header_size = <uint32_t>len(header)
    return _as_bytes(&key) if key_of(&record, &key) else None


def text_key(bytes text not None):
    """Return the key of an x-dedup-id or message-id with this text."""
    cdef Key key = sip_hash(<const uint8_t*>PyBytes_AS_STRING(text), len(text), 0)
    return _as_bytes(&key)


cdef bytes _as_bytes(const Key* key):
    return PyBytes_FromStringAndSize(<const char*>key, KEY_BYTES)


cdef Key _from_bytes(bytes text) except *:
    cdef Key key
    if len(text) != KEY_BYTES:
        raise ValueError("a key has 16 bytes")
    memcpy(&key, PyBytes_AS_STRING(text), KEY_BYTES)
    return key


cdef class SeenKeys:
    """Keys that came within a time window.

    A key expires one window, as given by each call, after it came; a duplicate does not extend
    that. If the clock goes back, later times are reduced to the present when the next key comes.
    """

    cdef Entry* ring
    cdef uint32_t* slots
    cdef uint64_t capacity          # of the ring; a power of two, as is the number of slots
    cdef uint64_t head              # number of the oldest entry, counted from the first one ever
    cdef uint64_t tail              # number of the next entry
    cdef uint64_t forgotten         # removed entries between them

    def __cinit__(self):
        self.ring = NULL
        self.slots = NULL
        self.capacity = 0
        self.head = self.tail = self.forgotten = 0

    def __dealloc__(self):
        free(self.ring)
        free(self.slots)

    def __len__(self):
        return self.tail - self.head - self.forgotten

    @property
    def probes_max(self):
        """Number of slots that the longest lookup of its keys probes."""
        cdef uint64_t mask = self._slot_mask()
        cdef uint64_t slot, home, found = 0
        for slot in range(self.capacity * SLOTS_PER_ENTRY):
            if self.slots[slot]:
                home = home_of(&self.ring[self.slots[slot] - 1].key) & mask
                found = max(found, ((slot - home) & mask) + 1)
        return found

    @property
    def oldest_ms(self):
        """Time of the oldest key in ms, or None."""
        return None if self.head == self.tail else self._entry(self.head).time

    cdef inline Entry* _entry(self, uint64_t number) noexcept:
        return &self.ring[number & (self.capacity - 1)]

    cdef inline uint64_t _slot_mask(self) noexcept:
        return self.capacity * SLOTS_PER_ENTRY - 1

    # -- the table

    cdef Entry* _find(self, const Key* key) noexcept:
        cdef uint64_t slot
        cdef Entry* entry
        if self.capacity == 0:
            return NULL
        slot = home_of(key) & self._slot_mask()
        while self.slots[slot]:
            entry = &self.ring[self.slots[slot] - 1]
            if entry.key.low == key.low and entry.key.high == key.high:
                return entry
            slot = (slot + 1) & self._slot_mask()
        return NULL

    cdef void _link(self, uint64_t place) noexcept:
        """Add the key at a ring index to the table; it must not be in it."""
        cdef uint64_t slot = home_of(&self.ring[place].key) & self._slot_mask()
        while self.slots[slot]:
            slot = (slot + 1) & self._slot_mask()
        self.slots[slot] = <uint32_t>place + 1

    cdef void _unlink(self, const Entry* entry) noexcept:
        """Remove a key from the table, moving displaced ones back."""
        cdef uint64_t mask = self._slot_mask()
        cdef uint64_t gap = home_of(&entry.key) & mask
        cdef uint64_t slot, home
        while &self.ring[self.slots[gap] - 1] != entry:
            gap = (gap + 1) & mask
        slot = gap
        while True:
            slot = (slot + 1) & mask
            if not self.slots[slot]:
                break
            home = home_of(&self.ring[self.slots[slot] - 1].key) & mask
            if ((slot - home) & mask) >= ((slot - gap) & mask):
                self.slots[gap] = self.slots[slot]
                gap = slot
        self.slots[gap] = 0

    cdef int _grow(self) except -1:
        """Double the capacity; the entries keep their order."""
        cdef uint64_t capacity = max(self.capacity * 2, <uint64_t>RING_ENTRIES_MIN)
        cdef Entry* ring
        cdef uint32_t* slots
        cdef uint64_t number
        if capacity > 1 << 31:
            raise OverflowError("a window holds at most 2^31 keys")
        ring = <Entry*>malloc(capacity * sizeof(Entry))
        slots = <uint32_t*>calloc(capacity * SLOTS_PER_ENTRY, sizeof(uint32_t))
        if ring == NULL or slots == NULL:
            free(ring)
            free(slots)
            raise MemoryError
        for number in range(self.head, self.tail):
            ring[number & (capacity - 1)] = self._entry(number)[0]
        free(self.ring)
        free(self.slots)
        self.ring, self.slots, self.capacity = ring, slots, capacity
        for number in range(self.head, self.tail):
            if not _is_forgotten(self._entry(number)):
                self._link(number & (capacity - 1))
        return 0

    # -- adding

    cdef int _add(self, const Key* key, uint64_t time, uint64_t offset) except -1:
        cdef Entry* entry
        cdef uint64_t number = self.tail
        self._forget(self._find(key))
        while number > self.head and self._entry(number - 1).time > time:
            number -= 1
            self._entry(number).time = time
        if self.tail - self.head == self.capacity:
            self._grow()
        entry = self._entry(self.tail)
        entry.key = key[0]
        entry.time = time
        entry.offset = offset
        self._link(self.tail & (self.capacity - 1))
        self.tail += 1
        return 0

    def add(self, bytes key not None, uint64_t time, uint64_t offset=0):
        """Add a key; a known one gets the new time and offset."""
        cdef Key wanted = _from_bytes(key)
        self._add(&wanted, time, offset)

    def find(self, bytes key not None):
        """Return (time, offset) of a key, or None."""
        cdef Key wanted = _from_bytes(key)
        cdef Entry* entry = self._find(&wanted)
        return None if entry == NULL else (entry.time, entry.offset)

    def admit(self, Batch batch not None, uint64_t window_ms, uint32_t unchecked=0, older=None):
        """Find duplicates among records to be appended, and add the keys of the others.

        Returns the indexes of duplicates as a RangeSet, or None. The others' offsets are counted
        from the batch's base offset, without the duplicates. Records with a flag of `unchecked` are
        ignored; those with PUT_BACK are never duplicates, and are added if their keys are unknown.
        `older(key)` returns the time of a key that is no longer in memory, or None.
        """
        cdef RecordView record
        cdef RangeSet duplicates = None
        cdef size_t position = BATCH_HEADER_BYTES
        cdef uint64_t offset = batch.base_offset
        cdef uint64_t time
        cdef uint32_t i
        cdef Key key
        for i in range(batch.count):
            position = batch.view(position, &record)
            if not record.flags & unchecked and key_of(&record, &key):
                time = batch.first_time + record.time_delta
                self._expire(time, window_ms)
                if not self._is_known(&key, time, window_ms, older):
                    self._add(&key, time, offset)
                elif not record.flags & PUT_BACK:
                    if duplicates is None:
                        duplicates = RangeSet()
                    duplicates.add(i, i + 1)
                    continue
            offset += 1
        return duplicates

    cdef bint _is_known(self, const Key* key, uint64_t time, uint64_t window_ms, older) except -1:
        cdef Entry* entry = self._find(key)
        if entry != NULL:
            return True     # expired keys are no longer in the table
        if older is None:
            return False
        found = older(_as_bytes(key))
        return found is not None and time < <uint64_t>found + window_ms

    def index(self, Batch batch not None, uint64_t first, uint64_t window_ms, uint32_t unchecked=0, older=None):
        """Add the keys of stored records from offset `first` on, by the same rules as `admit`."""
        cdef RecordView record
        cdef size_t position
        cdef uint64_t offset = max(first, batch.base_offset)
        cdef uint64_t time
        cdef Key key
        if offset >= batch.base_offset + batch.count:
            return
        position = batch.locate(offset)
        while offset < batch.base_offset + batch.count:
            position = batch.view(position, &record)
            if not record.flags & unchecked and key_of(&record, &key):
                time = batch.first_time + record.time_delta
                self._expire(time, window_ms)
                if not record.flags & PUT_BACK or not self._is_known(&key, time, window_ms, older):
                    self._add(&key, time, offset)
            offset += 1

    # -- removing

    cdef void _forget(self, Entry* entry) noexcept:
        """Remove an entry's key; its place in the ring is freed with its neighbours'."""
        if entry != NULL:
            self._unlink(entry)
            entry.key.low = entry.key.high = 0
            self.forgotten += 1

    cdef void _expire(self, uint64_t now, uint64_t window_ms) noexcept:
        while self.head < self.tail and self._entry(self.head).time + window_ms <= now:
            self._pop_head()

    cdef void _pop_head(self) noexcept:
        cdef Entry* entry = self._entry(self.head)
        if _is_forgotten(entry):
            self.forgotten -= 1
        else:
            self._unlink(entry)
        self.head += 1

    def expire(self, uint64_t now, uint64_t window_ms):
        """Remove keys that came `window_ms` ago or earlier."""
        self._expire(now, window_ms)

    def forget(self, bytes key not None):
        """Remove a key. Returns the offset of its message, or None."""
        cdef Key wanted = _from_bytes(key)
        cdef Entry* entry = self._find(&wanted)
        if entry == NULL:
            return None
        self._forget(entry)
        return entry.offset

    def forget_range(self, uint64_t first, uint64_t stop):
        """Remove the keys of the records [first, stop)."""
        cdef uint64_t number
        for number in range(self._place_of(first), self._place_of(stop)):
            if not _is_forgotten(self._entry(number)):
                self._forget(self._entry(number))

    def truncate(self, uint64_t offset):
        """Remove the keys of records from `offset` on, which were lost."""
        cdef Entry* entry
        while self.head < self.tail:
            entry = self._entry(self.tail - 1)
            if entry.offset < offset:
                break
            if _is_forgotten(entry):
                self.forgotten -= 1
            else:
                self._unlink(entry)
            self.tail -= 1

    def drop_below(self, uint64_t offset):
        """Remove the keys of records before `offset`, which are kept elsewhere."""
        while self.head < self.tail and self._entry(self.head).offset < offset:
            self._pop_head()

    def clear(self):
        """Remove all keys and free the memory."""
        free(self.ring)
        free(self.slots)
        self.ring, self.slots, self.capacity = NULL, NULL, 0
        self.head = self.tail = self.forgotten = 0

    # -- on disk: an array of entries as in memory, little-endian

    def pack(self, uint64_t first, uint64_t stop):
        """Return the packed entries of messages with offsets in [first, stop), oldest first."""
        cdef uint64_t begin = self._place_of(first)
        cdef uint64_t end = self._place_of(stop)
        cdef uint64_t number
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>((end - begin) * ENTRY_BYTES))
        cdef char* place = PyBytes_AS_STRING(packed)
        for number in range(begin, end):
            if not _is_forgotten(self._entry(number)):
                memcpy(place, self._entry(number), ENTRY_BYTES)
                place += ENTRY_BYTES
        return packed[: place - PyBytes_AS_STRING(packed)]

    cdef uint64_t _place_of(self, uint64_t offset) noexcept:
        """Return the number of the first entry with this offset or a later one."""
        cdef uint64_t low = self.head
        cdef uint64_t high = self.tail
        cdef uint64_t middle
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle).offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def load(self, bytes packed not None, uint64_t stop):
        """Add entries packed by `pack`, of messages before offset `stop`. Raises ValueError."""
        cdef Entry entry
        cdef size_t position
        cdef size_t size = len(packed)
        if size % ENTRY_BYTES:
            raise ValueError("an entry is cut off")
        for position in range(0, size, ENTRY_BYTES):
            memcpy(&entry, PyBytes_AS_STRING(packed) + position, ENTRY_BYTES)
            if entry.offset < stop and not _is_forgotten(&entry):
                self._add(&entry.key, entry.time, entry.offset)


cdef inline bint _is_forgotten(const Entry* entry) noexcept nogil:
    return entry.key.low == 0 and entry.key.high == 0
