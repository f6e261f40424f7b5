from libc.stdint cimport uint64_t

from leveret.core.turn cimport TouchedQueue, Turn
from leveret.ports.records cimport BatchBuilder


cdef class Batching(TouchedQueue):
    cdef public object log              # a SharedLog
    cdef public object _owned_log       # the same, which only `settle` and its like settle
    cdef public BatchBuilder builder    # the log's
    # It is not opened, or something must be restored before appending: records wait.
    cdef public bint held
    cdef public Turn _turn
    cdef public object _report
    cdef public uint64_t _opened_at     # the log's end when it was opened
    cdef public list _waiting           # waiters for records still in the builder
    # Created on demand, otherwise (): an empty deque takes 600 bytes.
    cdef public object _uncommitted     # deque of (stop offset, its waiters)
    cdef public object _unseen          # deque of (stop offset, waiter) of parts of atomic writes
    cdef public list _release_waiters   # None: there are none

    cpdef _begin_release(self)
    cpdef _prepare(self)
    cpdef _show_committed(self)
    cpdef await_commit(self, waiter)
    cpdef await_written(self, waiter)
    cdef int _await_log(self, waiter) except -1
    cdef int _await_written(self, waiter) except -1
    cdef bint _is_log_caught_up(self) except -1
    cdef int _await_flush(self, list waiters) except -1
    cdef int _show_to(self, list waiters) except -1
