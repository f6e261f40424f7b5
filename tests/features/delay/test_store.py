"""Delayed-message stores: each record is handed out when it is due, not before, and not twice."""

import pytest

from leveret.errors import StorageError
from leveret.features.delay.store import PendingMessage
from leveret.ports import Durability
from tests.features.delay.bench import START, Bench, Witness


@pytest.fixture
def bench():
    return Bench()


def test_a_record_comes_when_it_is_due(bench):
    offset = bench.add(1500, b"later")
    bench.run()
    assert (bench.store.pending_count, bench.store.next_due_ms) == (1, START + 1500)
    bench.advance(1499)
    assert bench.handed == []
    bench.advance(1)
    waiting = PendingMessage(START + 1500, offset, 1, b"x", b"key", b"head", b"later")
    assert bench.handed == [(START + 1500, waiting)]
    assert (bench.store.pending_count, bench.store.next_due_ms) == (0, None)
    bench.advance(60_000)
    assert offset in bench.log.settled
    assert len(bench.handed) == 1


def test_what_is_past_due_comes_at_once(bench):
    bench.add(-5, b"late")
    bench.add(-1_000_000_000_000_000, b"of another age")
    bench.add(0, b"now")
    bench.run()
    bench.advance(0)
    assert bench.bodies == [b"of another age", b"late", b"now"]


def test_they_come_in_order_of_time_and_those_of_a_millisecond_as_they_were_added(bench):
    for number, delay in enumerate([700, 300, 700, 300, 500, 700]):
        bench.add(delay, b"%d %d" % (delay, number))
        if number % 2:
            bench.run()
    bench.run()
    bench.advance(1000)
    assert bench.bodies == [b"300 1", b"300 3", b"500 4", b"700 0", b"700 2", b"700 5"]


def test_what_is_not_committed_does_not_come():
    bench = Bench(Durability.FSYNC)
    witness = Witness()
    bench.add(10)
    bench.store.await_commit(witness)
    bench.run()
    bench.advance(100)
    assert (bench.handed, witness.heard) == ([], None)
    assert bench.store.pending_count == 1
    bench.log.commit()
    bench.run()
    assert witness.heard
    bench.advance(0)
    assert len(bench.handed) == 1


def test_what_could_not_be_stored_is_forgotten():
    bench = Bench(Durability.FSYNC)
    witness = Witness()
    bench.store.await_commit(witness)
    bench.add(10, b"lost")
    bench.store.await_commit(witness := Witness())
    bench.run()
    bench.log.fail(StorageError("no room"))
    assert witness.heard is False
    assert bench.store.pending_count == 0
    bench.add(50, b"kept")
    bench.run()
    bench.log.commit()
    bench.advance(100)
    assert bench.bodies == [b"kept"]


def test_what_is_gathered_when_a_flush_fails_is_not_stored_elsewhere_than_was_told():
    bench = Bench(Durability.FSYNC)
    bench.add(10, b"lost")
    bench.run()
    told = bench.add(50, b"gathered")
    bench.store.await_commit(witness := Witness())
    bench.log.fail(StorageError("no room"))
    assert witness.heard is False
    assert bench.add(50, b"kept") == told - 1
    bench.run()
    bench.log.commit()
    bench.advance(100)
    assert bench.bodies == [b"kept"]
    assert bench.store.pending_count == 0


def test_a_cancelled_record_never_comes(bench):
    first, second = bench.add(100, b"first"), bench.add(200, b"second")
    assert bench.store.cancel(second)  # before it is written
    bench.run()
    assert bench.store.cancel(first)
    assert not bench.store.cancel(first)
    assert not bench.store.cancel(99)
    assert bench.store.pending_count == 0
    bench.advance(1000)
    assert bench.handed == []
    assert list(bench.log.settled) == [(0, 2)]


def test_a_leased_record_cannot_be_cancelled_and_comes_again_only_after_a_restart(bench):
    bench.settles = False
    offset = bench.add(100)
    bench.run()
    bench.advance(200)
    assert len(bench.handed) == 1
    assert not bench.store.cancel(offset)
    assert bench.store.scan(None, None, 10) == []
    bench.advance(100_000)
    assert len(bench.handed) == 1


def test_scan_tells_what_waits_in_due_order(bench):
    offsets = [bench.add(delay) for delay in (500, 100, 300, 100, 900)]
    bench.run()
    due = [START + delay for delay in (100, 100, 300, 500, 900)]
    found = list(zip(due, (offsets[at] for at in (1, 3, 2, 0, 4)), strict=True))
    assert bench.store.scan(None, None, 10) == found
    assert bench.store.scan(None, None, 2) == found[:2]
    assert bench.store.scan(found[1], None, 2) == found[2:4]
    assert bench.store.scan(found[0], START + 500, 10) == found[1:3]
    bench.store.cancel(offsets[2])
    assert bench.store.scan(found[1], None, 1) == found[3:4]


async def test_waiting_records_can_be_looked_at(bench):
    offset = bench.add(500, b"look")
    bench.run()
    [found] = await bench.store.read([offset, 77])
    assert found == PendingMessage(START + 500, offset, 1, b"x", b"key", b"head", b"look")
    bench.store.cancel(offset)
    assert await bench.store.read([offset]) == []


def test_what_waits_for_long_does_not_keep_what_comes_later_from_being_looked_at(bench):
    """The next look at the index is then an hour away, the wheel reaches half a minute."""
    bench.add(3_600_000, b"far")
    bench.run()
    bench.advance(5000)
    for number in range(20):
        bench.add(5000, b"%d" % number)
        bench.run()
        bench.advance(3000)
    bench.advance(5000)
    assert bench.bodies == [b"%d" % number for number in range(20)]


def test_a_clock_set_forward_makes_due_what_lies_between_once(bench):
    for hours in (1, 2, 30):
        bench.add(hours * 3_600_000, b"%d" % hours)
    bench.run()
    bench.jump(3 * 3_600_000)
    assert bench.bodies == [b"1", b"2"]
    bench.jump(-3 * 3_600_000)
    bench.advance(5 * 3_600_000)
    assert bench.bodies == [b"1", b"2"]
    bench.advance(26 * 3_600_000)
    assert bench.bodies == [b"1", b"2", b"30"]


def test_a_clock_set_back_makes_nothing_early(bench):
    bench.add(1000, b"old")
    bench.run()
    bench.jump(-3_600_000)
    bench.add(5000, b"new")
    bench.run()
    bench.advance(6000)
    assert bench.bodies == [b"new"]
    bench.advance(3_700_000)
    assert bench.bodies == [b"new", b"old"]
    assert all(now >= record.due_ms for now, record in bench.handed)


def test_a_clock_set_back_leaves_nothing_unread(bench):
    bench.add(10_000, b"first")
    bench.run()
    bench.advance(7000)  # it has been read ahead
    bench.jump(-3_600_000)
    bench.add(20_000, b"second")
    bench.run()
    bench.advance(20_000)
    assert [(now - record.due_ms, record.body) for now, record in bench.handed] == [(0, b"second")]


def test_what_a_device_must_give_is_waited_for(bench):
    bench.log.at_hand = False
    bench.log.fetch_error = StorageError("later")
    bench.add(100)
    bench.run()
    bench.advance(200)
    assert bench.handed == []
    assert len(bench.reported) == 1
    bench.log.fetch_error = None
    bench.advance(2000)
    assert len(bench.handed) == 1


def test_lost_records_are_said_and_hold_up_nothing(bench):
    bench.log.damaged = {0}
    bench.add(100, b"lost")
    bench.run()
    bench.add(100, b"kept")
    bench.run()
    bench.advance(200)
    assert bench.bodies == [b"kept"]
    assert "messages lost: 1" in str(bench.reported[0])
    assert bench.store.pending_count == 0


def test_rooms_are_found_and_deleted(bench):
    other = bench.stores.open("v", "other", bench.take, "internal-1")
    of_queue = bench.stores.open("v", "retry", bench.take, "incarnation of a queue")
    bench.store.await_commit(witness := Witness())
    assert bench.stores.find("v", "other", "internal-1") is other
    assert bench.stores.find("v", "third", "internal-1") is None
    other.add(bench.clock.now + 10, 1, b"x", b"key", b"head", b"gone")
    bench.run()
    bench.stores.delete_of_vhost("v")
    bench.stores.delete("v", "third", "internal-1")
    bench.run()
    bench.advance(100)
    assert bench.stores.find("v", "other", "internal-1") is None
    assert other.log.deleted
    assert not of_queue.log.deleted
    assert (bench.handed, witness.heard) == ([], True)
    assert not bench.log.deleted


async def test_nothing_is_handed_out_any_more_when_the_node_stops(bench):
    bench.add(10)
    settled = bench.add(20)
    bench.run()
    bench.store.settle([(settled, settled + 1)])
    await bench.stores.close()
    assert settled in bench.log.settled
    bench.advance(1000)
    assert bench.handed == []
