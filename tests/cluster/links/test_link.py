"""One link without a socket: frames in any parts, keepalives, and its one end."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.links.handshake import HANDSHAKE_FRAME_BYTES_MAX, REFUSAL, RefusalCode
from leveret.cluster.links.link import LinkLimits, NodeLink
from leveret.replication.codec import LENGTH, LinkEncoder
from leveret.replication.messages import Acknowledge
from tests.cluster.links.ends import (
    End,
    Loop,
    Owner,
    Transport,
    framed,
    linked,
    pass_on,
    talk,
)
from tests.cluster.links.peers import acceptor, identity, opener

LIMITS = LinkLimits()
sizes = st.lists(st.integers(1, 40), max_size=30)


@given(sizes, st.lists(st.binary(max_size=30), max_size=5))
def test_frames_arrive_in_whatever_parts(sizes, frames):
    loop = Loop()
    ends = End(opener(), loop), End(acceptor(), loop)
    talk(*ends, sizes)
    expected = ["opened", *[frame for frame in frames if frame]]  # an empty one is a keepalive
    for source, target in (ends, ends[::-1]):
        source.link.send([framed(*frames)])
        pass_on(source, target, sizes)
        assert target.events == expected


def test_what_comes_with_ready_is_not_lost():
    one, other = End(opener()), End(acceptor())
    pass_on(one, other)
    pass_on(other, one)
    pass_on(one, other)
    other.link.send([framed(b"first")])
    pass_on(other, one)
    assert one.events == ["opened", b"first"]


@given(st.binary(max_size=200), sizes, st.booleans(), st.booleans())
def test_any_bytes_go_on_or_end_the_link(data, sizes, is_opener, begun):
    end = End(opener() if is_opener else acceptor())
    end.transport.take()
    if begun and is_opener:
        end.feed(framed(acceptor().receive(opener().first)))
    elif begun:
        end.feed(framed(opener().first))
    end.feed(data, sizes)
    assert "opened" not in end.events or framed(b"\x04") in data
    assert len(end.events) <= 2
    assert len(end.link.get_buffer(-1)) <= HANDSHAKE_FRAME_BYTES_MAX


def test_both_ends_know_each_other():
    one, other = linked()
    assert (one.link.is_outgoing, other.link.is_outgoing) == (True, False)
    assert (one.link.peer.node, other.link.peer.node) == (1, 2)
    assert one.transport.option == (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def test_pieces_are_sent_in_one_call_and_are_not_copied():
    one, other = linked()
    pieces = LinkEncoder(0).encode(Acknowledge(1, 2))
    one.link.send(pieces)
    assert [id(piece) for piece in one.transport.written] == [id(piece) for piece in pieces]
    pass_on(one, other)
    assert other.events == [b"".join(pieces[1:])]


def test_frames_are_read_in_place():
    _, other = linked()
    other.feed(LENGTH.pack(1000))
    buffer = other.link.get_buffer(-1)
    assert len(buffer) == 1000
    frame = buffer.obj
    kept = []
    other.owner.received = lambda link, received: kept.append(received)
    other.feed(b"x" * 1000)
    assert kept[0] is frame


# -- limits


def test_a_huge_length_ends_the_link_before_anything_is_allocated():
    _, other = linked(frame_bytes_max=1000)
    other.feed(LENGTH.pack(1001))
    assert other.events == ["ended: the other node sends a frame of 1001 bytes, more than 1000"]
    assert other.transport.state == "aborted"
    assert len(other.link.get_buffer(-1)) == LENGTH.size


def test_a_frame_of_the_largest_size_passes():
    _, other = linked(frame_bytes_max=1000)
    other.feed(framed(b"x" * 1000))
    assert other.events == [b"x" * 1000]


@pytest.mark.parametrize("handshake", [opener, acceptor])
def test_before_the_handshake_is_over_only_short_frames_are_read(handshake):
    end = End(handshake())
    end.transport.take()
    end.feed(b"GET / HTTP/1.1\r\n")
    (ended,) = end.events
    assert "no handshake of a link" in ended
    (written,) = end.transport.written
    assert REFUSAL.unpack_from(written, LENGTH.size) == (5, RefusalCode.MALFORMED)
    assert end.transport.state == "closed"  # behind the refusal


def test_a_refusal_ends_both_ends_with_what_to_do():
    one, other = End(opener()), End(acceptor(identity(3)))
    talk(one, other)
    (here,), (there,) = other.events, one.events
    assert here.startswith("ended: another node answers than the one that was meant")
    assert there == here.replace("ended: ", "ended: the other end says: ")


def test_a_peer_that_does_not_read_ends_the_link():
    one, _ = linked(buffered_bytes_max=1000)
    one.transport.unread_bytes = 1000
    one.link.send([framed(b"x" * 5000)])  # taken whole
    one.transport.take()
    one.transport.unread_bytes = 1001
    one.link.send([framed(b"too much")])
    assert one.events == []  # who sends is not told within
    assert not one.link.is_open
    one.transport.unread_bytes = 0
    one.link.send([framed(b"behind a gap")])
    one.feed(framed(b"too late"))
    one.loop.advance(0)
    assert one.events == ["ended: the other node has not read 1001 bytes"]
    assert one.transport.state == "aborted"
    assert one.transport.written == []


# -- time


def test_a_handshake_has_its_time():
    for handshake in (opener(), acceptor()):
        end = End(handshake)
        end.loop.advance(LIMITS.handshake_ms - 1)
        assert end.events == []
        end.loop.advance(1)
        assert end.events == ["ended: there was no link within 5000 ms"]
        assert end.transport.state == "aborted"


def test_the_time_begins_before_there_is_a_connection():
    loop, owner, transport = Loop(), Owner(), Transport()
    link = NodeLink(owner, opener(), LIMITS, loop)
    loop.advance(LIMITS.handshake_ms)
    assert len(owner.ends) == 1
    link.connection_made(transport)
    assert (transport.state, transport.written) == ("aborted", [])


def test_keepalives_are_sent_where_nothing_else_is():
    one, _ = linked()
    one.loop.advance(LIMITS.keepalive_ms)
    assert one.transport.take() == LENGTH.pack(0)
    one.link.send([framed(b"a frame")])
    one.transport.take()
    one.loop.advance(LIMITS.keepalive_ms)
    assert one.transport.take() == b""
    one.loop.advance(LIMITS.keepalive_ms)
    assert one.transport.take() == LENGTH.pack(0)
    one.transport.unread_bytes = 1  # what is under way is a sign of life
    one.loop.advance(LIMITS.keepalive_ms)
    assert one.transport.take() == b""


def test_keepalives_keep_a_link():
    one, other = linked()
    for _ in range(20):
        one.loop.advance(LIMITS.keepalive_ms)
        assert pass_on(one, other)
        assert pass_on(other, one)
    assert one.events == other.events == []


def test_a_silent_link_is_ended():
    one, _ = linked()
    one.loop.advance(LIMITS.silence_ms)
    assert one.events == []
    one.loop.advance(LIMITS.keepalive_ms)
    assert one.events == ["ended: nothing came for 5000 ms"]
    one.loop.advance(60_000)
    assert len(one.events) == 1


def test_part_of_a_frame_is_no_silence():
    _, other = linked()
    other.feed(LENGTH.pack(100))
    for _ in range(20):
        other.loop.advance(LIMITS.keepalive_ms)
        other.feed(b"x")
    assert other.events == []


def test_a_process_that_stood_still_does_not_take_its_peer_for_silent():
    one, _ = linked()
    for _ in range(3):
        one.loop.monotonic += 60_000
        one.loop.advance(0)
        one.feed(LENGTH.pack(0))  # came meanwhile, and is read after the timers
    assert one.events == []


# -- the end


def test_an_end_is_told_once():
    one, other = linked()
    one.link.close("enough")
    one.link.abort("once more")
    one.link.connection_lost(None)
    assert one.events == ["ended: enough"]
    other.link.eof_received()
    other.link.connection_lost(ConnectionResetError("reset"))
    assert other.events == ["ended: the other node has closed the link"]
    one.loop.advance(60_000)
    assert (len(one.events), len(other.events)) == (1, 1)


def test_a_lost_connection_is_told_with_its_reason():
    one, _ = linked()
    one.link.connection_lost(ConnectionResetError("reset\nby peer"))
    assert one.events == ["ended: reset\\nby peer"]


def test_a_connection_that_is_lost_too_early_names_what_may_be_wrong():
    end = End(opener())
    end.link.connection_lost(None)
    (ended,) = end.events
    assert "before the handshake was over" in ended
    assert "log of the other node" in ended


def test_nothing_is_delivered_or_sent_after_the_end():
    _, other = linked()
    other.owner.when_received = lambda link: link.close("enough")
    other.feed(framed(b"one", b"two"))
    assert other.events == [b"one", "ended: enough"]
    other.transport.take()
    other.link.send([framed(b"three")])
    assert other.transport.written == []


def test_what_was_sent_may_arrive_before_a_closed_link_is_cut():
    one, _ = linked()
    one.link.send([framed(b"the last")])
    one.link.close("enough")
    assert one.transport.state == "closed"
    one.loop.advance(LIMITS.close_ms)
    assert one.transport.state == "aborted"


def test_a_closed_link_whose_connection_is_gone_is_left_alone():
    one, _ = linked()
    one.link.close("enough")
    one.link.connection_lost(None)
    one.loop.advance(LIMITS.close_ms)
    assert one.transport.state == "closed"
