"""Delivery of offsets that lie apart: as with priorities, and where some of a backlog came back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.settings.queue_settings import QueueSettings
from tests.support.queue_bench import Bench, Consumer

PRIORITIES = QueueSettings(max_priority=5)


def store(bench, *priorities, **properties):
    """One batch of messages with these priorities."""
    for priority in priorities:
        bench.publish(priority=priority, **properties)
    bench.queue.flush()


def numbers(consumer):
    return [offset for offset, _ in consumer.got]


@pytest.fixture
def bench():
    bench = Bench(settings=PRIORITIES)
    yield bench
    assert bench.reported == []


def test_what_lies_apart_is_sent_at_once(bench):
    store(bench, 1, 2, 1, 2, 1, 2)
    consumer = bench.consume()
    assert consumer.runs == [[(1, 2), (3, 4), (5, 6)], [(0, 1), (2, 3), (4, 5)]]
    assert numbers(consumer) == [1, 3, 5, 0, 2, 4]
    assert bench.queue.leased_count == 6


def test_one_run_is_sent_as_one(bench):
    store(bench, 1, 1, 1)
    assert bench.consume().runs == []


def test_no_more_is_sent_than_there_is_room_for(bench):
    store(bench, 2, 1, 2, 1, 2)
    consumer = bench.consume(limit=2)
    assert numbers(consumer) == [0, 2]
    consumer.limit = 4
    bench.queue.wake(consumer)
    bench.run()
    assert numbers(consumer) == [0, 2, 4, 1]
    assert bench.ready == 1


def test_what_a_full_socket_did_not_take_is_sent_next(bench):
    store(bench, 2, 1, 2, 1, 2, 2)
    consumer = bench.consume(at_once=1)
    assert numbers(consumer) == [0, 2, 4, 5, 1, 3]


def test_what_needs_no_ack_is_settled(bench):
    store(bench, 2, 1, 2)
    bench.consume(no_ack=True)
    assert bench.log.settled.count == 3
    assert bench.queue.leased_count == 0


def test_consumers_share_what_lies_apart(bench):
    store(bench, *[2, 1] * 300)
    consumers = [Consumer(), Consumer()]
    for consumer in consumers:
        bench.queue.add_consumer(consumer)
    bench.run()
    first, second = map(numbers, consumers)
    assert sorted(first + second) == list(range(600))
    assert min(len(first), len(second)) > 200


def test_what_has_expired_in_between_is_not_sent():
    bench = Bench(settings=QueueSettings(max_priority=5, dead_letter_exchange="dead"))
    store(bench, 2, 1)
    store(bench, 2, expiration="10")
    store(bench, 2, 1)
    bench.clock.now += 50
    consumer = bench.consume()
    assert numbers(consumer) == [0, 3, 1, 4]
    assert bench.dead == [(2, "expired")]
    assert bench.ready == 0


def test_what_all_has_expired_is_not_sent():
    bench = Bench(settings=QueueSettings(max_priority=5, dead_letter_exchange="dead"))
    store(bench, 2, 1, 2, 1, expiration="10")
    bench.clock.now += 50
    assert bench.consume().got == []
    assert sorted(bench.dead) == [(offset, "expired") for offset in range(4)]


def test_what_came_back_here_and_there_is_sent_again_at_once():
    bench = Bench()
    bench.store(6)
    first = bench.consume()
    bench.queue.remove_consumer(first)
    bench.queue.return_([(0, 1), (2, 3), (5, 6)])
    bench.store(2)
    second = bench.consume()
    assert second.runs == [[(0, 1), (2, 3), (5, 6)]]
    assert second.got == [(0, True), (2, True), (5, True), (6, False), (7, False)]


@pytest.mark.parametrize("at_hand", [True, False])
def test_runs_end_where_the_batches_that_were_read_do(bench, at_hand):
    bench.log.at_hand = at_hand
    for _ in range(8):
        store(bench, 2, 1, 2, 1, size=100_000)
    consumer = bench.consume()
    assert numbers(consumer) == [*range(0, 32, 2), *range(1, 32, 2)]
    assert len(consumer.runs) > 2


@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8), max_size=6
    ),
    room=st.integers(1, 7),
    at_once=st.integers(1, 7),
    settles=st.booleans(),
)
def test_all_that_lives_is_sent_once_and_in_order(batches, room, at_once, settles):
    """`batches` say of each message its priority, and whether it expires before it is sent."""
    bench = Bench(settings=QueueSettings(max_priority=3, dead_letter_exchange="dead"))
    for batch in batches:
        for priority, expires in batch:
            bench.publish(priority=priority, **({"expiration": "10"} if expires else {}))
        bench.queue.flush()
    bench.clock.now += 50
    consumer = bench.consume(limit=room, at_once=at_once, no_ack=not settles)
    while bench.ready:
        before = len(consumer.got)
        consumer.limit += room
        if settles:
            bench.queue.settle([(offset, offset + 1) for offset in numbers(consumer)[-room:]])
        bench.queue.wake(consumer)
        bench.run()
        assert len(consumer.got) > before or not bench.ready
    messages = [message for batch in batches for message in batch]
    alive = [offset for offset, (_, expires) in enumerate(messages) if not expires]
    assert numbers(consumer) == sorted(alive, key=lambda offset: (-messages[offset][0], offset))
    assert len(bench.dead) == len(messages) - len(alive)
