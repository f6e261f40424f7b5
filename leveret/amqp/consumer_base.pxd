from libc.stdint cimport uint64_t

from leveret.amqp.added cimport AddedField
from leveret.amqp.settlements cimport LeaseHolder, Settlements


cdef class ConsumerBase(LeaseHolder):
    cdef readonly Settlements channel
    cdef readonly str tag
    cdef bytes tag_bytes
    cdef public bint no_ack
    cdef readonly Py_ssize_t prefetch       # 0 = no limit
    cdef readonly AddedField added          # in the headers of first deliveries
    cdef readonly AddedField added_again    # the same of redeliveries
    cdef public Py_ssize_t in_flight        # unsettled deliveries
    cdef public object meter                # where a rate limits what it is delivered; else None

    cpdef Py_ssize_t capacity(self, bint once_sent=*) except -2
    cdef int sent(self, uint64_t tag, Py_ssize_t count) except -1
