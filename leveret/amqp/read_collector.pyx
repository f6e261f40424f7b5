"""Collector of what a read has brought: one compiled call for most reads tells queues and channels.

Compiled because clients that wait for every answer make a read of each message.
"""

cimport cython
from libc.stdint cimport uint64_t

from leveret.amqp.confirms cimport Confirms
from leveret.amqp.frames cimport ChannelSlot, FrameReader
from leveret.core.turn cimport Turn

from leveret.core.turn import MADE_TOGETHER_MAX
from leveret.errors import ChannelError

cdef Py_ssize_t _MADE_TOGETHER_MAX = MADE_TOGETHER_MAX


@cython.final
cdef class ReadCollector:
    """Tells the turn and the channels of a connection what its reader has gathered.

    Builders of very many queues go to `connection.touch_packed`. While `alarms` give a reason,
    `connection.check_alarms()` is called after publishes.
    """

    def __init__(self, connection, FrameReader reader not None, Turn turn not None, alarms):
        self.connection = connection
        self.reader = reader
        self.turn = turn
        self.alarms = alarms

    def take(self, data, uint64_t now):
        """Take what a socket read brought; return what `next` does."""
        self.reader.receive(data, now)
        return self.next()

    cpdef object next(self):
        """Let the reader work, and collect what it has gathered; None if nothing is left.

        Else returns the event that the reader has met, before which nothing was collected, or an
        empty one if it is to go on. Publishes of several pauses are collected together.
        """
        cdef FrameReader reader = self.reader
        event = reader.next()
        if event is not None:
            return event
        if not reader.paused or reader.settle_runs:
            self.collect()
        return () if reader.paused or reader.stopped or reader.leaves_some() else None

    cpdef int collect(self) except -1:
        """Give channels their settlements and confirms, and the turn the builders that fill."""
        cdef list filled = self.reader.take_filled()
        cdef ChannelSlot slot
        if filled:
            if len(filled) > _MADE_TOGETHER_MAX or self.turn.parked:
                self.connection.touch_packed(filled)
            else:
                for builder in filled:
                    self.turn.touch(builder.owner)
            if self.alarms.reason:
                self.connection.check_alarms()
        for slot in self.reader.take_dirty():
            try:
                if slot.confirms is not None:
                    (<Confirms>slot.confirms).collect()
                if slot.has_settles():
                    slot.channel.collect_settles()
            except ChannelError as error:
                self.connection.channels.close(slot.number, error)
        return 0

    def end(self):
        """Forget the connection, because it is lost: they refer to each other."""
        self.connection = None
