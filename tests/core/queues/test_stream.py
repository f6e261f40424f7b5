"""Streams: every consumer reads what is kept from its place on, in order, once."""

from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.core.queues.extensions import QueueExtension
from leveret.core.queues.open_queue import PUMP_RECORDS_MAX
from leveret.core.queues.services import QueueServices
from leveret.core.queues.stream import Stream
from leveret.core.settings.queue_settings import QueueSettings
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.features.filters.rules import record_filter
from leveret.ports import Durability, Retention
from leveret.ports.definitions import QueueDefinition
from leveret.ports.tables import Timestamp
from tests.support.clock import FakeClock
from tests.support.gate import Gate
from tests.support.memory_log import MemoryTopicLog
from tests.support.spawning import spawner

FIRST = {"x-stream-offset": "first"}


class Reader:
    """A consumer that keeps what it was sent."""

    priority = 0
    no_ack = False

    def __init__(self, credit=1 << 30, **arguments):
        self.arguments = {f"x-stream-{key}": value for key, value in arguments.items()}
        self.credit = credit
        self.at_once = 1 << 30  # what fits into its connection's outbox
        self.offsets = []
        self.gone = False

    def capacity(self):
        return self.credit

    def send(self, batches, first, stop, *, redelivered):
        assert not redelivered
        stop = min(stop, first + self.at_once)
        held = {record[0] for batch in batches for record in batch.records()}
        assert held.issuperset(range(first, stop))
        self.offsets += range(first, stop)
        self.credit -= stop - first
        return stop

    def queue_gone(self):
        self.gone = True


class Bench:
    """A stream with what is around it."""

    def __init__(self, durability=Durability.OS, log=None):
        self.reported, self.tasks, self.scheduled = [], [], []
        self.log = log or MemoryTopicLog(durability)
        self.clock = FakeClock(1000)
        self.turn = Turn(self.scheduled.append, self.report)
        timers = Timers(self.clock.wall_ms, self.clock.call_later, self.clock.seconds)
        services = QueueServices(
            self.turn,
            timers,
            spawner(self.tasks),
            self.report,
            str,
            int,
            print,
            lambda: None,
            stream_filter=record_filter,
        )
        self.stream = Stream(QueueDefinition("/", "s"), QueueSettings(), self.log, services)

    def report(self, *reported):
        self.reported.append(reported)

    def publish(self, count=1):
        """Records whose body is their offset."""
        for _ in range(count):
            offset = self.log.end + self.log.builder.count
            self.log.builder.add(1, self.clock.now, b"", b"s", b"head", b"%d" % offset)
            self.turn.touch(self.stream)

    def store(self, *counts):
        for count in counts:
            self.publish(count)
            self.run()

    def run(self):
        while self.scheduled or self.tasks:
            scheduled, self.scheduled[:] = list(self.scheduled), []
            for callback in scheduled:
                callback()
            tasks, self.tasks[:] = list(self.tasks), []
            for task in tasks:
                try:
                    task.send(None)
                except StopIteration:
                    continue
                self.tasks.append(task)
                if not self.scheduled:
                    return  # it waits for the test

    def read(self, reader):
        self.stream.add_consumer(reader)
        self.run()
        return reader


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.covers("C-212")
def test_all_consumers_get_all_messages_in_order(bench):
    bench.store(3, 2)
    early, late = bench.read(Reader(offset="first")), bench.read(Reader())
    bench.store(1, 4)
    assert early.offsets == list(range(10))
    assert late.offsets == list(range(5, 10))
    assert (bench.stream.message_count, bench.stream.leased_count) == (10, 0)
    assert bench.stream.consumer_count == 2


@pytest.mark.parametrize(("credit", "is_held_up"), [(-1, True), (0, False)])
def test_a_stream_is_pumped_first_for_want_of_what_consumers_share_only(bench, credit, is_held_up):
    reader = bench.read(Reader(credit, offset="first"))
    bench.store(3)
    assert bool(bench.stream.passed_over_in) is is_held_up
    reader.credit = 10
    bench.stream.wake(reader)
    bench.run()
    assert (reader.offsets, bench.stream.passed_over_in) == ([0, 1, 2], 0)


@pytest.mark.covers("C-212")
@pytest.mark.parametrize(
    ("offset", "first"),
    [
        ("first", 0),
        ("last", 5),
        ("next", 6),
        (2, 2),
        (6, 6),
        (Timestamp(3), 2),
        ("2s", 4),
        ("1h", 0),
    ],
)
def test_where_consumers_begin(bench, offset, first):
    for _ in range(6):
        bench.store(1)
        bench.clock.now += 1000
    bench.clock.now = 7000
    reader = bench.read(Reader(offset=offset))
    bench.store(1)
    assert reader.offsets == list(range(first, 7))


def test_the_next_is_what_is_stored_after_a_publish_that_was_not(bench):
    bench.store(2)
    bench.log.append_error = error = StorageError("full")
    bench.publish(2)
    reader = bench.read(Reader(offset="next"))
    assert bench.reported == [(bench.stream, error)]
    bench.log.append_error = None
    bench.store(1)
    assert reader.offsets == [2]


def test_a_stream_is_opened_while_copies_lack():
    few = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")

    class Alone(MemoryTopicLog):
        def require_copies(self, count, *, waits=True):
            self.refuse(few)

    bench = Bench(log=Alone())
    reader = bench.read(Reader())
    bench.publish(1)
    bench.run()
    bench.log.refuse(None)
    bench.store(1)
    assert reader.offsets == [0]
    assert bench.reported == [(bench.stream, few)]


def test_the_last_and_the_next_count_what_was_published_in_this_turn(bench):
    bench.store(2)
    bench.publish(2)
    last, after = Reader(offset="last"), Reader(offset="next")
    bench.stream.add_consumer(last)
    bench.stream.add_consumer(after)
    bench.publish(1)
    bench.run()
    assert (last.offsets, after.offsets) == ([3, 4], [4])


def test_the_last_of_an_empty_stream_is_the_next(bench):
    reader = bench.read(Reader(offset="last"))
    bench.store(2)
    assert reader.offsets == [0, 1]


def test_an_offset_that_is_yet_to_come_is_waited_for(bench):
    reader = bench.read(Reader(offset=3))
    bench.store(2, 3)
    assert reader.offsets == [3, 4]


def test_nobody_gets_more_than_there_is_credit_for(bench):
    reader = bench.read(Reader(2, offset="first"))
    bench.store(1, 1, 3)
    assert reader.offsets == [0, 1]
    reader.credit += 2
    bench.stream.wake(reader)
    bench.run()
    assert reader.offsets == [0, 1, 2, 3]


@pytest.mark.covers("C-212")
def test_settling_of_whatever_kind_keeps_the_message(bench):
    bench.store(3)
    for settle in (bench.stream.settle, bench.stream.return_, bench.stream.discard):
        settle([(0, 3)])
    assert bench.stream.message_count == 3
    assert bench.read(Reader(offset="first")).offsets == [0, 1, 2]


def test_a_full_outbox_ends_a_delivery_for_now(bench):
    bench.store(5)
    reader = Reader(offset="first")
    reader.at_once = 2
    assert bench.read(reader).offsets == [0, 1, 2, 3, 4]


def test_one_turn_delivers_only_so_much(bench):
    bench.publish(3 * PUMP_RECORDS_MAX)
    bench.run()
    readers = [Reader(offset="first") for _ in range(2)]
    for reader in readers:
        reader.at_once = 5000
        bench.stream.add_consumer(reader)
    bench.scheduled.pop()()
    assert [len(reader.offsets) for reader in readers] == [PUMP_RECORDS_MAX // 2] * 2
    bench.run()
    assert [len(reader.offsets) for reader in readers] == [3 * PUMP_RECORDS_MAX] * 2


def test_what_is_not_committed_is_not_shown():
    bench = Bench(Durability.FSYNC)
    reader = bench.read(Reader(offset="first"))
    bench.store(2)
    assert reader.offsets == []
    bench.log.commit()
    bench.run()
    assert reader.offsets == [0, 1]


def test_what_could_not_be_stored_is_waited_for_anew():
    bench = Bench(Durability.FSYNC)
    bench.store(2)
    bench.log.commit()
    bench.store(3)
    after, beyond = bench.read(Reader(offset="next")), bench.read(Reader(offset=4))
    bench.log.fail(StorageError("no disk"))
    bench.store(4)
    bench.log.commit()
    bench.run()
    assert (after.offsets, beyond.offsets) == ([2, 3, 4, 5], [4, 5])
    assert bench.reported == [(bench.stream, bench.reported[0][1])]


def test_what_retention_took_is_passed_over(bench):
    bench.store(*[1] * 10)
    slow = bench.read(Reader(2, offset="first"))
    bench.log.settle([(0, 6)])
    assert (bench.stream.first, bench.stream.message_count) == (6, 4)
    slow.credit = 100
    bench.stream.wake(slow)
    bench.run()
    assert slow.offsets == [0, 1, 6, 7, 8, 9]
    for offset in ("first", 3, Timestamp(0)):
        assert bench.read(Reader(offset=offset)).offsets == [6, 7, 8, 9]


@pytest.mark.covers("C-212")
def test_settings_say_how_much_is_kept(bench):
    kept = Retention(bytes_max=5)
    bench.stream.reconfigure(QueueSettings(retention=kept))
    assert bench.log.retention == kept


# Reading from a device


def test_consumers_that_must_wait_for_a_device_do_not_hold_up_others(bench):
    bench.store(4)
    bench.log.at_hand = False
    reader = bench.read(Reader(offset="first"))
    assert reader.offsets == [0, 1, 2, 3]


def test_consumers_at_the_same_place_share_what_was_read(bench):
    asked = []
    read = bench.log.read
    bench.log.read = lambda offset, bytes_max: (asked.append(offset), read(offset, bytes_max))[1]
    readers = [bench.read(Reader()) for _ in range(50)]
    bench.store(1, 3, 1)
    assert asked == [0, 1, 4]
    assert all(reader.offsets == [0, 1, 2, 3, 4] for reader in readers)


class SlowToRecover(QueueExtension):
    """Extension, and a kind of itself, that cannot read at first."""

    recovers = for_streams = True
    scans_from = 0

    def __init__(self, errors):
        self.errors = errors
        self.offsets = []
        self.is_recovered = False

    def follow(self, _queue, _present, _demand):
        return self

    async def recover(self):
        if self.errors:
            raise self.errors.pop()

    def scanned(self, batch):
        self.offsets += range(batch.base_offset, batch.stop_offset)

    def recovered(self):
        self.is_recovered = True


def test_an_extension_that_cannot_recover_is_tried_again_later(bench):
    bench.store(2, 1)
    bench.run()
    slow = SlowToRecover([StorageError("no disk"), StorageError("no disk")])
    services = replace(bench.stream.services, extensions=(slow,))
    Stream(bench.stream.definition, QueueSettings(), bench.log, services)
    for _ in range(2):
        bench.run()
        assert not slow.is_recovered
        bench.clock.advance(1000)
    bench.run()
    assert slow.is_recovered
    assert slow.offsets == [0, 1, 2]
    assert [str(error) for _, error in bench.reported] == ["no disk"]


def test_a_read_that_fails_is_told_once_and_tried_again(bench):
    bench.store(4)
    bench.log.at_hand = False
    bench.log.fetch_error = StorageError("no disk")
    reader = bench.read(Reader(offset="first"))
    bench.stream.wake(reader)
    bench.run()
    assert [str(error) for _, error in bench.reported] == ["no disk"]
    bench.log.fetch_error = None
    bench.stream.wake()
    bench.run()
    assert reader.offsets == [0, 1, 2, 3]


def test_damage_is_set_aside_and_passed_over(bench):
    bench.store(2, 2, 2)
    bench.log.damaged = {2}
    readers = [bench.read(Reader(offset="first")), bench.read(Reader(offset=3))]
    assert readers[0].offsets == [0, 1, 4, 5]
    assert readers[1].offsets == [4, 5]
    ((_, error),) = bench.reported
    assert "messages lost: 2 (at offset 2-3)" in str(error)
    assert bench.stream.message_count == 4


def test_a_time_that_cannot_be_found_is_the_first(bench):
    bench.store(2)

    async def offset_at(time_ms):
        raise StorageError("no disk")

    bench.log.offset_at = offset_at
    assert bench.read(Reader(offset=Timestamp(1))).offsets == [0, 1]
    assert len(bench.reported) == 1


@pytest.mark.parametrize("how", ["removed", "deleted"])
def test_consumers_may_go_while_they_wait(bench, how):
    bench.store(2)
    bench.log.at_hand = False
    bench.log.damaged = {0}
    bench.log.aside = Gate()
    reader = bench.read(Reader(offset="first"))
    if how == "removed":
        bench.stream.remove_consumer(reader)
    else:
        bench.stream.mark_deleted()
    bench.log.aside.open()
    bench.run()
    assert reader.offsets == []
    assert reader.gone == (how == "deleted")


# The end


def test_nobody_hears_of_a_deleted_stream_any_more(bench):
    bench.store(2)
    reader = bench.read(Reader(offset="next"))
    bench.publish()
    bench.stream.mark_deleted()
    bench.run()
    bench.stream.wake(reader)
    bench.stream.wake()
    bench.run()
    assert reader.gone
    assert (reader.offsets, bench.stream.consumer_count) == ([], 0)


def test_anybody_may_consume(bench):
    bench.read(Reader())
    assert bench.stream.admits(exclusive=True)


# All of it together


class StreamMachine(RuleBasedStateMachine):
    """Consumers of their own pace and retention, against what must come of it."""

    def __init__(self):
        super().__init__()
        self.bench = Bench(Durability.FSYNC)
        self.readers = {}
        self.published = 0

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=3), at_hand=st.booleans())
    def publish(self, counts, at_hand):
        self.bench.log.at_hand = at_hand
        self.bench.store(*counts)
        self.published += sum(counts)

    @rule()
    def commit(self):
        self.bench.log.commit()
        self.bench.run()

    @precondition(lambda self: len(self.readers) < 5)
    @rule(
        credit=st.integers(0, 8),
        at_once=st.integers(1, 5),
        offset=st.sampled_from(["first", "last", "next"]) | st.integers(0, 30),
    )
    def consume(self, credit, at_once, offset):
        reader = Reader(credit, offset=offset)
        reader.at_once = at_once
        begin = {
            "first": self.bench.stream.first,
            "last": max(self.published - 1, 0),
            "next": self.published,
        }.get(offset, offset)
        self.readers[reader] = begin
        self.bench.read(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), credit=st.integers(1, 8))
    def acknowledge(self, data, credit):
        reader = data.draw(st.sampled_from(list(self.readers)))
        reader.credit += credit
        self.bench.stream.wake(reader)
        self.bench.run()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def cancel(self, data):
        reader = data.draw(st.sampled_from(list(self.readers)))
        self.bench.stream.remove_consumer(reader)
        del self.readers[reader]

    @rule(part=st.floats(0, 1))
    def retain(self, part):
        stop = int(self.bench.log.committed * part)
        if stop:
            self.bench.log.settle([(0, stop)])

    @invariant()
    def everyone_got_what_was_kept_from_their_place_on(self):
        committed, settled = self.bench.log.committed, self.bench.log.settled
        for reader, begin in self.readers.items():
            assert reader.offsets == sorted(set(reader.offsets))
            assert all(begin <= offset < committed for offset in reader.offsets)
            got = reader.offsets[-1] + 1 if reader.offsets else begin
            missing = set(range(begin, got)) - set(reader.offsets)
            assert all(offset in settled for offset in missing)
            left = [offset for offset in range(got, committed) if offset not in settled]
            assert not left or not reader.credit


StreamMachine.TestCase.settings = hypothesis_settings(stateful_step_count=40)
TestStreamMachine = StreamMachine.TestCase
