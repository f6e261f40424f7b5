from libc.stdint cimport uint64_t

from leveret.amqp.settlements cimport LeaseHolder, Settlements
from leveret.ports.counters cimport DeliveryStatistics
from leveret.ports.records cimport Batch


cdef class Getter(LeaseHolder):
    cdef readonly DeliveryStatistics counted_no_ack


cdef class Getting:
    cdef Settlements channel
    cdef readonly object queue
    cdef bint no_ack
    cdef object settings            # of the queue, when it was found
    cdef object definition          # the same
    cdef object rights              # of the connection, at that time
    cdef object rights_generation
    cdef bint is_whole              # whether the queue is its own and only partition
    cdef Getter getter              # of the partition that the last message came from

    cpdef object get(self)
    cpdef object get_ready(self)
    cdef tuple lease_next(self)
    cdef int send(self, part, uint64_t offset, bint redelivered, Batch batch) except -1
    cdef int send_empty(self) except -1
