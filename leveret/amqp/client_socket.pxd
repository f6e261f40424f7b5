from leveret.amqp.deliveries cimport Outbox
from leveret.core.turn cimport Turn


cdef class ClientSocket:
    cdef readonly Turn _turn
    cdef public object _poller
    cdef public object _transport       # None before and after the connection
    cdef public object _connection      # once it may shake hands
    cdef public object _buffer
    cdef public bint _is_stranger       # until the connection is open
    cdef public bint touched
    cdef public bint writable
    cdef public bint _heard             # something since the last check of heartbeats
    cdef public bint _sent
    cdef public bint _paced             # until the end of this turn
    cdef int _descriptor                # of the socket, if its bytes are those of AMQP; else -1

    cdef bint _send_directly(self, Outbox outbox) except -1
