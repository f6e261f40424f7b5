"""Requests, messages and streams of a link, without sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.links.errors import CloseReason, LinkProtocolError, RefusalCode
from leveret.links.events import (
    Answered,
    HeartbeatAnswered,
    LinkClosed,
    MessageCame,
    RequestCame,
    RequestCancelled,
    RequestRefused,
    StreamEnded,
    StreamFailed,
    StreamMessage,
    StreamOpened,
)
from leveret.links.frames import FrameKind, LinkFrame, encode
from tests.links.pipes import SMALL, Pipe, events, feed

LIMITS = SMALL.limits
LARGE = b"L" * 150_000


@pytest.fixture(name="pipe")
def _pipe():
    return Pipe()


def test_a_request_is_answered(pipe):
    asked = pipe.dialer.request(7, b"question")
    pipe.settle()
    assert events(pipe.acceptor) == [RequestCame(asked, 7, b"question")]
    pipe.acceptor.answer(asked, [b"an", memoryview(b"swer")])
    pipe.settle()
    assert events(pipe.dialer) == [Answered(asked, b"answer")]
    assert pipe.dialer.requests_count == pipe.acceptor.requests_count == 0


def test_a_large_request_and_answer_arrive_whole(pipe):
    asked = pipe.dialer.request(7, LARGE)
    pipe.settle()
    assert events(pipe.acceptor) == [RequestCame(asked, 7, LARGE)]
    answer = [bytes([i % 256]) * i for i in range(600)]
    pipe.acceptor.answer(asked, list(answer), is_checked=False)
    pipe.settle()
    assert events(pipe.dialer) == [Answered(asked, b"".join(answer))]


def test_a_refusal_says_why(pipe):
    asked = pipe.dialer.request(7, b"")
    pipe.settle()
    pipe.acceptor.refuse(asked, 123, "no")
    pipe.settle()
    assert events(pipe.dialer) == [RequestRefused(asked, 123, "no")]


def test_a_cancelled_request_reaches_the_other_side(pipe):
    asked = pipe.dialer.request(7, b"")
    pipe.settle()
    events(pipe.acceptor)
    pipe.dialer.cancel(asked)
    assert pipe.dialer.requests_count == 1, "it counts until it is answered"
    pipe.settle()
    assert events(pipe.acceptor) == [RequestCancelled(asked)]
    assert events(pipe.dialer) == []
    assert pipe.dialer.requests_count == pipe.acceptor.requests_count == 0
    pipe.acceptor.answer(asked, b"too late")
    assert not pipe.acceptor.has_output


def test_a_request_that_was_not_begun_is_cancelled_without_a_word(pipe):
    asked = pipe.dialer.request(7, LARGE)
    pipe.dialer.cancel(asked)
    assert not pipe.dialer.has_output
    assert pipe.dialer.queued_bytes == pipe.dialer.requests_count == 0


def test_a_request_is_cancelled_in_the_middle_of_its_bytes(pipe):
    asked = pipe.dialer.request(7, LARGE)
    pipe.send(True, 30_000)
    pipe.carry(True)
    pipe.dialer.cancel(asked)
    pipe.settle()
    assert [type(each) for each in events(pipe.acceptor)] == [RequestCancelled]
    assert events(pipe.dialer) == []
    assert pipe.dialer.requests_count == pipe.dialer.queued_bytes == 0


def test_an_answer_is_cancelled_in_the_middle_of_its_bytes(pipe):
    asked = pipe.dialer.request(7, b"")
    pipe.settle()
    pipe.acceptor.answer(asked, LARGE)
    pipe.send(False, 30_000)
    pipe.carry(False)
    pipe.dialer.cancel(asked)
    pipe.settle()
    assert events(pipe.dialer) == []
    assert pipe.dialer.requests_count == pipe.acceptor.queued_bytes == 0


def test_small_ones_overtake_large_ones(pipe):
    large = [pipe.dialer.request(1, b"L" * 80_000) for _ in range(3)]
    pipe.send(True, 20_000)
    small = pipe.dialer.request(2, b"small")
    pipe.dialer.ping(5)
    pipe.send(True, 20_000)
    pipe.carry(True)
    assert events(pipe.acceptor) == [RequestCame(small, 2, b"small")]
    pipe.send(False)
    pipe.carry(False)
    assert events(pipe.dialer) == [HeartbeatAnswered(5)]
    pipe.settle()
    assert {each.id for each in events(pipe.acceptor)} == set(large)


def test_large_ones_get_on_beside_many_small_ones(pipe):
    pipe.dialer.request(1, LARGE)
    while not pipe.dialer.is_full:
        pipe.dialer.send(2, b"s" * 16_000)
    for _ in range(16):
        pipe.send(True, 1)
    pipe.carry(True)
    assert RequestCame in map(type, events(pipe.acceptor))


def test_only_so_many_large_ones_at_a_time(pipe):
    for _ in range(4):
        pipe.dialer.request(1, LARGE)
    pipe.send(True, 60_000)
    pipe.carry(True)
    assert len(pipe.acceptor._partials) == LIMITS.interleaved_max


def test_one_way_messages_keep_their_order(pipe):
    payloads = [b"a" * size for size in (10, 50_000, 20, 20_000, 0, 30, 70_000, 5)]
    for payload in payloads:
        pipe.dialer.send(3, payload)
    pipe.settle()
    assert events(pipe.acceptor) == [MessageCame(3, payload) for payload in payloads]


def test_too_much_work_is_answered_busy(pipe):
    asked = [pipe.dialer.request(1, LARGE) for _ in range(3)]
    pipe.settle()
    came = events(pipe.acceptor)
    assert len(came) == 1
    refused = events(pipe.dialer)
    assert {each.code for each in refused} == {RefusalCode.BUSY}
    assert {each.id for each in refused} | {came[0].id} == set(asked)
    pipe.acceptor.answer(came[0].id, b"")
    again = pipe.dialer.request(1, LARGE)
    pipe.settle()
    assert events(pipe.acceptor) == [RequestCame(again, 1, LARGE)]


def test_a_stream_has_messages_in_both_directions(pipe):
    opened = pipe.dialer.open(4, b"please")
    pipe.dialer.send_message(opened, b"one")
    pipe.dialer.end(opened)
    pipe.settle()
    assert events(pipe.acceptor) == [
        StreamOpened(opened, 4, b"please"),
        StreamMessage(opened, b"one"),
        StreamEnded(opened),
    ]
    pipe.acceptor.send_message(opened, b"two")
    pipe.acceptor.end(opened)
    pipe.settle()
    assert events(pipe.dialer) == [StreamMessage(opened, b"two"), StreamEnded(opened)]
    assert pipe.dialer.streams_count == pipe.acceptor.streams_count == 0


def test_a_stream_that_is_not_read_holds_only_itself(pipe):
    slow, other = pipe.dialer.open(4, b""), pipe.dialer.open(4, b"")
    sent = 0
    while pipe.dialer.is_writable(slow):
        pipe.dialer.send_message(slow, b"x" * 1000)
        sent += 1
        pipe.settle()
    received = [each for each in events(pipe.acceptor) if isinstance(each, StreamMessage)]
    bound = LIMITS.window_bytes + 1000
    assert sum(len(each.payload) for each in received) <= bound
    assert sent > len(received)
    pipe.dialer.send_message(other, b"y" * 50_000)
    pipe.settle()
    assert events(pipe.acceptor) == [StreamMessage(other, b"y" * 50_000)]
    while received and not pipe.dialer.writable_again:
        for each in received:
            pipe.acceptor.consumed(slow, len(each.payload))
        pipe.settle()
        received = events(pipe.acceptor)
    assert pipe.dialer.writable_again == [slow]


def test_a_message_larger_than_the_window_gets_through(pipe):
    opened = pipe.dialer.open(4, b"")
    for _ in range(3):
        pipe.dialer.send_message(opened, LARGE)
    for _ in range(3):
        pipe.settle()
        (message,) = [each for each in events(pipe.acceptor) if isinstance(each, StreamMessage)]
        pipe.acceptor.consumed(opened, len(message.payload))
    pipe.settle()
    assert events(pipe.acceptor) == []


def test_a_failed_stream_ends_on_both_sides(pipe):
    opened = pipe.dialer.open(4, b"")
    pipe.dialer.send_message(opened, LARGE)
    pipe.send(True, 30_000)
    pipe.carry(True)
    pipe.acceptor.fail(opened, 9, "enough")
    pipe.settle()
    assert events(pipe.dialer) == [StreamFailed(opened, 9, "enough")]
    assert [type(each) for each in events(pipe.acceptor)] == [StreamOpened]
    assert pipe.dialer.streams_count == pipe.acceptor.streams_count == 0
    assert pipe.dialer.queued_bytes == 0


def test_a_stream_is_failed_after_its_end(pipe):
    opened = pipe.dialer.open(4, b"")
    pipe.dialer.end(opened)
    pipe.dialer.fail(opened, 9, "enough")
    pipe.settle()
    assert [type(each) for each in events(pipe.acceptor)] == [
        StreamOpened,
        StreamEnded,
        StreamFailed,
    ]
    assert pipe.dialer.streams_count == pipe.acceptor.streams_count == 0


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_is_failed_before_it_was_opened(pipe, begun):
    opened = pipe.dialer.open(4, LARGE)
    if begun:
        pipe.send(True, 20_000)
    pipe.dialer.fail(opened, 9, "enough")
    pipe.settle()
    assert events(pipe.acceptor) == events(pipe.dialer) == []
    assert pipe.dialer.streams_count == pipe.acceptor.streams_count == 0


def test_close_says_why_and_nothing_is_read_after_it(pipe):
    pipe.dialer.close(CloseReason.GOING_AWAY, "bye")
    pipe.dialer.request(1, b"")
    pipe.settle()
    assert events(pipe.acceptor) == [LinkClosed(CloseReason.GOING_AWAY, "bye")]


# -- hostile frames


def raw(kind, stream=0, payload=b"", size=None, code=0):
    size = len(payload) if size is None else size
    frame = LinkFrame(len(payload), kind, code, stream, size)
    return encode(frame, [payload], checked=True) + payload


REQUEST, OPEN, MESSAGE = FrameKind.REQUEST, FrameKind.OPEN, FrameKind.MESSAGE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (raw(REQUEST, 1, b"x", size=LIMITS.message_bytes_max + 1), CloseReason.TOO_LARGE),
        (raw(REQUEST, 1, b"xy", size=1), CloseReason.MALFORMED),
        (raw(REQUEST, 1, b"", size=1), CloseReason.MALFORMED),
        (raw(REQUEST, 0, b"x"), CloseReason.OUT_OF_ORDER),
        (raw(REQUEST, 1) * 2, CloseReason.OUT_OF_ORDER),
        (raw(REQUEST, 1) + raw(OPEN, 1), CloseReason.OUT_OF_ORDER),
        (raw(REQUEST, 1, b"x", size=9) + raw(REQUEST, 1), CloseReason.OUT_OF_ORDER),
        (b"".join(raw(REQUEST, i) for i in range(1, 9)), CloseReason.TOO_MANY),
        (b"".join(raw(OPEN, i) for i in range(1, 9)), CloseReason.TOO_MANY),
        (b"".join(raw(REQUEST, i, b"x", size=9) for i in range(1, 4)), CloseReason.TOO_MANY),
        (raw(FrameKind.ANSWER, 1), CloseReason.OUT_OF_ORDER),
        (raw(FrameKind.ONE_WAY, 1), CloseReason.OUT_OF_ORDER),
        (raw(FrameKind.MORE, 1, b"x"), CloseReason.OUT_OF_ORDER),
        (raw(REQUEST, 1, b"x", size=2) + raw(FrameKind.MORE, 1, b"xy"), CloseReason.MALFORMED),
        (raw(REQUEST, 1, b"x", size=2) + raw(FrameKind.MORE, 1, b""), CloseReason.MALFORMED),
        (raw(MESSAGE, 1, b"x"), CloseReason.OUT_OF_ORDER),
        (raw(OPEN, 1) + raw(FrameKind.END, 1) * 2, CloseReason.OUT_OF_ORDER),
        (raw(OPEN, 1) + raw(FrameKind.END, 1) + raw(MESSAGE, 1), CloseReason.OUT_OF_ORDER),
        (raw(FrameKind.END, 1), CloseReason.OUT_OF_ORDER),
        (
            raw(OPEN, 1) + raw(MESSAGE, 1, b"x", size=9) + raw(FrameKind.END, 1),
            CloseReason.OUT_OF_ORDER,
        ),
        (raw(OPEN, 1) + raw(MESSAGE, 1, b"x" * 10_000) * 9, CloseReason.TOO_MANY),
        (raw(OPEN, 1) + raw(FrameKind.CREDIT, 1, size=1), CloseReason.OUT_OF_ORDER),
        (raw(FrameKind.PING, 0, b"x"), CloseReason.MALFORMED),
        (raw(FrameKind.PONG, 0, b"x" * 9), CloseReason.MALFORMED),
        (raw(FrameKind.CLOSE, 0, b"x" * 600), CloseReason.TOO_LARGE),
    ],
)
def test_what_must_not_come_closes_the_link(pipe, data, reason):
    with pytest.raises(LinkProtocolError) as caught:
        feed(pipe.acceptor, data)
    assert caught.value.reason is reason


@pytest.mark.parametrize("kind", [REQUEST, OPEN, FrameKind.ONE_WAY, FrameKind.CANCEL])
def test_an_acceptor_begins_nothing(pipe, kind):
    with pytest.raises(LinkProtocolError):
        feed(pipe.dialer, raw(kind, 0 if kind is FrameKind.ONE_WAY else 1))


FRAMES = st.tuples(
    st.sampled_from(FrameKind),
    st.integers(0, 4),
    st.sampled_from([b"", b"x", b"y" * 8, b"z" * 20_000]),
    st.sampled_from([None, 0, 1, 8, 30_000, 2**32 - 1]),
)


@given(frames=st.lists(FRAMES, max_size=25), is_dialer=st.booleans())
def test_any_frames_are_a_protocol_error_at_most(frames, is_dialer):
    pipe = Pipe()
    tested = pipe.dialer if is_dialer else pipe.acceptor
    if is_dialer:
        tested.request(1, b"")
        tested.open(1, b"")
    try:
        for kind, stream, payload, size in frames:
            feed(tested, raw(kind, stream, payload, size))
            tested.take(1 << 20)
    except LinkProtocolError:
        pass
    held = sum(len(each.whole or b"") for each in tested._partials.values())
    assert held <= LIMITS.interleaved_max * LIMITS.message_bytes_max
    assert tested.requests_count <= LIMITS.requests_max
    assert tested.streams_count <= LIMITS.streams_max
