cimport cython

from leveret.amqp.frames cimport FrameReader
from leveret.core.turn cimport Turn


@cython.final
cdef class ReadCollector:
    cdef object connection
    cdef FrameReader reader
    cdef Turn turn
    cdef object alarms

    cpdef object next(self)
    cpdef int collect(self) except -1
