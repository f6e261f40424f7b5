"""Lifetimes and limits of queues, with time that passes when a test says so."""

import pytest

from leveret.core.logs.window import batch_of
from leveret.core.queues.expiry_and_limits import ExpiryAndLimits
from leveret.core.queues.reading import QueueReader
from leveret.core.settings.queue_settings import Overflow, QueueSettings
from leveret.errors import StorageError
from leveret.ports import Durability
from tests.support.queue_bench import Bench, Consumer, Waiter

DEAD_LETTERS = {"dead_letter_exchange": "dlx"}


class Publisher:
    def __init__(self):
        self.refusals = []

    def refused(self, first, stop):
        self.refusals += range(first, stop)


def bench_of(durability=Durability.OS, **settings):
    return Bench(durability, QueueSettings(**settings))


def got(consumer):
    return [offset for offset, _ in consumer.got]


# -- lifetimes


@pytest.mark.covers("B-111", "B-145")
def test_messages_of_a_queue_expire_together_and_not_before():
    bench = bench_of(message_ttl_ms=100, **DEAD_LETTERS)
    bench.store(3)
    bench.run()
    bench.advance(60)
    bench.store(2)
    bench.run()
    bench.advance(39)
    assert (bench.ready, bench.dead) == (5, [])
    bench.advance(1)
    assert (bench.ready, bench.dead) == (2, [(0, "expired"), (1, "expired"), (2, "expired")])
    bench.advance(60)
    assert bench.ready == 0
    assert list(bench.log.settled) == [(0, 5)]


def test_many_messages_that_expire_at_one_moment_do_so_in_turns():
    bench = bench_of(**DEAD_LETTERS)
    for _ in range(600):
        bench.store(expiration="1000")
        bench.store()
    bench.run()
    bench.advance(1000)
    bench.run()
    assert bench.ready == 600
    assert bench.dead == [(2 * number, "expired") for number in range(600)]


@pytest.mark.covers("B-111", "C-204")
def test_a_short_life_ends_on_time_behind_a_long_one():
    bench = bench_of(**DEAD_LETTERS)
    bench.store(expiration="3600000")
    bench.store(expiration="1000")
    bench.store()
    bench.run()
    bench.advance(1000)
    assert bench.dead == [(1, "expired")]
    assert bench.ready == 2
    bench.advance(3_599_000)
    assert bench.dead[1:] == [(0, "expired")]
    bench.advance(10**9)
    assert bench.ready == 1


@pytest.mark.covers("B-111")
@pytest.mark.parametrize(("ttl", "expiration"), [(50, "70"), (70, "50")])
def test_of_two_lifetimes_the_shorter_counts(ttl, expiration):
    bench = bench_of(message_ttl_ms=ttl)
    bench.store(expiration=expiration)
    bench.run()
    bench.advance(49)
    assert bench.ready == 1
    bench.advance(1)
    assert bench.ready == 0


@pytest.mark.covers("B-111")
@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
def test_who_lives_for_no_time_is_delivered_at_once_or_not_at_all(durability):
    bench = bench_of(durability)
    consumer = bench.consume(limit=1)
    bench.store(3, expiration="0")
    bench.clock.advance(5)
    bench.log.commit()
    bench.run()
    assert got(consumer) == [0]
    assert bench.queue.message_count == 0


def test_what_expired_is_not_delivered_even_before_its_timer():
    bench = bench_of(message_ttl_ms=100)
    bench.store(2)
    bench.store(1, expiration="5")
    bench.run()
    bench.clock.now += 100  # the clock jumps: timers come late
    bench.store(1)
    consumer = bench.consume()
    assert got(consumer) == [3]
    assert bench.queue.get() is None


def test_a_clock_that_jumps_is_noticed_within_a_minute():
    bench = bench_of(message_ttl_ms=10**7)
    bench.store(1)
    bench.run()
    bench.clock.now += 10**7
    bench.advance(60_000)
    assert bench.ready == 0


def test_a_clock_that_is_set_back_expires_nothing_early():
    bench = bench_of(message_ttl_ms=1000)
    bench.store(1)
    bench.run()
    bench.clock.now -= 5000
    bench.advance(1000)
    assert bench.ready == 1
    bench.advance(5000)
    assert bench.ready == 0


@pytest.mark.covers("B-111")
def test_get_passes_over_what_has_expired():
    bench = bench_of(**DEAD_LETTERS)
    bench.store(1, expiration="5")
    bench.store(1)
    bench.clock.now += 5
    assert bench.queue.get() == (1, False)
    assert bench.dead == [(0, "expired")]


@pytest.mark.parametrize("own", [False, True])
def test_what_comes_back_too_late_expires_then(own):
    bench = bench_of(message_ttl_ms=None if own else 10, **DEAD_LETTERS)
    consumer = Consumer(limit=2)
    bench.queue.add_consumer(consumer)
    bench.store(2, **({"expiration": "10"} if own else {}))
    bench.run()
    assert got(consumer) == [0, 1]
    bench.advance(100)
    assert bench.dead == []
    bench.queue.settle([(0, 1)])
    bench.queue.return_([(1, 2)])
    bench.run()
    assert bench.dead == [(1, "expired")]
    assert bench.queue.leased_count == 0


def test_a_lifetime_can_come_and_go():
    bench = bench_of()
    bench.store(1)
    bench.run()
    bench.advance(50)
    bench.queue.reconfigure(QueueSettings(message_ttl_ms=100))
    bench.run()
    bench.advance(49)
    bench.queue.reconfigure(QueueSettings())
    bench.run()
    bench.advance(1000)
    assert bench.ready == 1
    bench.queue.reconfigure(QueueSettings(message_ttl_ms=100))
    bench.run()
    assert bench.ready == 0


@pytest.mark.covers("B-111")
@pytest.mark.parametrize("at_hand", [True, False])
def test_lifetimes_go_on_after_a_restart(at_hand):
    bench = bench_of(**DEAD_LETTERS)
    bench.store(1)
    bench.store(1, expiration="100")
    bench.store(1, expiration="50")
    bench.run()
    bench.log.at_hand = at_hand
    bench.clock.now += 60
    bench.reopen()
    bench.run()
    assert bench.dead == [(2, "expired")]
    bench.advance(60)
    assert bench.dead[1:] == [(1, "expired")]
    assert bench.ready == 1


def test_records_that_were_lost_do_not_let_others_expire():
    bench = bench_of(Durability.FSYNC)
    bench.store(2, expiration="50")
    bench.log.fail(StorageError("gone"))
    bench.store(2)
    bench.log.commit()
    bench.run()
    bench.advance(100)
    assert bench.ready == 2


def test_a_million_lifetimes_cost_memory_only_while_they_last():
    bench = bench_of()
    bench.consume(no_ack=True)
    for number in range(3000):
        bench.store(1, expiration=str(10**6 + number))
        bench.turns()
    assert len(bench.queue.extension(ExpiryAndLimits).expiry._deadlines) < 1100


def test_dead_letters_that_must_be_read_first_keep_their_order_and_are_leased_meanwhile():
    bench = bench_of(message_ttl_ms=10, **DEAD_LETTERS)
    bench.store(2)
    bench.store(3)
    bench.run()
    bench.log.at_hand = False
    bench.clock.advance(10)
    bench.turns()
    bench.run()
    assert bench.dead == [(offset, "expired") for offset in range(5)]
    assert bench.queue.leased_count == 0
    assert list(bench.log.settled) == [(0, 5)]


# -- limits


@pytest.mark.covers("B-144")
def test_the_oldest_go_when_too_many_are_ready():
    bench = bench_of(max_length=10, **DEAD_LETTERS)
    bench.store(1000)
    assert bench.queue.message_count == 10
    assert bench.dead == [(offset, "maxlen") for offset in range(990)]
    assert bench.queue.get() == (990, False)


@pytest.mark.covers("B-144")
def test_only_ready_messages_count():
    bench = bench_of(max_length=2)
    consumer = bench.consume(limit=5)
    bench.store(9)
    bench.run()
    assert got(consumer) == [0, 1, 2, 3, 4]
    assert (bench.ready, bench.queue.leased_count) == (2, 5)
    bench.queue.return_([(0, 1)])
    bench.run()
    assert bench.ready == 2
    assert bench.queue.get() == (7, False)


def test_a_length_of_nothing_is_for_consumers_only():
    bench = bench_of(max_length=0)
    bench.store(2)
    assert bench.ready == 0
    consumer = bench.consume()
    bench.store(2)
    bench.run()
    assert got(consumer) == [2, 3]


def test_a_consumer_whose_socket_is_full_may_have_the_rest_later():
    bench = bench_of(max_length=2)
    consumer = bench.consume(at_once=3)
    consumer.room = 3
    bench.store(8)
    bench.turn.run()
    assert (len(consumer.got), bench.ready) == (3, 5)
    consumer.room = 100
    bench.queue.wake(consumer)
    bench.run()
    assert got(consumer) == list(range(8))


@pytest.mark.covers("B-144")
@pytest.mark.parametrize(
    ("sizes", "left"),
    [([4, 4, 4], 2), ([10], 1), ([11], 0), ([1, 11], 0), ([11, 1], 1), ([5, 5, 10], 1)],
)
def test_bytes_are_those_of_bodies(sizes, left):
    bench = bench_of(max_length_bytes=10)
    for size in sizes:
        bench.publish(size=size)
    bench.queue.flush()
    assert bench.queue.message_count == left


def test_bytes_come_back_with_what_is_returned():
    bench = bench_of(max_length_bytes=10)
    consumer = bench.consume(limit=2)
    bench.store(2, size=8)
    bench.run()
    bench.store(1, size=3)
    assert bench.queue.message_count == 1
    bench.queue.return_([(1, 2)])
    consumer.limit = 0
    bench.run()
    assert bench.queue.state._ledger.ready_in(0, 9) == [(2, 3)]
    bench.queue.purge()
    assert bench.queue.state._ledger.ready_bytes == 0
    bench.queue.settle([(0, 1)])
    assert bench.queue.state.bytes_of(0, 9) == 0


def test_a_limit_of_bytes_can_come_later():
    bench = bench_of()
    bench.store(3, size=4)
    bench.log.settled.add(0, 1)
    bench.queue.state.lose([(0, 1)])
    bench.queue.reconfigure(QueueSettings(max_length_bytes=7))
    bench.run()
    assert bench.queue.state._ledger.ready_in(0, 9) == [(2, 3)]
    bench.queue.reconfigure(QueueSettings(max_length_bytes=3))
    bench.run()
    assert bench.ready == 0
    bench.queue.reconfigure(QueueSettings())
    bench.store(5, size=100)
    bench.run()
    assert bench.ready == 5


def publish_numbered(bench, count, publisher=None, first_tag=1, **options):
    for number in range(count):
        bench.publish(**options)
        if publisher is not None:
            bench.queue.builder.publish_tags.add(
                publisher, first_tag + number, bench.queue.builder.count - 1
            )


@pytest.mark.covers("B-144")
@pytest.mark.parametrize("overflow", [Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX])
def test_what_finds_no_room_is_refused(overflow):
    bench = bench_of(max_length=10, overflow=overflow, **DEAD_LETTERS)
    first, second, waiter = Publisher(), Publisher(), Waiter()
    publish_numbered(bench, 8, first, first_tag=100)
    bench.publish()  # nobody wants to know
    publish_numbered(bench, 3, second)
    publish_numbered(bench, 2, first, first_tag=200)
    bench.queue.await_commit(waiter)
    bench.run()
    assert bench.queue.message_count == 10
    assert (first.refusals, second.refusals) == ([200, 201], [2, 3])
    assert waiter.fates == [False]
    wanted = [(offset, "maxlen") for offset in range(4)]
    assert bench.dead == (wanted if overflow is Overflow.REJECT_PUBLISH_DLX else [])
    publish_numbered(bench, 2, second, first_tag=50)
    bench.queue.await_commit(waiter)
    bench.run()
    assert second.refusals[2:] == [50, 51]
    assert waiter.fates == [False, False]


def test_a_limit_that_comes_later_refuses_nothing_that_came_before():
    bench, waiter = bench_of(), Waiter()
    bench.publish()
    bench.queue.await_commit(waiter)
    bench.queue.reconfigure(QueueSettings(max_length=0, overflow=Overflow.REJECT_PUBLISH))
    bench.run()
    assert (bench.queue.message_count, waiter.fates) == (1, [False])


def test_what_is_not_committed_takes_room_too():
    bench = bench_of(Durability.FSYNC, max_length=3, overflow=Overflow.REJECT_PUBLISH)
    bench.store(2)
    bench.store(2)
    bench.log.commit()
    assert bench.queue.message_count == 3


def test_what_consumers_take_at_once_finds_room():
    bench = bench_of(max_length=3, overflow=Overflow.REJECT_PUBLISH)
    consumer = bench.consume(limit=5)
    bench.store(9)
    bench.run()
    assert (len(consumer.got), bench.ready) == (5, 3)


def test_a_small_message_may_find_room_where_a_large_one_did_not():
    bench = bench_of(max_length_bytes=10, overflow=Overflow.REJECT_PUBLISH)
    for size in (8, 5, 2, 1):
        bench.publish(size=size)
    bench.queue.flush()
    assert bench.queue.message_count == 2
    assert [len(record[6]) for record in bench.log.batches[0].records()] == [8, 2]


def test_limits_hold_after_a_restart():
    bench = bench_of(max_length_bytes=10)
    bench.store(5, size=2)
    bench.run()
    bench.reopen()
    bench.run()
    bench.store(1, size=4)
    assert bench.queue.message_count == 4


# -- queues that nobody uses


@pytest.mark.covers("B-145")
def test_a_queue_that_nobody_uses_goes():
    bench = bench_of(expires_ms=1000)
    bench.advance(999)
    assert bench.queue.get() is None
    bench.advance(999)
    consumer = bench.consume()
    bench.advance(5000)
    bench.queue.remove_consumer(consumer)
    bench.advance(999)
    bench.queue.used()
    bench.advance(999)
    assert bench.unused == []
    bench.advance(1)
    assert bench.unused == [bench.queue]


# -- restarts of queues with priorities


def ranked(**settings):
    return bench_of(max_priority=9, **settings)


def test_a_settled_backlog_counts_for_nothing_after_a_restart():
    bench = ranked(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    bench.consume(no_ack=True)
    bench.store(5)
    bench.run()
    bench.reopen()
    assert bench.queue.message_count == 0
    bench.store(3)
    assert bench.queue.message_count == 2


@pytest.mark.parametrize("at_hand", [True, False])
def test_the_order_of_a_backlog_is_known_before_anything_is_delivered(at_hand):
    bench = ranked(max_length=6, overflow=Overflow.REJECT_PUBLISH)
    bench.consume(limit=2, no_ack=True)
    for priority in (3, 4, 1, 9, 2):
        bench.store(1, priority=priority)
    bench.run()
    bench.log.at_hand = at_hand
    bench.reopen()
    assert bench.queue.message_count == 3
    waiter = Waiter()
    bench.store(4, priority=5)  # while nobody knows yet what was there
    bench.queue.await_commit(waiter)
    assert waiter.fates == []
    assert not bench.queue.is_caught_up
    consumer = Consumer()
    bench.queue.add_consumer(consumer)
    bench.turns()
    assert consumer.got == []
    bench.run()
    assert got(consumer) == [5, 6, 7, 0, 4, 2]
    assert waiter.fates == [False]


def test_a_lifetime_of_an_unused_queue_can_be_shortened():
    bench = bench_of(expires_ms=10**6)
    bench.queue.reconfigure(QueueSettings(expires_ms=1000))
    bench.advance(1000)
    assert bench.unused == [bench.queue]
    bench.unused.clear()
    bench.queue.reconfigure(QueueSettings())
    bench.advance(10**7)
    assert bench.unused == []


def test_bytes_beyond_the_limit_go_however_many_pieces_they_are_in():
    bench = ranked(max_length_bytes=3000)
    for number in range(3000):
        bench.publish(priority=number % 2)
    bench.queue.flush()
    bench.store(1, size=2000)
    assert bench.queue.message_count == 1001


class OneBatchAtATime(QueueReader):
    """A reader that has no more at hand than the batch it was asked for."""

    def read(self, offset):
        return [batch_of(super().read(offset), offset)]


def test_a_consumer_may_take_more_than_was_read_of_what_may_expire():
    """Extensions look at the records that were read: an offer may go on behind them."""
    bench = bench_of(message_ttl_ms=1000)
    for _ in range(100):
        bench.store(1, size=200)
    bench.run()
    queue = bench.queue
    queue.reader = OneBatchAtATime(queue, bench.services, queue.touch, scattered=False)
    consumer = bench.consume(limit=20)
    bench.run()
    assert [offset for offset, _ in consumer.got] == list(range(20))
