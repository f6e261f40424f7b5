cimport cython
from libc.stdint cimport uint64_t

from leveret.amqp.deliveries cimport Outbox
from leveret.amqp.frames cimport ChannelSlot
from leveret.ports.after_all cimport AfterAll


@cython.final
cdef class ConfirmGroup(AfterAll):
    cdef Confirms confirms
    cdef uint64_t last      # tag of its last publish


@cython.final
cdef class Confirms:
    cdef ChannelSlot slot
    cdef Outbox outbox
    cdef object touch
    cdef list groups        # in the order of their tags; those before `front` were answered
    cdef Py_ssize_t front
    cdef ConfirmGroup coming            # the next one, where it waits already; else None
    cdef readonly uint64_t opened       # tag of the last publish in a group
    cdef readonly uint64_t answered     # tag of the last answered publish; all before it were, too
    cdef object refused     # ranges of unanswered tags; None if there are none
    cdef dict others        # beside the touched queues, whom the next group waits for; values are None

    cdef int collect(self) except -1
    cdef ConfirmGroup await_so_far(self)
    cdef int settle(self) except -1
    cdef int _answer_around_refused(self, uint64_t last) except -1
    cdef int _answer_up_to(self, uint64_t last, bint nack) except -1
