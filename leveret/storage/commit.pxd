from libc.stdint cimport int64_t, uint64_t

from leveret.ports.counters cimport Histogram

cdef int64_t monotonic_us() noexcept nogil


cdef class FlushFigures:
    cdef readonly Histogram durations
    cdef readonly uint64_t batches
    cdef readonly uint64_t failures
    cdef int64_t _typical_us        # moving average of the durations

    cpdef bint are_quick(self) noexcept
    cdef void _ended(self, int64_t took_us, uint64_t batches, bint failed) noexcept
