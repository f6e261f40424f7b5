cimport cython
from libc.stdint cimport uint64_t

from leveret.core.ledgers.ledger cimport Run


@cython.final
cdef class Deliver:
    cdef readonly object consumer
    cdef readonly uint64_t first
    cdef readonly uint64_t stop
    cdef readonly bint redelivered
    cdef readonly uint64_t limit
    cdef readonly bint is_partial


cdef Deliver offer_of(consumer, uint64_t limit, Run run, uint64_t ready_count)
