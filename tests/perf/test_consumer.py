import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from leveret.perf.consumer import ACK_EACH, ACK_EVERY, ACK_READ, LoadConsumer
from leveret.perf.verifier import Verifier
from leveret.perf.wire import Link

from .streams import FRAME_BYTES_MAX, content, delivery, frames_of, make_board, make_counters


def make_consumer(ack_every=0, ack_frames=ACK_EVERY, **options):
    board = make_board()
    link = Link(-1, FRAME_BYTES_MAX)
    return (
        LoadConsumer(link, 1, make_counters(board), ack_every, ack_frames, **options),
        link,
        board,
    )


def acks_in(data):
    return [(value.delivery_tag, value.multiple) for _, value in frames_of(data)]


def stamped(sequence, number=0, publisher=0, at_ns=0):
    return struct.pack("=QQ", at_ns, publisher << 52 | number << 32 | sequence)


def deliveries(count):
    return b"".join(delivery(tag, b"x") for tag in range(1, count + 1))


@given(st.integers(1, 30), st.integers(1, 10))
def test_each_message_gets_its_own_ack(count, every):
    consumer, link, _ = make_consumer(every, ACK_EACH)
    link.feed(deliveries(count))
    consumer_acks = acks_in(link.take_unsent())
    assert consumer_acks == [(tag, False) for tag in range(1, count - count % every + 1)]
    consumer.settle()
    assert acks_in(link.take_unsent()) == ([(count, True)] if count % every else [])


@given(st.integers(1, 30), st.integers(1, 10))
def test_every_nth_message_acks_all_before_it(count, every):
    _consumer, link, _ = make_consumer(every, ACK_EVERY)
    link.feed(deliveries(count))
    assert acks_in(link.take_unsent()) == [(tag, True) for tag in range(every, count + 1, every)]


def test_one_read_gets_one_ack():
    _consumer, link, _ = make_consumer(3, ACK_READ)
    link.feed(delivery(1, b"x") + delivery(2, b"x"))
    assert acks_in(link.take_unsent()) == []
    link.feed(delivery(3, b"x") + delivery(4, b"x") + delivery(5, b"x"))
    assert acks_in(link.take_unsent()) == [(5, True)]


@pytest.mark.parametrize(
    ("frames", "told"), [(ACK_EACH, [(1, False), (2, False)]), (ACK_READ, [(2, True)])]
)
def test_what_is_rejected_is_not_requeued(frames, told):
    _consumer, link, _ = make_consumer(1, frames, reject=True)
    link.feed(deliveries(2))
    nacks = [method for _channel, method in frames_of(link.take_unsent())]
    assert {(method.name, method.requeue) for method in nacks} == {("Basic.Nack", False)}
    assert [(method.delivery_tag, method.multiple) for method in nacks] == told


def test_no_ack_means_none():
    consumer, link, _ = make_consumer()
    link.feed(deliveries(5))
    consumer.settle()
    assert link.take_unsent() == b""


def test_acks_name_the_consumers_channel():
    link, board = Link(-1, FRAME_BYTES_MAX), make_board()
    LoadConsumer(link, 300, make_counters(board), 1, ACK_EACH)
    link.feed(delivery(1, b"x", channel=300))
    assert [channel for channel, _ in frames_of(link.take_unsent())] == [300]


def test_latency_is_from_the_stamp_to_the_read():
    consumer, link, _ = make_consumer()
    link.feed(delivery(1, stamped(0, at_ns=time.monotonic_ns() - 5_000_000)))
    link.feed(delivery(2, b"shorter"))
    link.feed(delivery(3, stamped(1, at_ns=time.monotonic_ns() + 10**12)))
    assert consumer.latency.count == 2
    assert consumer.latency.maximum >= 5_000_000
    assert consumer.latency.minimum == 0  # a clock that lies does not make a latency of centuries


def test_two_channels_of_one_link_do_not_mix():
    link, board = Link(-1, FRAME_BYTES_MAX), make_board()
    counters = make_counters(board)
    first = LoadConsumer(link, 1, counters, 0, ACK_EVERY)
    second = LoadConsumer(link, 2, counters, 0, ACK_EVERY)
    link.feed(delivery(1, b"x") + delivery(1, b"y" * 5000, channel=2) + delivery(2, b"z"))
    assert (first.consumed, second.consumed) == (2, 1)


def test_fanout_is_verified_queue_by_queue():
    verifier = Verifier(1, 1, 11)
    _consumer, link, _ = make_consumer(verifier=verifier, slot_from_tag=True)
    for queue in (0, 3, 10):
        link.feed(delivery(1, stamped(0), consumer_tag=str(queue)))
    assert verifier.received() == {0: [(0, 1)], 3: [(0, 1)], 10: [(0, 1)]}
    assert verifier.duplicates == 0


def get_ok(tag, payload):
    return frame.marshal(commands.Basic.GetOk(tag, False, "", "q", 0), 1) + content(payload)


def test_get_asks_for_the_next_when_one_has_come():
    gets = [frame.marshal(commands.Basic.Get(queue=name, no_ack=False), 1) for name in "ab"]
    consumer, link, board = make_consumer(1, ACK_EACH, gets=gets, quota=3)
    asked = []

    def sent():
        frames = [value for _, value in frames_of(link.take_unsent())]
        asked.extend(value.queue for value in frames if isinstance(value, commands.Basic.Get))
        return [type(value).__name__ for value in frames]

    consumer.ask()
    consumer.ask()  # one is unanswered
    assert sent() == ["Get"]
    link.feed(get_ok(1, stamped(0)))
    assert sent() == ["Ack", "Get"]
    link.feed(frame.marshal(commands.Basic.GetEmpty(), 1))
    assert sent() == []
    assert consumer.idle
    consumer.ask()
    assert sent() == ["Get"]
    link.feed(get_ok(2, b""))
    sent()
    link.feed(get_ok(3, b"x"))
    assert sent() == ["Ack"]
    consumer.ask()  # the quota is reached
    assert sent() == []
    assert (board.totals(1).consumed, board.totals(1).empty) == (3, 1)
    assert len(set(asked)) == 2


@pytest.mark.parametrize("size", [0, 1, 16, FRAME_BYTES_MAX - 8, FRAME_BYTES_MAX - 7, 20_000])
def test_bodies_of_any_size_count_once(size):
    consumer, link, _ = make_consumer()
    link.feed(delivery(1, bytes(size)))
    assert consumer.consumed == 1
