from libc.stdint cimport uint64_t

cdef enum:
    SUB_BUCKETS = 128  # per power of two: a reading is at most 1/128 (0.8 %) above the sample
    BUCKETS = 58 * SUB_BUCKETS  # every 64-bit number has a place

cdef class LatencyHistogram:
    cdef uint64_t counts[BUCKETS]
    cdef readonly uint64_t count
    cdef uint64_t least
    cdef uint64_t greatest

    cdef void put(self, uint64_t value) noexcept
