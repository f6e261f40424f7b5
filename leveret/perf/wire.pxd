from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef uint64_t monotonic_ns() noexcept

cdef inline uint16_t load16(const uint8_t* at) noexcept:
    return <uint16_t>((<uint16_t>at[0] << 8) | at[1])

cdef inline uint32_t load32(const uint8_t* at) noexcept:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]

cdef inline uint64_t load64(const uint8_t* at) noexcept:
    return (<uint64_t>load32(at) << 32) | load32(at + 4)

cdef inline void store32(uint8_t* at, uint32_t value) noexcept:
    at[0] = value >> 24
    at[1] = (value >> 16) & 255
    at[2] = (value >> 8) & 255
    at[3] = value & 255

cdef inline void store64(uint8_t* at, uint64_t value) noexcept:
    store32(at, <uint32_t>(value >> 32))
    store32(at + 4, <uint32_t>value)

cdef struct Tallies:
    # One worker's figures, in memory it shares with the conductor; names in the same order in
    # counters.py. Times are CLOCK_MONOTONIC nanoseconds of the latest event.
    uint64_t published
    uint64_t confirmed
    uint64_t refused
    uint64_t returned
    uint64_t consumed
    uint64_t redelivered
    uint64_t empty
    uint64_t blocked
    uint64_t published_at_ns
    uint64_t confirmed_at_ns
    uint64_t consumed_at_ns

cdef class WorkerCounters:
    cdef Tallies* tallies
    cdef object memory

cdef class Endpoint:
    """A publisher or a consumer on one channel of a link."""
    cdef Link link
    cdef readonly uint16_t channel
    cdef uint64_t body_left
    cdef bint in_content

    cdef int method(self, uint32_t name, const uint8_t* at, size_t size) except -1
    cdef int body_starts(self, uint64_t size) except -1
    cdef int body_part(self, const uint8_t* at, size_t size) except -1
    cdef int read_ends(self) except -1

cdef class Link:
    cdef readonly int fd
    cdef readonly list methods
    cdef uint64_t now_ns
    cdef uint8_t* inbox
    cdef size_t inbox_bytes
    cdef size_t inbox_capacity
    cdef uint8_t* outbox
    cdef size_t outbox_bytes
    cdef size_t outbox_sent
    cdef size_t outbox_capacity
    cdef const uint8_t* burst
    cdef size_t burst_bytes
    cdef size_t frame_bytes_max
    cdef list endpoints

    cdef uint8_t* room(self, size_t size) except NULL
    cdef int start_burst(self, const uint8_t* at, size_t size) except -1
    cdef bint has_unsent(self) noexcept
    cpdef bint flush(self) except -1
    cdef ssize_t _write(self, const uint8_t* at, size_t size) except -1
    cdef int take(self) except -1
    cdef Py_ssize_t split(self, const uint8_t* at, size_t size) except -1
