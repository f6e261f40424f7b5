from libc.stdint cimport uint64_t

# The names are in counters.pyx, in this order.
cdef enum Counter:
    _PUBLISH = 0
    _PUBLISH_IN
    _PUBLISH_OUT
    _CONFIRM
    _RETURN_UNROUTABLE
    _DROP_UNROUTABLE
    _DELIVER
    _DELIVER_NO_ACK
    _GET
    _GET_NO_ACK
    _GET_EMPTY
    _REDELIVER
    _ACK
    _RECEIVED_CONFIRM
    _BYTES_OUT
    _RECV_OCT
    _RECV_CNT
    _SEND_OCT
    _SEND_CNT
    _COUNTERS

cdef enum:
    BOUNDS_MAX = 24


cdef class Counters:
    cdef uint64_t values[_COUNTERS]
    cdef public bint moved      # whether it was incremented since the sampler last reset it
    cdef public object series   # samples taken of it, owned by the sampler (core.statistics)

    cdef inline void add(self, int counter, uint64_t n) noexcept:
        self.values[counter] += n
        self.moved = True


cdef class DeliveryStatistics(Counters):
    cdef readonly Counters queue
    cdef readonly Counters channel
    cdef readonly Counters vhost
    cdef readonly Counters kind
    cdef int mode
    cdef Histogram latency

    cdef void handed_out(self, uint64_t messages, uint64_t stored, bint redelivered, uint64_t since) noexcept
    cdef void add_all(self, int counter, uint64_t n) noexcept


cdef class Histogram:
    cdef uint64_t _bounds[BOUNDS_MAX]
    cdef uint64_t _counts[BOUNDS_MAX + 1]
    cdef int size
    cdef readonly uint64_t sum

    cdef inline void add(self, uint64_t value, uint64_t times) noexcept:
        cdef int i = 0
        while i < self.size and value > self._bounds[i]:
            i += 1
        self._counts[i] += times
        self.sum += value * times
