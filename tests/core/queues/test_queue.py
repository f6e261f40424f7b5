"""A queue between a log that commits on demand and consumers that only count."""

import pytest

from leveret.core.queues import delivering
from leveret.core.queues.queue import Queue
from leveret.core.statistics.series import BASIC, Series
from leveret.errors import StorageError
from leveret.ports import Durability
from leveret.ports.definitions import QueueDefinition
from tests.support.queue_bench import PLAIN, Bench, Consumer, Waiter


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    assert bench.reported == []


@pytest.fixture
def slow():
    """Commits on demand."""
    return Bench(Durability.FSYNC)


def offsets(*numbers, redelivered=False):
    return [(number, redelivered) for number in numbers]


# -- waiting for commits


def test_a_waiter_of_nothing_is_done_at_once(bench):
    waiter = Waiter()
    bench.queue.await_commit(waiter)
    assert waiter.fates == [False]


def test_a_waiter_waits_for_the_turn(bench):
    waiter = Waiter()
    bench.publish()
    bench.queue.await_commit(waiter)
    assert waiter.fates == []
    bench.run()
    assert waiter.fates == [False]


def test_waiters_wait_for_the_offsets_before_them(slow):
    first, second, third = Waiter(), Waiter(), Waiter()
    slow.publish()
    slow.queue.await_commit(first)
    slow.run()
    slow.publish()
    slow.queue.await_commit(second)
    slow.log.commit()
    assert (first.fates, second.fates) == ([False], [])
    slow.run()
    slow.queue.await_commit(third)
    assert (second.fates, third.fates) == ([], [])
    slow.log.commit()
    assert (second.fates, third.fates) == ([False], [False])


def test_a_failed_append_is_told_and_reported(bench):
    waiter, later = Waiter(), Waiter()
    bench.log.append_error = StorageError("full")
    bench.publish()
    bench.queue.await_commit(waiter)
    bench.run()
    assert waiter.fates == [True]
    assert [str(error) for _, error in bench.reported] == ["full"]
    bench.reported.clear()
    bench.log.append_error = None
    bench.publish()
    bench.queue.await_commit(later)
    bench.run()
    assert later.fates == [False]
    assert bench.queue.message_count == 1


def test_a_failed_flush_takes_back_what_was_not_shown(slow):
    waiter = Waiter()
    slow.store(2)
    slow.log.commit()
    slow.store(3)
    slow.queue.await_commit(waiter)
    slow.log.fail(StorageError("gone"))
    assert waiter.fates == [True]
    assert slow.queue.message_count == 2
    assert slow.consume().got == offsets(0, 1)
    slow.store()
    slow.log.commit()
    slow.run()
    assert slow.queue.state.leased_count == 3


def test_what_is_not_committed_is_counted_and_not_shown(slow):
    consumer = slow.consume()
    slow.store(3)
    slow.publish(2)
    assert slow.queue.message_count == 5
    assert not slow.queue.is_caught_up
    slow.run()
    assert consumer.got == []
    slow.log.commit()
    slow.run()  # writes the other two
    assert consumer.got == offsets(0, 1, 2)
    assert not slow.queue.is_caught_up
    slow.log.commit()
    slow.run()
    assert consumer.got == offsets(*range(5))
    assert slow.queue.is_caught_up


# -- delivering


def test_deliveries_follow_the_log(bench):
    consumer = bench.consume()
    bench.store(3)
    bench.queue.wake()
    bench.run()
    assert consumer.got == offsets(0, 1, 2)
    assert bench.queue.state.leased_count == 3


def test_what_needs_no_ack_is_settled_with_the_delivery(bench):
    bench.store(3)
    bench.consume(no_ack=True)
    assert bench.queue.state.leased_count == 0
    assert list(bench.log.settled) == [(0, 3)]


def test_a_consumer_that_takes_a_part_gets_the_rest_next(bench):
    bench.store(10)
    assert bench.consume(at_once=3).got == offsets(*range(10))


def test_returned_records_are_redelivered_in_their_place(bench):
    bench.store(4)
    consumer = bench.consume(limit=3)
    bench.queue.return_([(0, 1), (2, 3)])
    consumer.got.clear()
    consumer.limit = 10
    bench.queue.wake(consumer)
    bench.run()
    assert consumer.got == [(0, True), (2, True), (3, False)]


def test_nothing_is_delivered_without_room(bench):
    bench.store(3)
    consumer = bench.consume(limit=0)
    assert consumer.got == []
    consumer.limit = 2
    bench.queue.wake()
    bench.run()
    assert consumer.got == offsets(0, 1)


def test_a_removed_consumer_gets_nothing_more(bench):
    consumer = bench.consume()
    bench.queue.remove_consumer(consumer)
    bench.store()
    bench.run()
    assert consumer.got == []
    assert bench.queue.consumer_count == 0


def test_one_turn_delivers_its_share(bench, monkeypatch):
    monkeypatch.setattr(delivering, "PUMP_RECORDS_MAX", 10)
    bench.store(25)
    consumer = Consumer(at_once=5)
    bench.queue.add_consumer(consumer)
    assert bench.queue.pump()
    assert len(consumer.got) == 10
    bench.run()
    assert len(consumer.got) == 25


@pytest.mark.parametrize("name", ["flush", "pump", "next_offer", "get", "message_count"])
def test_a_queue_that_is_not_set_up_is_an_error_and_no_crash(name):
    queue = Queue.__new__(Queue)
    with pytest.raises(AttributeError):
        getattr(queue, name)()


# -- reading


def test_what_is_not_at_hand_is_fetched(bench):
    bench.store(3)
    bench.log.at_hand = False
    assert bench.consume().got == offsets(0, 1, 2)


def test_a_fetch_that_fails_is_reported_and_tried_again_when_touched(bench):
    bench.store(3)
    bench.log.at_hand = False
    bench.log.fetch_error = StorageError("bad sector")
    consumer = bench.consume()
    assert consumer.got == []
    assert [str(error) for _, error in bench.reported] == ["bad sector"]
    bench.reported.clear()
    bench.log.fetch_error = None
    bench.queue.wake()
    bench.run()
    assert consumer.got == offsets(0, 1, 2)


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_hole_in_the_log_is_passed_over_and_said(bench, at_hand):
    bench.store()
    bench.store()
    bench.log.batches.pop(0)
    bench.log.at_hand = at_hand
    assert bench.consume().got == offsets(1)
    assert bench.lost() == ["messages lost: 1 (at offset 0)"]


@pytest.mark.parametrize("at_hand", [True, False])
def test_damage_is_set_aside_and_the_rest_delivered_in_order(bench, at_hand):
    bench.log.at_hand = at_hand
    for _ in range(6):
        bench.store(2)
    bench.log.damaged = {2, 6, 8}
    assert bench.consume().got == offsets(0, 1, 4, 5, 10, 11)
    assert list(bench.log.settled) == [(2, 4), (6, 10)]
    assert bench.queue.message_count == 0
    assert "2.damaged-1, 6.damaged-1, 8.damaged-1" in str(bench.reported[0][1])
    assert bench.lost() == [
        "messages lost: 6 (at offset 2-3, 6-9)",
    ]


def test_nothing_is_delivered_while_damage_is_set_aside(bench):
    for _ in range(4):
        bench.store()
    bench.log.damaged = {1}
    bench.log.aside.is_open = False
    consumer = Consumer()
    bench.queue.add_consumer(consumer)
    bench.turns()
    (task,) = bench.tasks
    bench.tasks.clear()
    task.send(None)
    bench.store()
    bench.turns()
    assert consumer.got == offsets(0)
    bench.log.aside.open()
    with pytest.raises(StopIteration):
        task.send(None)
    bench.run()
    assert consumer.got == offsets(0, 2, 3, 4)
    assert len(bench.lost()) == 1


def test_what_was_delivered_of_a_damaged_batch_is_lost_when_it_comes_back(bench):
    bench.store(3)
    bench.store(1)
    consumer = bench.consume(limit=2)
    bench.log.damaged = {0}
    bench.queue.reader.clear()
    consumer.limit = 10
    bench.queue.wake()
    bench.run()
    assert consumer.got == offsets(0, 1, 3)
    assert list(bench.log.settled) == [(2, 3)]
    bench.queue.settle([(0, 1)])
    bench.queue.return_([(1, 2)])
    bench.queue.reader.clear()
    bench.run()
    assert list(bench.log.settled) == [(0, 3)]
    assert bench.lost() == [
        "messages lost: 1 (at offset 2)",
        "messages lost: 1 (at offset 1)",
    ]


def test_damage_that_cannot_be_set_aside_is_said_once_and_tried_again(bench):
    bench.store(2)
    bench.log.damaged = {0}
    refuse = StorageError("no room")

    async def set_aside(offset):
        raise refuse

    able, bench.log.set_aside = bench.log.set_aside, set_aside
    consumer = bench.consume()
    for _ in range(3):
        bench.queue.wake()
        bench.run()
    assert [error for _, error in bench.reported] == [refuse]
    assert not bench.log.settled
    bench.reported.clear()
    bench.log.set_aside = able
    bench.queue.wake()
    bench.store(1)
    bench.run()
    assert consumer.got == offsets(2)
    assert len(bench.lost()) == 1


def test_a_queue_deleted_while_damage_is_set_aside_says_nothing(bench):
    bench.store(2)
    bench.log.damaged = {0}
    bench.queue.add_consumer(Consumer())
    bench.turns()
    bench.queue.mark_deleted()
    bench.run()
    assert not bench.log.settled


def test_a_record_that_is_got_and_cannot_be_read_is_lost(bench):
    bench.store(2)
    bench.store(1)
    bench.log.damaged = {0}
    assert bench.queue.get() == (0, False)
    assert bench.queue.batch_at_hand(0) is None
    with pytest.raises(StopIteration) as answer:
        bench.queue.record_batch(0).send(None)
    assert answer.value.value is None
    assert bench.queue.get() == (2, False)
    assert list(bench.log.settled) == [(0, 2)]
    assert bench.lost() == ["messages lost: 2 (at offset 0-1)"]


def test_get_leases_the_oldest(bench):
    assert bench.queue.get() is None
    bench.store(2)
    assert bench.queue.get() == (0, False)
    assert bench.queue.batch_at_hand(0).base_offset == 0
    bench.queue.return_([(0, 1)])
    assert bench.queue.get() == (0, True)


async def test_a_record_is_read_from_the_device_where_it_must(bench):
    bench.store()
    bench.store()
    bench.log.at_hand = False
    assert bench.queue.batch_at_hand(1) is None
    assert (await bench.queue.record_batch(1)).base_offset == 1
    assert bench.queue.batch_at_hand(1).base_offset == 1


# -- purge and the end


def test_purge_takes_what_is_ready(bench):
    bench.store(5)
    bench.queue.get()
    assert bench.queue.purge() == 4
    assert bench.queue.message_count == 0
    bench.queue.return_([(0, 1)])
    assert bench.queue.message_count == 1


def test_a_deleted_queue_tells_everybody_once(slow):
    waiting, uncommitted, late = Waiter(), Waiter(), Waiter()
    slow.store()
    slow.queue.await_commit(uncommitted)
    slow.publish()
    slow.queue.await_commit(waiting)
    consumer = slow.consume()
    slow.publish()
    slow.queue.mark_deleted()
    assert consumer.gone
    assert uncommitted.fates == waiting.fates == [False]
    slow.queue.await_commit(late)
    assert late.fates == [False]
    slow.log.commit()
    slow.run()
    assert consumer.got == []
    assert uncommitted.fates == waiting.fates == [False]


def test_a_deleted_queue_takes_everything_and_does_nothing(bench):
    bench.store(3)
    bench.consume(limit=2)
    bench.queue.mark_deleted()
    bench.queue.settle([(0, 1)])
    bench.queue.return_([(1, 2)])
    bench.queue.wake()
    assert bench.queue.get() is None
    assert bench.queue.purge() == 0
    bench.publish()
    bench.queue.flush()
    bench.run()
    assert list(bench.log.settled) == []
    assert bench.log.end == 3


def test_a_fetch_that_the_deletion_overtook_is_no_trouble(bench):
    bench.store()
    bench.log.at_hand = False
    bench.queue.add_consumer(Consumer())
    bench.scheduled.pop()()
    bench.queue.mark_deleted()
    bench.log.fetch_error = StorageError("closed")
    bench.run()
    assert bench.reported == []


def test_what_was_delivered_by_an_earlier_run_is_redelivered(bench):
    bench.store(4)
    bench.log.redelivered_stop = 2
    bench.log.settled.add(0, 1)
    reopened = Queue(QueueDefinition("/", "q"), PLAIN, None, bench.log, bench.services)
    consumer = Consumer()
    reopened.add_consumer(consumer)
    bench.run()
    assert consumer.got == [(1, True), (2, False), (3, False)]


# -- what it takes


def test_its_memory_grows_with_its_messages(bench):
    queue = bench.queue
    empty = queue.held_bytes
    bench.store(size=10_000)
    bench.run()
    one = queue.held_bytes
    assert 10_000 < one - empty < 11_000
    bench.store(size=10_000)
    bench.run()
    assert 10_000 < queue.held_bytes - one < 11_000


def test_its_memory_grows_with_the_holes_in_what_is_settled(bench):
    queue = bench.queue
    consumer = Consumer()
    queue.add_consumer(consumer)
    bench.store(1_000)
    bench.run()
    before = queue.held_bytes
    queue.settle([(offset, offset + 1) for offset in range(0, 1_000, 2)])
    assert queue.held_bytes - before >= 2 * 500 * 16  # leased, and settled in the log


def test_its_memory_grows_with_its_history(bench):
    queue = bench.queue
    before = queue.held_bytes
    series = queue.counters.series = Series(BASIC)
    for i in range(100):
        series.add(1_700_000_000_000 + i * 5_000, {"publish": i})
    assert queue.held_bytes - before >= 2 * 8 * 100


def test_a_publisher_whose_confirm_raises_keeps_nobody_from_his():
    class Broken:
        def done(self, *, failed):
            raise KeyError("a bug")

    bench = Bench(Durability.FSYNC)
    heard = Waiter()
    bench.publish()
    for waiter in (Broken(), heard):
        bench.queue.await_commit(waiter)
    bench.queue.flush()
    later = Waiter()
    bench.queue.await_commit(later)
    bench.log.commit()
    assert (heard.fates, later.fates) == ([False], [False])
    assert [str(error) for _, error in bench.reported] == ["'a bug'"]
