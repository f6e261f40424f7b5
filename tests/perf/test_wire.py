import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame, heartbeat

from leveret.perf.consumer import ACK_EVERY, LoadConsumer
from leveret.perf.wire import Link, WireError, WorkerCounters

from .streams import FRAME_BYTES_MAX, content, delivery, feed_in_parts, make_board, make_counters

# A long body repeats a short one: drawn byte by byte, some would be more than Hypothesis may draw.
long_bodies = st.builds(
    lambda piece, size: (piece * size)[:size],
    st.binary(min_size=1, max_size=64),
    st.integers(4000, 9000),
)
bodies = st.lists(st.binary(max_size=64) | long_bodies, max_size=8)


def receive(data, cuts=()):
    """Return what a consumer on channel 1 makes of `data`: counters, leftover methods, acks."""
    board = make_board()
    link = Link(-1, FRAME_BYTES_MAX)
    consumer = LoadConsumer(link, 1, make_counters(board), 1, ACK_EVERY, stamped=False)
    feed_in_parts(link, data, cuts)
    totals = board.totals(1)
    return totals.consumed, totals.redelivered, consumer.consumed, link.methods, link.take_unsent()


@given(bodies, st.data())
def test_a_stream_means_the_same_wherever_it_is_cut(payloads, data):
    stream = frame.marshal(commands.Basic.QosOk(), 1)
    for tag, payload in enumerate(payloads, start=1):
        stream += delivery(tag, payload, redelivered=tag % 2 == 0)
        stream += frame.marshal(heartbeat.Heartbeat(), 0)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    whole = receive(stream)
    assert receive(stream, cuts) == whole
    assert whole[:3] == (len(payloads), len(payloads) // 2, len(payloads))
    assert whole[3] == [frame.marshal(commands.Basic.QosOk(), 1)]


def test_byte_by_byte_is_the_same_as_whole():
    stream = b"".join(delivery(tag, b"x" * size) for tag, size in enumerate((0, 16, 9000), 1))
    assert receive(stream, range(len(stream))) == receive(stream)


def test_methods_nobody_counts_are_kept_whole_for_the_cold_path():
    methods = [
        frame.marshal(commands.Basic.ConsumeOk("0"), 1),
        frame.marshal(commands.Channel.Close(404, "NOT_FOUND", 60, 20), 1),
        frame.marshal(commands.Connection.Blocked("low on memory"), 0),
        frame.marshal(commands.Basic.ConsumeOk("9"), 9),
    ]
    assert receive(b"".join(methods))[3] == methods


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (delivery(1, b"")[:-1] + b"\x00", "0xCE"),
        (b"\x01\x00\x01\x00\x00\x20\x00", "longer than agreed"),
        (b"\x05\x00\x01\x00\x00\x00\x00\xce", "frame type 5"),
        (b"\x01\x00\x01\x00\x00\x00\x02\x00\x3c\xce", "without a method"),
        (content(b"x" * 10, part_bytes=5)[:-13], None),
        (b"\x03\x00\x01\x00\x00\x00\x01x\xce", "nobody waits"),
        (content(b"abc", channel=2), "nobody waits"),
        (b"\x02\x00\x01\x00\x00\x00\x03abc\xce", "nobody waits"),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x3c\x30\xce", "cut short"),
    ],
)
def test_nonsense_is_named(data, text):
    if text is None:
        assert receive(data)[0] == 0  # a message that has not wholly come does not count
        return
    with pytest.raises(WireError, match=text):
        receive(data + b"\x00" * 8)


@given(st.binary(max_size=200))
def test_no_bytes_lead_to_anything_but_a_wire_error(data):
    with contextlib.suppress(WireError):
        receive(data)


@given(bodies, st.data())
def test_damaged_streams_lead_to_nothing_but_a_wire_error(payloads, data):
    stream = bytearray(b"".join(delivery(tag, each) for tag, each in enumerate(payloads, 1)))
    for _ in range(data.draw(st.integers(0, 3)) if stream else 0):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        receive(bytes(stream))


def test_a_socket_is_read_and_written_without_waiting():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        link = Link(ours.fileno(), FRAME_BYTES_MAX)
        assert link.receive() == 0
        link.send(b"hello")
        assert not link.unsent
        assert theirs.recv(100) == b"hello"
        while not link.unsent:
            link.send(b"x" * 60_000)
        received = len(theirs.recv(1 << 20))
        while not link.flush():
            received += len(theirs.recv(1 << 20))
        assert received > 0
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError, match="closed"):
            link.receive()


def test_counters_refuse_memory_that_is_too_small():
    with pytest.raises(ValueError, match="too few"):
        WorkerCounters(memoryview(bytearray(16)))
