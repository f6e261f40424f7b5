from libc.stdint cimport uint64_t

from leveret.amqp.client_input cimport ClientInput
from leveret.amqp.frames cimport ChannelSlot
from leveret.amqp.unacked cimport Unacked
from leveret.ports.counters cimport DeliveryStatistics


cdef class LeaseHolder:
    cdef readonly object queue
    cdef readonly DeliveryStatistics counted
    cdef public dict arguments              # of basic.consume
    cdef public object visibility_timeout_ms    # of its own; None: that of its queue

    cpdef object release(self, Py_ssize_t count)
    cpdef object wake(self)


cdef class Settlements:
    cdef public ClientInput connection
    cdef public object vhost
    cdef public ChannelSlot slot            # what the frame reader shares with the channel
    cdef public Unacked unacked
    cdef public Py_ssize_t prefetch         # shared by all consumers of the channel; 0 = no limit
    cdef public Py_ssize_t in_flight        # unsettled deliveries to consumers
    cdef public bint alive                  # until it is closed by either side
    cdef public dict consumers              # by tag
    cdef public object transaction          # None: settlements have effect at once
    # Members of groups that have not settled in time, until something is settled; by holder.
    cdef public dict suspended

    cpdef object settle(self, int kind, uint64_t first, uint64_t last, bint multiple)
    cpdef int apply(self, int kind, list held, cause=*) except -1
    cdef int _apply_several(self, int kind, list held, cause) except -1
    cdef int _wake(self, holders, Py_ssize_t freed) except -1
