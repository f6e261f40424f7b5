from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from leveret.perf.histogram cimport LatencyHistogram
from leveret.perf.wire cimport Endpoint, Link, WorkerCounters

cdef class Burst:
    cdef uint8_t* data
    cdef readonly size_t slot_bytes
    cdef readonly size_t slots
    cdef Py_ssize_t number_at
    cdef Py_ssize_t priority_at
    cdef Py_ssize_t stamp_at
    cdef uint64_t delay_ns

cdef class Numbers:
    cdef uint32_t first
    cdef uint32_t step
    cdef readonly uint32_t count
    cdef uint32_t latest
    cdef uint64_t state
    cdef bint random

    cdef uint32_t draw(self) noexcept

cdef class LoadPublisher(Endpoint):
    cdef Burst burst
    cdef Numbers numbers
    cdef Numbers priorities
    cdef WorkerCounters counters
    cdef readonly LatencyHistogram latency
    cdef uint64_t mark
    cdef uint32_t* sequences
    cdef readonly uint64_t published
    cdef readonly uint64_t settled
    cdef uint64_t quota
    cdef uint64_t window
    cdef uint64_t floor
    cdef uint64_t ring_mask
    cdef uint64_t* sent_at_ns
    cdef uint8_t* waiting

    cdef uint64_t _allowed(self) noexcept
    cdef int _build(self, size_t count) noexcept
    cdef int _settle(self, uint64_t tag, bint multiple, bint refused) except -1
    cdef int _settle_one(self, uint64_t tag, bint refused) except -1
