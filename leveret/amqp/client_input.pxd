from leveret.amqp.deliveries cimport Outbox
from leveret.amqp.frames cimport FrameReader
from leveret.core.turn cimport Turn


cdef class ClientInput:
    cdef readonly FrameReader reader
    cdef readonly Outbox outbox
    cdef readonly object transport
    cdef public object touch            # there is output to be sent at the end of the turn
    cdef public object state
    cdef public object vhost            # once the connection is open
    cdef public object rights           # the same
    cdef public object rate_hold        # where a rate limits what is published; else None
    cdef public int waits               # for how many works it waits
    cdef public object route_generation     # of what the reader remembers of routes
    cdef public object again            # the event to be handled again: an answer has come
    cdef public int channel_number      # of the event being handled
    cdef public tuple method_ids        # of the method being handled, for close methods
    cdef Turn turn
    cdef object alarms

    cdef bint keeps_up(self) except -1
    cdef bint can_send(self) except -1
    cpdef object next_event(self)
    cdef bint repeats(self, event) except -1
    cpdef int collect(self) except -1
    cdef int _touch_filled(self, bint large) except -1
    cpdef int update_routes(self) except -1
