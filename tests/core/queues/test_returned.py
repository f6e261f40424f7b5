"""Messages that came back and wait: the list of them, and a queue that delays what it gets back."""

import pytest

from leveret.core.ledgers.sizes import BodySizes
from leveret.core.queues.delayed_requeue import DelayedRequeue
from leveret.core.settings.queue_settings import Overflow, QueueSettings, RetryDelay
from leveret.ports.records import BatchBuilder
from tests.support.queue_bench import Bench, content_header

DELAY = RetryDelay(failed=True, returned=True, min_ms=1000)


def bench_of(**settings):
    return Bench(settings=QueueSettings(retry_delay=DELAY, counts_deliveries=True, **settings))


def got(consumer):
    got, consumer.got[:] = list(consumer.got), []
    return got


# -- the list


def test_who_waits_until_the_same_moment_comes_in_the_old_order():
    delayed = DelayedRequeue()
    for first, due_ms in [(6, 9), (2, 9), (0, 12), (4, 9), (8, 3)]:
        delayed.add(first, first + 1, due_ms)
    assert (delayed.count, delayed.next_ms) == (5, 3)
    assert delayed.take_due(9) == [(8, 9), (2, 3), (4, 5), (6, 7)]
    assert (delayed.count, delayed.next_ms) == (1, 12)
    assert delayed.clear() == [(0, 1)]
    assert (delayed.count, delayed.next_ms) == (0, None)


def test_what_is_weighed_counts_until_it_goes():
    builder, sizes, delayed = BatchBuilder(), BodySizes(), DelayedRequeue()
    for size in (1, 20, 300):
        flags, header = content_header(size)
        builder.add(flags, 0, b"", b"q", header, b"x" * size)
    sizes.index(builder.seal(0))
    delayed.add(0, 1, 5)
    assert delayed.bytes == 0
    delayed.weigh(sizes)
    delayed.add(1, 3, 9)
    assert delayed.bytes == 321
    delayed.take_due(5)
    assert delayed.bytes == 320
    delayed.clear()
    assert delayed.bytes == 0


# -- a queue


@pytest.mark.covers("B-143")
def test_what_waits_holds_nobody_up_and_comes_back():
    bench = bench_of()
    bench.store(3)
    consumer = bench.consume(limit=2)
    bench.queue.return_([(0, 2)])
    consumer.limit = 10
    bench.queue.wake(consumer)
    consumer.got.clear()
    bench.run()
    assert got(consumer) == [(2, False)]
    queue = bench.queue
    assert (queue.message_count, queue.leased_count, queue.delayed_count) == (0, 1, 2)
    bench.advance(999)
    assert got(consumer) == []
    bench.advance(1)
    assert got(consumer) == [(0, True), (1, True)]
    bench.queue.return_([(1, 2)])
    bench.queue.settle([(0, 1)])
    bench.advance(1999)
    assert got(consumer) == []
    bench.advance(1)
    assert got(consumer) == [(1, True)]


@pytest.mark.covers("B-142", "B-143")
def test_after_a_restart_nothing_waits_and_the_count_goes_on():
    bench = bench_of()
    bench.store(2)
    consumer = bench.consume(limit=1)
    bench.queue.remove_consumer(consumer)
    bench.queue.return_([(0, 1)])
    assert bench.ready == 1
    bench.reopen()
    assert (bench.ready, bench.queue.delayed_count) == (2, 0)
    assert bench.consume().got == [(0, True), (1, False)]
    assert bench.queue.state.counts == {0: 1}
    bench.queue.return_([(0, 2)])
    bench.advance(1000)
    assert (bench.ready, bench.queue.delayed_count) == (0, 1)


@pytest.mark.covers("B-143")
@pytest.mark.parametrize(("ttl_ms", "properties"), [(600, {}), (None, {"expiration": "600"})])
def test_what_expires_while_it_waits_is_not_delivered_again(ttl_ms, properties):
    bench = bench_of(message_ttl_ms=ttl_ms, dead_letter_exchange="dlx")
    bench.store(1, **properties)
    consumer = bench.consume()
    bench.queue.return_([(0, 1)])
    consumer.got.clear()
    bench.advance(1000)
    assert (consumer.got, bench.dead) == ([], [(0, "expired")])
    assert list(bench.log.settled) == [(0, 1)]


@pytest.mark.covers("B-143")
@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_what_waits_takes_room(limit):
    bench = bench_of(**limit)
    consumer = bench.consume(limit=2)
    bench.store(2)
    bench.run()
    bench.queue.remove_consumer(consumer)
    bench.queue.return_([(0, 2)])
    bench.store(1)
    bench.run()
    assert (bench.ready, bench.queue.delayed_count) == (0, 2)
    bench.advance(1000)
    assert (bench.ready, bench.queue.delayed_count) == (2, 0)


def test_what_waits_keeps_others_out_where_a_full_queue_refuses():
    bench = bench_of(max_length=1, overflow=Overflow.REJECT_PUBLISH)
    bench.store(1)
    bench.queue.remove_consumer(bench.consume(limit=1))
    bench.queue.return_([(0, 1)])
    bench.store(1)
    assert bench.queue.message_count == 0
    bench.queue.purge()
    bench.store(1)
    assert bench.queue.message_count == 1
    bench.advance(10_000)
    assert (bench.queue.message_count, bench.queue.delayed_count) == (1, 0)


def test_who_waits_goes_on_waiting_when_the_delay_is_taken_away():
    bench = bench_of()
    bench.store(1)
    bench.queue.remove_consumer(bench.consume())
    bench.queue.return_([(0, 1)])
    bench.queue.reconfigure(QueueSettings(counts_deliveries=True))
    assert bench.queue.delayed_count == 1
    bench.advance(1000)
    assert bench.queue.get() == (0, True)
    bench.queue.return_([(0, 1)])
    assert bench.queue.get() == (0, True)


def test_a_deleted_queue_wakes_nobody():
    bench = bench_of()
    bench.store(1)
    bench.queue.remove_consumer(bench.consume())
    bench.queue.return_([(0, 1)])
    bench.queue.mark_deleted()
    bench.advance(1000)
    assert bench.ready == 0
