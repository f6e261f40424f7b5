"""A histogram of latencies with a bounded error and a bounded size.

Values below 128 have a bucket each; above, every power of two is cut into 128 equal buckets. So a
percentile is at most 0.8 % too high, and recording is a shift and an increment.
"""

from libc.string cimport memcpy, memset

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil


cdef inline size_t bucket_of(uint64_t value) noexcept:
    cdef int shift
    if value < SUB_BUCKETS:
        return value
    shift = 63 - __builtin_clzll(value) - 7
    return <size_t>shift * SUB_BUCKETS + <size_t>(value >> shift)


cdef inline uint64_t greatest_in(size_t bucket) noexcept:
    """Return the greatest value that falls into `bucket`."""
    cdef int shift
    if bucket < 2 * SUB_BUCKETS:
        return bucket
    shift = <int>(bucket // SUB_BUCKETS) - 1
    return (((<uint64_t>(bucket % SUB_BUCKETS) + SUB_BUCKETS) + 1) << shift) - 1


cdef class LatencyHistogram:
    """Counts of nanoseconds in buckets whose width grows with the value; always 60 kB."""

    def __cinit__(self):
        self.clear()

    cdef void put(self, uint64_t value) noexcept:
        self.counts[bucket_of(value)] += 1
        self.count += 1
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value

    def record(self, value):
        """Count one value."""
        self.put(value)

    def clear(self):
        """Remove all samples, as after a warm-up."""
        memset(self.counts, 0, sizeof(self.counts))
        self.count = 0
        self.least = <uint64_t>-1
        self.greatest = 0

    @property
    def minimum(self):
        return self.least if self.count else 0

    @property
    def maximum(self):
        return self.greatest

    def percentile(self, double share):
        """Return a value that `share` (0 to 1) of the samples do not exceed; 0 without samples."""
        cdef uint64_t wanted = <uint64_t>(share * <double>self.count + 0.999999)
        cdef uint64_t seen = 0
        cdef size_t bucket
        if wanted < 1:
            wanted = 1
        for bucket in range(BUCKETS):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(greatest_in(bucket), self.greatest)
        return self.greatest

    def merge(self, LatencyHistogram other not None):
        """Add the samples of another histogram."""
        cdef size_t bucket
        for bucket in range(BUCKETS):
            self.counts[bucket] += other.counts[bucket]
        self.count += other.count
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)

    def to_bytes(self):
        """Return bytes for `from_bytes` on the same machine: count, least, greatest, buckets."""
        cdef uint64_t head[3]
        head[0], head[1], head[2] = self.count, self.least, self.greatest
        return (<char*>head)[:sizeof(head)] + (<char*>self.counts)[:sizeof(self.counts)]

    @staticmethod
    def from_bytes(const unsigned char[::1] data):
        """Return the histogram that `to_bytes` wrote."""
        cdef LatencyHistogram made = LatencyHistogram()
        cdef uint64_t head[3]
        if data.shape[0] != sizeof(head) + sizeof(made.counts):
            raise ValueError(f"{data.shape[0]} bytes are not a histogram")
        memcpy(head, &data[0], sizeof(head))
        memcpy(made.counts, &data[sizeof(head)], sizeof(made.counts))
        made.count, made.least, made.greatest = head[0], head[1], head[2]
        return made
