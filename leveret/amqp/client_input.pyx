"""The compiled half of a connection: what each read passes through.

Most reads bring publishes and acknowledgements to an open connection: they are told to queues and
channels without an object of Python for each. The rest, as a handshake, a method or an error, comes
out as an event that the connection handles.
"""

from libc.stdint cimport uint64_t

from leveret.amqp.confirms cimport Confirms
from leveret.amqp.deliveries cimport Outbox
from leveret.amqp.frames cimport ChannelSlot, FrameReader
from leveret.core.turn cimport Turn

from leveret.amqp.handshake import RUNNING as _RUNNING
from leveret.amqp.methods import NO_METHOD
from leveret.core.turn import MADE_TOGETHER_MAX
from leveret.errors import ChannelError

cdef Py_ssize_t _MADE_TOGETHER_MAX = MADE_TOGETHER_MAX
cdef object RUNNING = _RUNNING
BASIC_GET = (60, 70)
cdef enum:
    _GETS_TOGETHER = 64     # repeated basic.gets of one read before somebody looks at the clock
GETS_TOGETHER = _GETS_TOGETHER


cdef class ClientInput:
    """Takes what a socket read brought, and tells the turn and the channels.

    Subclasses have `receive(data, now)` for what cannot be taken at once, `advance()` for what is
    left of a read, `failed(error)`, `check_alarms()`, which is called after publishes while `alarms`
    give a reason, `touch_packed(builders, large=…)` for those of very many queues, or large ones,
    and `close_channel(number, error)`.
    """

    def __init__(self, transport, FrameReader reader not None, Turn turn not None, alarms, state):
        self.transport = transport
        self.touch = transport.touch
        self.reader = reader
        self.outbox = Outbox()
        self.turn = turn
        self.alarms = alarms
        self.state = state
        self.route_generation = -1
        self.method_ids = NO_METHOD

    def received(self, data):
        """Process the bytes that a socket read brought. `data` may be reused after the call."""
        cdef uint64_t now = self.transport.wall_ms()
        if self.state is not RUNNING or self.waits or self.rate_hold is not None or self.reader.lost:
            self.receive(data, now)
            return
        self.method_ids = NO_METHOD
        try:
            self.update_routes()
            self.reader.receive(data, now)
            event = self.next_event()
        except Exception as error:  # whatever it is, only this connection ends
            event = ()
            self.failed(error)
        if event is not None:
            self.again = event or None
            self.advance()

    cpdef int update_routes(self) except -1:
        """Have the reader ask again for routes where exchanges or permissions have changed."""
        # Both only grow: with exchanges that come and go, and with permissions.
        generation = self.vhost.topology.generation + self.rights.generation
        if generation != self.route_generation:
            self.route_generation = generation
            self.reader.forget_routes()
        return 0

    cpdef object next_event(self):
        """Let the reader work, and collect what it has gathered; None if nothing is left.

        Else returns the event that the reader has met, before which nothing was collected, or an
        empty one if it is to go on. Publishes of several pauses are collected together.
        """
        cdef FrameReader reader = self.reader
        cdef int gets = 0
        event = reader.next()
        while event is not None:
            if gets == _GETS_TOGETHER or not self.repeats(event):
                return event
            if self.waits:
                return ()
            gets += 1
            event = reader.next()
        if not reader.paused or reader.settle_runs:
            self.collect()
        return () if reader.paused or reader.stopped or reader.leaves_some() else None

    cdef bint repeats(self, event) except -1:
        """Answer an event that is a repeated basic.get; False if it is none, or not as before."""
        cdef ChannelSlot slot = self.reader.slot_of(event[0])
        if slot is None or slot.gettings is None or type(event[1]) is not bytes:
            return False
        getting = slot.gettings.get(event[1])
        if getting is None:
            return False
        self.collect()      # what came before it
        if self.waits or slot.closing or self.outbox.is_full or not getting.is_current:
            return False
        self.channel_number, self.method_ids = slot.number, BASIC_GET
        work = getting.get()
        if work is not None:
            self.wait_for(work)
        self.method_ids = NO_METHOD
        return True

    cpdef int collect(self) except -1:
        """Give channels their settlements and confirms, and the turn the builders that fill."""
        cdef ChannelSlot slot
        self._touch_filled(False)
        for slot in self.reader.take_dirty():
            try:
                if slot.confirms is not None:
                    (<Confirms>slot.confirms).collect()
                if slot.has_settles():
                    slot.channel.collect_settles()
            except ChannelError as error:
                self.close_channel(slot.number, error)
        return 0

    def hand_over(self, *, bint large=False):
        """Give the turn the builders that fill, where confirms cannot be collected yet.

        They wait for these builders from now on. `large` ones are parked.
        """
        cdef ChannelSlot slot
        cdef Confirms confirms
        self._touch_filled(large)
        for slot in self.reader.dirty:
            confirms = slot.confirms
            if confirms is not None and confirms.slot is not None:  # else the channel ends
                confirms.await_so_far()

    cdef int _touch_filled(self, bint large) except -1:
        cdef list filled = self.reader.take_filled()
        if filled:
            if large or len(filled) > _MADE_TOGETHER_MAX or self.turn.parked:
                self.touch_packed(filled, large=large)
            else:
                for builder in filled:
                    self.turn.touch(builder.owner)
            if self.alarms.reason:
                self.check_alarms()
        return 0

    cdef bint keeps_up(self) except -1:
        """Whether the peer reads fast enough: the socket's buffer is below its limit."""
        return self.transport.writable and self.state is RUNNING

    cdef bint can_send(self) except -1:
        """Whether deliveries may be added to the outbox."""
        cdef Outbox outbox = self.outbox
        return outbox.earlier + outbox.filled < outbox.size_max and self.keeps_up()
