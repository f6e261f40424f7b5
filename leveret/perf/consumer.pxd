from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from leveret.perf.histogram cimport LatencyHistogram
from leveret.perf.verifier cimport Verifier
from leveret.perf.wire cimport Endpoint, Link, WorkerCounters

cdef class LoadConsumer(Endpoint):
    cdef WorkerCounters counters
    cdef readonly LatencyHistogram latency
    cdef Verifier verifier
    cdef bint slot_from_tag
    cdef bint stamped
    cdef uint64_t ack_every
    cdef int ack_frames
    cdef uint32_t settlement
    cdef readonly uint64_t consumed
    cdef readonly bint idle
    cdef uint64_t tag
    cdef uint64_t unacked
    cdef size_t slot
    cdef bint first_part
    cdef list gets
    cdef size_t latest_get
    cdef uint64_t quota

    cdef int _delivered(self, const uint8_t* at, size_t size) except -1
    cdef int _got(self, const uint8_t* at, size_t size) except -1
    cdef int _complete(self) except -1
    cdef int _ask(self) except -1
    cdef int _ack(self, bint multiple) except -1
