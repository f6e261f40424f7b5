cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from leveret.ports.counters cimport Counters


cdef enum:
    BATCH_HEADER_BYTES = 64
    RECORD_HEADER_BYTES = 20

# Features of a record: bits of its flag word, joined in the batch's header, which has room for
# sixteen. The higher bits are requests of a publisher, handled before anything is stored: no stored
# record has them.
cpdef enum RecordFlag:
    PERSISTENT = 1          # delivery-mode 2
    HAS_EXPIRATION = 2
    HAS_PRIORITY = 4
    HAS_HEADERS = 8
    HAS_USER_ID = 16
    HAS_REPLY_TO = 32
    DEAD_LETTERED = 64      # its x-death is the broker's own, not a client's
    BLIND_COPIED = 128      # its headers have BCC, which is hidden from consumers
    HAS_TAGS = 256          # x-tags
    HAS_GROUP = 512         # x-message-group
    HAS_RETRY = 1024        # x-retry-delays or x-retry-max-attempts
    RETRIED = 2048          # its x-retry-count is the broker's own, not a client's
    PUT_BACK = 4096         # written by the broker itself: never a duplicate, whatever its id
    SELECTS_KEYS = 65536    # CC or BCC
    WANTS_DELAY = 131072    # x-delay, x-deliver-at, x-delay-level, x-repeat-every or x-cron
    WANTS_ORDER = 262144    # x-producer-id
    WANTS_PREPARE = 524288  # x-prepare
    STORED = 65535          # mask of all flags that a stored record may have

cpdef enum BatchAttribute:
    CONTROL = 1             # settlements, not messages
    ENCRYPTED = 2
    TRANSIENT = 4           # nothing in it is persistent
    PENDING = 8             # counts only if its transaction commits
    COMPACTED = 16          # offsets in front of it are missing: compaction has removed their records
    DATED = 32              # its tombstones have a time from which on compaction may remove them


# The little-endian integers of batches, which need not be aligned.
cdef inline uint16_t load16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return v


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t load64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v


# A record within a batch: pointers into the batch's bytes, valid while the batch exists.
cdef struct RecordView:
    uint32_t size
    uint32_t flags
    uint32_t time_delta
    uint64_t tag_mask
    const uint8_t* address      # exchange and routing key, two short strings as on the wire
    uint32_t address_size
    const uint8_t* header       # content header payload as received
    uint32_t header_size
    const uint8_t* body
    size_t body_size


@cython.final
cdef class Batch:
    cdef uint8_t* data
    cdef readonly size_t size
    cdef object owner           # object that owns `data`; None if the batch does
    cdef readonly uint64_t base_offset
    cdef readonly uint32_t count
    cdef uint64_t cursor_offset     # offset of the last lookup, so that sequential access is O(1)
    cdef size_t cursor_position

    cdef uint32_t _size_at(self, size_t position) except 0
    cdef size_t locate(self, uint64_t offset) except 0
    cdef size_t view(self, size_t position, RecordView* record) except 0
    cdef uint64_t time_of(self, const RecordView* record) noexcept
    cdef uint64_t last_ms(self) noexcept
    cdef void set_leader_epoch(self, uint32_t epoch) noexcept
    cpdef int set_checksum(self) except -1


@cython.final
cdef class BatchBuilder:
    cdef uint8_t* data
    cdef size_t capacity
    cdef readonly size_t size       # header included
    cdef readonly uint32_t count
    cdef readonly uint32_t features
    cdef readonly uint64_t tag_mask
    cdef readonly bint transient
    cdef readonly bint was_sealed   # whether it made a batch yet, so that its log has a file
    cdef readonly uint64_t first_time
    cdef readonly uint64_t last_time
    cdef public bint parked         # the reader must report new records: its queue is parked (core.turn)
    cdef uint64_t noted_in          # mark of the reader that last noted this builder (amqp.frames)
    cdef public object owner
    cdef public object publish_tags # publish tags of the records (core.logs.publish_tags), None if unwanted
    cdef public object partitioner  # the Partitioner (ports.partitioner) that chooses it for some messages, or None
    cdef public Counters counters   # counters for sealed records as `publish`, else None

    cdef int append(
        self, uint32_t flags, uint64_t now, uint64_t tag_mask,
        const uint8_t* address, uint32_t address_size,
        const uint8_t* header, uint32_t header_size,
        const uint8_t* body, size_t body_size,
    ) except -1
    cpdef Batch seal(self, uint64_t base_offset)
    cdef int reserve(self, size_t extra) except -1
    cdef int _copy(self, BatchBuilder source, size_t position, size_t after) except -1
    cdef void _write_header(self, uint64_t base_offset) noexcept
    cdef void _reset(self) noexcept
