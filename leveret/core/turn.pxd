cimport cython
from libc.stdint cimport int64_t


cdef class TouchedQueue:
    cdef public bint touched
    cdef public bint deleted
    # Number of the first pump, since its last delivery, in which its consumers lacked capacity
    # shared with other queues; 0 if there was none.
    cdef public int64_t passed_over_in
    cdef public bint searches           # whether `pump` searches for matching records until `is_over`
    cdef public bint may_gather         # whether a flush may wait for more records, see `gathers`

    cpdef flush(self)
    cpdef pump(self)


@cython.final
cdef class Turn:
    cdef public object clock_ns
    cdef object _schedule
    cdef object _report
    cdef dict _queues           # touched, in order; the values are None
    cdef dict _behind           # queues that the last turn did not reach
    # Touched queues that are not in `_queues`, with their builders and their numbers in parking
    # order.
    cdef readonly object parked
    cdef public int opening_count   # queues that have records and must be opened before their flush
    cdef int64_t _parked_count      # queues parked since the start
    cdef list _senders
    cdef bint _scheduled
    cdef bint _reading
    cdef bint _comes_more           # whether a publisher had more to send than was read
    cdef int64_t _ends_ns           # end of the time for searches
    cdef int _reads                 # since the last turn
    cdef int _single_reads          # turns in a row with a single read
    cdef int _inline_turns          # run directly after their read, since the last scheduled one
    cdef readonly bint serves_one       # whether the turn has one queue to write to, and no more yet
    cdef readonly int64_t pump_number       # of the current pump, or of the last one
    cdef readonly bint has_single_reader    # whether clients have lately waited for every answer

    cpdef void begin_read(self) noexcept
    cpdef int end_read(self, bint more) except -1
    cpdef int touch(self, TouchedQueue queue) except -1
    cpdef int touch_sender(self, sender) except -1
    cdef bint _unpark(self, queue) except -1
    cdef object _next_parked(self)
    cdef int _ensure_scheduled(self) except -1
    cdef int _work(self) except -1
    cdef dict _without_gathering(self, dict queues)
    cdef int _flush_some_parked(self, dict flushed) except -1
    cdef list _in_order(self, dict queues)
    cdef int _flush_all(self, queues) except -1
    cdef int _send_all(self, list senders) except -1
    cdef int _pump_all(self, list queues) except -1
