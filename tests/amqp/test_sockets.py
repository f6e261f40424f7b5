"""The rim around one connection, on a loop and a transport that only a test moves."""

import gc
import socket
import weakref
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from leveret.amqp.handshake import ConnectionState
from leveret.amqp.handshakes import Handshakes
from leveret.amqp.methods import HEARTBEAT
from leveret.amqp.poller import BusyPoller
from leveret.amqp.sockets import CLOSE_SECONDS_MAX, AmqpProtocol
from leveret.errors import ConnectionClosingError
from leveret.ports.records import BatchBuilder
from tests.support.client import PROTOCOL_HEADER, message, wire
from tests.support.stage import Gate, Stage

SECONDS = 10  # one heartbeat interval


class Timer:
    def __init__(self, due, callback):
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self):
        self.cancelled, self.callback = True, None


class Loop:
    def __init__(self):
        self.now = 0.0
        self.timers = []

    def call_later(self, delay, callback):
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def advance(self, seconds):
        stop = self.now + seconds
        while due := [t for t in self.timers if not t.cancelled and t.due <= stop]:
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            self.now = timer.due
            timer.callback()
        self.now = stop


class Transport:
    """`reads` is whether the peer takes what is sent; until then nothing is ever all sent."""

    def __init__(self, protocol, loop):
        self.protocol, self.loop = protocol, loop
        self.sent, self.reads = b"", True
        self.reading, self.ended_at, self.closing = True, None, False

    def is_closing(self):
        return self.closing

    def get_extra_info(self, name):
        return {"peername": ("127.0.0.1", 4000), "sockname": ("127.0.0.1", 4000)}.get(name)

    def set_write_buffer_limits(self, high):
        self.high = high

    def is_reading(self):
        return self.reading

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_write_buffer_size(self):
        return 0 if self.reads else len(self.sent)

    def write(self, data):
        self.sent += data

    def writelines(self, pieces):
        self.sent += b"".join(pieces)

    def close(self):
        if self.reads:
            self.abort()

    def abort(self):
        if self.ended_at is None:
            self.ended_at = self.loop.now
            self.protocol.connection_lost(None)

    def take(self):
        sent, self.sent = self.sent, b""
        return sent


class PatchableProtocol(AmqpProtocol):
    """Protocol of which tests replace methods."""


class Rim:
    """One accepted socket."""

    def __init__(self, **settings):
        self.stage = Stage(**settings)
        self.loop = Loop()
        self.listener = SimpleNamespace(
            loop=self.loop,
            broker=self.stage.broker,
            configuration=self.stage.configuration,
            buffer=memoryview(bytearray(self.stage.configuration.read_buffer_bytes)),
            protocols=set(),
            unfinished=self.stage.unfinished,
            handshakes=Handshakes(
                self.stage.configuration,
                self.stage.schedule,
                self.stage.monotonic_ns,
                1_000_000,
                lambda _address: None,
            ),
            spawn=self.stage.spawn,
            unread_bytes_max=1000,
            poller=BusyPoller(self.loop, 0),
        )
        self.listener.stranger_buffer = self.listener.buffer
        self.protocol = PatchableProtocol(self.listener)
        self.transport = Transport(self.protocol, self.loop)
        self.protocol.connection_made(self.transport)

    def feed(self, data):
        self.protocol.get_buffer(-1)[: len(data)] = data
        self.protocol.buffer_updated(len(data))
        self.stage.run()

    def open(self, heartbeat=SECONDS):
        self.feed(PROTOCOL_HEADER)
        self.feed(wire(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0))
        self.feed(wire(commands.Connection.TuneOk(1, 4096, heartbeat), 0))
        self.feed(wire(commands.Connection.Open("/"), 0))
        assert self.names()[-1] == "Connection.OpenOk"
        return self

    def names(self):
        data, names = self.transport.take(), []
        while data:
            size, _, value = frame.unmarshal(data)
            names.append(value.name)
            data = data[size:]
        return names


# -- heartbeats


@pytest.mark.covers("B-009")
@pytest.mark.parametrize("quiet_from", [0.1, 2.5, 4.9, 5.1, 7.5, 9.9, 13.0])
def test_a_silent_peer_is_closed_between_two_and_three_intervals(quiet_from):
    rim = Rim().open()
    rim.loop.advance(quiet_from)
    rim.feed(HEARTBEAT)
    rim.loop.advance(45)
    assert 2 * SECONDS <= rim.transport.ended_at - quiet_from <= 3 * SECONDS
    assert rim.stage.broker.connections == set()


@pytest.mark.covers("B-009", "C-216")
@pytest.mark.parametrize("sign_of_life", [HEARTBEAT, wire(commands.Channel.Open()), b"\x08"])
def test_any_byte_is_a_sign_of_life(sign_of_life):
    rim = Rim().open()
    rim.loop.advance(1.5 * SECONDS)
    rim.feed(sign_of_life)
    rim.loop.advance(1.5 * SECONDS)
    assert rim.transport.ended_at is None


@pytest.mark.covers("B-009")
def test_heartbeats_are_sent_while_nothing_else_is():
    rim = Rim().open()
    for _ in range(4):
        rim.feed(HEARTBEAT)
        rim.loop.advance(SECONDS)
    assert rim.names().count("Heartbeat") in {7, 8}


@pytest.mark.covers("B-009")
def test_no_heartbeat_is_sent_beside_other_traffic():
    rim = Rim().open()
    rim.feed(wire(commands.Channel.Open()))
    rim.loop.advance(SECONDS / 2)
    assert rim.names() == ["Channel.OpenOk"]
    rim.loop.advance(SECONDS / 2)
    assert rim.names() == ["Heartbeat"]


@pytest.mark.covers("B-009")
def test_without_heartbeats_a_peer_may_be_silent():
    rim = Rim().open(heartbeat=0)
    rim.loop.advance(1000)
    assert rim.transport.ended_at is None
    assert rim.names() == []


@pytest.mark.covers("B-009", "B-010", "C-216")
def test_a_peer_is_not_blamed_while_nothing_is_read():
    rim = Rim().open()
    rim.protocol.hold(held=True)
    rim.loop.advance(5 * SECONDS)
    assert rim.transport.ended_at is None
    rim.protocol.hold(held=False)
    rim.loop.advance(5 * SECONDS)
    assert rim.transport.ended_at is not None


# -- limits of time


@pytest.mark.covers("B-007")
@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_a_handshake_must_end_in_time(sent):
    rim = Rim(handshake_timeout_seconds=10)
    steps = [
        PROTOCOL_HEADER,
        wire(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0),
        wire(commands.Connection.TuneOk(1, 4096, 0), 0),
    ]
    for step in steps[:sent]:
        rim.feed(step)
    rim.loop.advance(9.9)
    assert rim.transport.ended_at is None
    rim.loop.advance(0.2)
    assert rim.transport.ended_at == 10


def test_an_open_connection_is_not_closed_by_the_handshakes_limit():
    rim = Rim(handshake_timeout_seconds=10).open(heartbeat=0)
    rim.loop.advance(20)
    assert rim.transport.ended_at is None


def test_a_peer_that_never_answers_the_close_is_closed():
    rim = Rim(handshake_timeout_seconds=10).open(heartbeat=0)
    rim.loop.advance(5)
    rim.protocol.shut(ConnectionClosingError(320, "bye"))
    rim.loop.advance(9.9)
    assert rim.transport.ended_at is None
    rim.loop.advance(0.2)
    assert rim.transport.ended_at == 15


def test_a_peer_that_answers_the_close_is_closed_at_once():
    rim = Rim().open()
    rim.protocol.shut(ConnectionClosingError(320, "bye"))
    assert rim.names() == ["Connection.Close"]
    rim.feed(wire(commands.Connection.CloseOk(), 0))
    assert rim.transport.ended_at == 0
    assert rim.listener.protocols == set()


def test_a_peer_that_does_not_read_cannot_keep_the_socket():
    rim = Rim().open(heartbeat=0)
    rim.transport.reads = False
    rim.feed(wire(commands.Connection.Close(200, "", 0, 0), 0))
    assert rim.transport.ended_at is None
    rim.loop.advance(CLOSE_SECONDS_MAX)
    assert rim.transport.ended_at == CLOSE_SECONDS_MAX


def test_a_lost_connection_leaves_no_timer():
    rim = Rim().open()
    connection = rim.protocol._connection
    rim.transport.abort()
    assert [timer for timer in rim.loop.timers if not timer.cancelled] == []
    assert connection.state is ConnectionState.CLOSED


def wait_for_the_start(rim):
    rim.feed(PROTOCOL_HEADER)


def guess_a_password(rim):
    rim.protocol.pause = rim.stage.pause
    wait_for_the_start(rim)
    rim.feed(wire(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guess"), 0))
    rim.stage.advance(rim.stage.configuration.login_delay_seconds)
    assert rim.transport.ended_at is not None


def leave_channels_open(rim):
    rim.open()
    rim.feed(wire(commands.Channel.Open()) + wire(commands.Queue.Declare(queue="q")))
    rim.feed(message("q", b"body") + wire(commands.Basic.Consume(queue="q")))


def be_refused(rim):
    rim.open()
    rim.feed(wire(commands.Exchange.Delete(exchange="amq.direct")))


@pytest.mark.parametrize(
    "use", [wait_for_the_start, guess_a_password, leave_channels_open, be_refused]
)
def test_a_lost_connection_leaves_nothing_to_the_garbage_collector(use):
    """The collector looks at all objects, and thousands of strangers a second may come and go."""
    rim = Rim()
    gone = weakref.ref(rim.protocol)  # which alone refers to its connection
    gc.collect()
    gc.disable()
    try:
        use(rim)
        rim.transport.abort()
        rim.stage.run()
        del rim.protocol, rim.transport
        assert gone() is None
    finally:
        gc.enable()


# -- reading


def test_nothing_is_read_while_an_operation_waits():
    rim = Rim()
    rim.stage.password_checks = Gate()
    rim.feed(PROTOCOL_HEADER)
    rim.feed(wire(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0))
    assert not rim.transport.reading
    rim.stage.password_checks.open()
    rim.stage.run()
    assert rim.transport.reading
    assert rim.names() == ["Connection.Start", "Connection.Tune"]


def test_a_flood_is_read_a_buffer_a_turn():
    rim = Rim(read_buffer_bytes=8192).open()
    beats = HEARTBEAT * (8192 // len(HEARTBEAT))
    rim.protocol.get_buffer(-1)[:] = beats
    rim.protocol.buffer_updated(len(beats))
    assert not rim.transport.reading
    rim.stage.run()
    assert rim.transport.reading


def test_an_operation_that_waits_outlasts_the_pace_of_a_flood():
    rim = Rim(read_buffer_bytes=8192).open()
    rim.protocol.hold(held=True)
    beats = HEARTBEAT * (8192 // len(HEARTBEAT))
    rim.protocol.get_buffer(-1)[:] = beats
    rim.protocol.buffer_updated(len(beats))
    rim.stage.run()
    assert not rim.transport.reading


def test_records_get_the_time_of_the_nodes_clock():
    rim = Rim().open(heartbeat=0)
    rim.stage.now = 77
    rim.feed(wire(commands.Channel.Open()) + wire(commands.Queue.Declare(queue="q")))
    rim.feed(message("q", b"a"))
    _, time_ms, *_ = rim.stage.queue("q").batch_at_hand(0).record(0)
    assert time_ms == 77


def test_a_connection_ends_whose_output_is_torn():
    rim = Rim().open(heartbeat=0)
    batch = BatchBuilder()
    batch.add(0, 1, b"", b"q", b"", b"body")
    rim.feed(wire(commands.Channel.Open()))
    rim.transport.take()
    connection = rim.protocol._connection
    slot = connection.channels.by_number[1].slot
    with pytest.raises(IndexError):
        connection.outbox.deliver_runs(slot, b"t", [batch.seal(0)], [(0, 1), (5, 6)], False)
    connection.touch()
    rim.stage.run()
    assert rim.transport.ended_at is not None
    assert rim.transport.sent == b""


# -- the end of a proof


@pytest.mark.covers("B-316")
def test_credentials_expire_at_their_time_and_can_be_renewed(monkeypatch):
    rim = Rim().open(heartbeat=0)
    start_ms = 1_700_000_000_000
    monkeypatch.setattr(rim.protocol, "wall_ms", lambda: start_ms + int(rim.loop.now * 1000))
    rim.protocol.set_expiry(start_ms + 60_000)
    rim.loop.advance(59)
    rim.protocol.set_expiry(start_ms + 10_000_000)  # later than a timer is set for
    rim.loop.advance(9_900)
    assert rim.protocol._connection.state is ConnectionState.RUNNING
    rim.loop.advance(45)
    assert rim.protocol._connection.state is ConnectionState.CLOSING
    rim.stage.run()
    assert rim.names() == ["Connection.Close"]


# -- output that is sent to the socket itself


@contextmanager
def direct():
    """A connection whose output goes to a socket with little room, and that socket's peer."""
    rim = Rim().open()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        rim.transport.reads = False
        rim.protocol.send_directly(ours.fileno())
        yield rim, ours, theirs


@pytest.fixture(name="direct")
def direct_fixture():
    with direct() as found:
        yield found


def send(rim, data):
    rim.protocol._connection.outbox.write(data)
    rim.protocol.send_pending()


def received(theirs):
    data = b""
    with suppress(BlockingIOError):
        while piece := theirs.recv(65536):
            data += piece
    return data


@given(sizes=st.lists(st.integers(1, 20_000), max_size=40), random=st.randoms())
def test_output_keeps_its_order_whether_the_socket_has_room_or_not(sizes, random):
    with direct() as (rim, ours, theirs):
        got, sent = b"", b""
        for number, size in enumerate(sizes):
            data = bytes([number]) * size
            sent += data
            send(rim, data)
            if random.random() < 0.5:
                got += received(theirs)
            if rim.transport.sent and random.random() < 0.5:  # the transport goes on with the rest
                with suppress(BlockingIOError):
                    rim.transport.sent = rim.transport.sent[ours.send(rim.transport.sent) :]
        assert got + received(theirs) + rim.transport.sent == sent


def test_the_transport_gets_no_more_than_the_socket_has_no_room_for(direct):
    rim, _, theirs = direct
    send(rim, b"first")
    assert (received(theirs), rim.transport.sent) == (b"first", b"")
    for _ in range(100):
        send(rim, b"x" * 10_000)
    assert 0 < len(rim.transport.sent) < 1_000_000


def test_nothing_is_sent_to_a_socket_that_may_be_another_s_already(direct):
    rim, _, theirs = direct
    rim.transport.closing = True
    send(rim, b"late")
    assert (received(theirs), rim.transport.sent) == (b"", b"late")
