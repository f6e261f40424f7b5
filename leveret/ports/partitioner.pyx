"""Partitioner: chooses the partition of each message that is published to a partitioned queue.

It stands among a route's destinations where the BatchBuilder of another queue stands. By `key`, messages of
one key go to one partition: the key is the text of the header `x-partition-key`, or of another one that the
queue names, else the routing key. The hash is the one that RabbitMQ's stream clients use for super
streams: MurmurHash3, 32 bits, with the seed below; the partition is its remainder by their number. It is
the same in every release (docs/storage-format.md has test vectors).
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from leveret.ports.contents cimport HeadersPlace, Piece, be32, field_end, field_is, find_headers
from leveret.ports.records cimport HAS_HEADERS, BatchBuilder

KEY = "key"
ROUND_ROBIN = "round-robin"
RANDOM = "random"
KEY_HEADER = "x-partition-key"

cdef enum:
    SEED = 104729           # of RabbitMQ's stream clients


cdef inline uint32_t rotated(uint32_t v, int by) noexcept nogil:
    return (v << by) | (v >> (32 - by))


cdef inline uint32_t mixed(uint32_t block) noexcept nogil:
    return rotated(block * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef uint32_t hash_bytes(const uint8_t* data, size_t size) noexcept nogil:
    """Return the MurmurHash3 (x86, 32 bits) of some bytes."""
    cdef uint32_t h = SEED, block = 0
    cdef size_t i, tail = size & ~<size_t>3
    for i in range(0, tail, 4):
        memcpy(&block, data + i, 4)
        h = rotated(h ^ mixed(block), 13) * 5 + <uint32_t>0xE6546B64
    block = 0
    if size > tail:
        for i in range(size - tail):
            block |= <uint32_t>data[tail + i] << <uint32_t>(8 * i)
        h ^= mixed(block)
    h ^= <uint32_t>size
    h = (h ^ (h >> 16)) * <uint32_t>0x85EBCA6B
    h = (h ^ (h >> 13)) * <uint32_t>0xC2B2AE35
    return h ^ (h >> 16)


def hash_key(bytes key not None):
    """Return the hash by which messages with this key are placed."""
    return hash_bytes(<const uint8_t*><const char*>key, len(key))


cdef inline int integer_size(uint8_t letter) noexcept nogil:
    """Return the bytes of a field's integer value; 0 if its type is none."""
    if letter == c"b" or letter == c"B":
        return 1
    if letter == c"s" or letter == c"u":
        return 2
    if letter == c"I" or letter == c"i":
        return 4
    if letter == c"l" or letter == c"L" or letter == c"T":
        return 8
    return 0


cdef int64_t integer_at(uint8_t letter, const uint8_t* p, int size) noexcept nogil:
    """Return a field's integer value, big-endian as on the wire."""
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | p[i]
    if letter == c"b":
        return <int8_t>value
    if letter == c"s":
        return <int16_t>value
    if letter == c"I":
        return <int32_t>value
    return <int64_t>value


cdef bint find_key(
    uint32_t flags, const uint8_t* header, uint32_t header_size,
    const uint8_t* name, uint8_t name_size, char* text, Piece* key,
) noexcept nogil:
    """Find the key that a message has in the header `name`. False if it has none.

    A number counts as its decimal text, for which `text` has room (KEY_TEXT_BYTES): clients differ in how
    many bytes they send it in. Other types than strings and integers are no key.
    """
    cdef HeadersPlace place
    cdef const uint8_t* field
    cdef const uint8_t* after
    cdef const uint8_t* value
    cdef uint8_t letter
    cdef int size
    if not flags & HAS_HEADERS or not find_headers(header, header_size, &place):
        return False
    field = place.fields
    while field < place.stop:
        after = field_end(field, place.stop)
        if after == NULL:
            return False
        if field_is(field, name, name_size):
            break
        field = after
    else:
        return False
    letter = field[1 + name_size]
    value = field + 2 + name_size
    if letter == c"S" or letter == c"x":
        key.data, key.size = value + 4, be32(value)
        return True
    size = integer_size(letter)
    if size == 0:
        return False
    key.data = <const uint8_t*>text
    key.size = snprintf(text, KEY_TEXT_BYTES, b"%lld", <long long>integer_at(letter, value, size))
    return True


def place_of(BatchBuilder builder not None):
    """Return what identifies a place that a message was published to, to compare with later ones.

    That is the builder; a partition's only as long as the partitions of its queue stay the same, since
    another message may be placed there afterwards.
    """
    cdef Partitioner partitioner = builder.partitioner
    return builder if partitioner is None else (builder, partitioner.layout)


cdef class Partitioner:
    """Places the messages of one partitioned queue. `by` is KEY, ROUND_ROBIN, RANDOM or a header's name.

    `seed` is where random choices begin.
    """

    def __init__(self, owner, str by=KEY, uint64_t seed=1):
        self.owner = owner
        self.by = by
        self.by_key = by not in (ROUND_ROBIN, RANDOM)
        self.in_turn = by == ROUND_ROBIN
        self.field = (KEY_HEADER if by == KEY else by).encode()
        self.random_state = seed or 1
        self.builders = ()

    def set_builders(self, builders):
        """Publish to these builders from now on. Raises ValueError if there are none."""
        cdef BatchBuilder builder
        cdef tuple chosen = tuple(builders)
        if not chosen:
            raise ValueError("a partitioned queue has at least one partition")
        for builder in chosen:
            builder.partitioner = self
        self.builders = chosen
        self.layout += 1

    cdef uint32_t hash_of(
        self, uint32_t flags, const uint8_t* address, const uint8_t* header, uint32_t header_size
    ) noexcept:
        """Return the hash of a message's key."""
        cdef char[KEY_TEXT_BYTES] text
        cdef Piece key
        cdef const uint8_t* routing_key = address + 1 + address[0]
        cdef const uint8_t* name = <const uint8_t*><const char*>self.field
        if find_key(flags, header, header_size, name, <uint8_t>len(self.field), text, &key):
            return hash_bytes(key.data, key.size)
        return hash_bytes(routing_key + 1, routing_key[0])

    cdef BatchBuilder choose(
        self, uint32_t flags, const uint8_t* address, const uint8_t* header, uint32_t header_size
    ):
        """Return the builder for a message; `address` is exchange and routing key, two short strings."""
        cdef uint64_t x
        if self.by_key:
            x = self.hash_of(flags, address, header, header_size)
        elif self.in_turn:
            x = self.counted
            self.counted += 1
        else:   # xorshift64*
            x = self.random_state
            x ^= x >> 12
            x ^= x << 25
            x ^= x >> 27
            self.random_state = x
            x = (x * <uint64_t>0x2545F4914F6CDD1D) >> 32
        return <BatchBuilder>self.builders[x % <uint64_t>len(self.builders)]

    cdef BatchBuilder choose_again(
        self, uint64_t number, uint32_t flags, const uint8_t* address,
        const uint8_t* header, uint32_t header_size,
    ):
        """Return the builder for a message which has a number where it comes from.

        It is the same each time, as long as the partitions are: for messages that may be published again.
        """
        if not self.by_key:
            return <BatchBuilder>self.builders[number % <uint64_t>len(self.builders)]
        return self.choose(flags, address, header, header_size)

    def for_message(self, uint32_t flags, bytes routing_key, bytes header, number=None):
        """Return the builder for a message; with its `number` as `choose_again` does."""
        cdef bytes address = b"\0" + bytes((len(routing_key),)) + routing_key
        cdef const uint8_t* place = <const uint8_t*><const char*>address
        cdef const uint8_t* content = <const uint8_t*><const char*>header
        if number is None:
            return self.choose(flags, place, content, <uint32_t>len(header))
        return self.choose_again(number, flags, place, content, <uint32_t>len(header))
