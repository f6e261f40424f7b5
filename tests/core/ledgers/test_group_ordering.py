"""Queues whose messages have groups: turns, returns, deaths, limits and restarts."""

import random

import pytest
from pamqp import commands, header

from leveret.core.logs.window import STRETCHES_BYTES_MAX, STRETCHES_MAX, ScatteredWindow
from leveret.core.settings.queue_settings import Overflow, QueueSettings
from leveret.ports.records import RecordFlag
from tests.support.memory_log import MemoryTopicLog
from tests.support.queue_bench import Bench

GROUPED = QueueSettings(group_ordering=True)


class GroupBench(Bench):
    def __init__(self, settings=GROUPED, **options):
        super().__init__(settings=settings, **options)
        self.groups = []

    def store_groups(self, *groups, **properties):
        """Publish one message for each, None without a group; `properties` of all."""
        for group in groups:
            headers = None if group is None else {"x-message-group": group}
            described = commands.Basic.Properties(headers=headers, **properties)
            content = header.ContentHeader(0, 1, described).marshal()
            flags = 0 if group is None else RecordFlag.HAS_HEADERS | RecordFlag.HAS_GROUP
            if "expiration" in properties:
                flags |= RecordFlag.HAS_EXPIRATION
            self.queue.builder.add(flags, self.clock.now, b"", b"q", content, b"x")
        self.groups += groups
        self.queue.flush()
        if self.queue.is_caught_up:
            self.queue.touch()
        self.run()

    def settle(self, *offsets):
        self.queue.settle([(offset, offset + 1) for offset in offsets])
        self.run()


def offsets(consumer):
    return [offset for offset, _ in consumer.got]


@pytest.mark.covers("C-211")
def test_consumers_never_share_a_group():
    bench = GroupBench()
    one, other = bench.consume(), bench.consume()
    bench.store_groups("a", "a", "b", "b", None, "a")
    assert sorted(offsets(one) + offsets(other)) == [0, 2, 4]
    bench.settle(0)
    bench.settle(1)
    assert sorted(offsets(one) + offsets(other)) == [0, 1, 2, 4, 5]


@pytest.mark.covers("C-211")
def test_the_group_of_a_consumer_that_dies_moves_on_at_once():
    bench = GroupBench()
    first = bench.consume(limit=1)
    bench.store_groups("a", "a")
    second = bench.consume()
    assert (offsets(first), offsets(second)) == ([0], [])
    bench.queue.remove_consumer(first)
    bench.queue.return_([(0, 1)])
    bench.run()
    assert second.got == [(0, True)]
    bench.settle(0)
    assert second.got == [(0, True), (1, False)]


def test_without_acknowledgements_all_come_in_their_order():
    bench = GroupBench()
    consumer = bench.consume(no_ack=True)
    bench.store_groups(*"aabbcab")
    assert sorted(offsets(consumer)) == [*range(7)]
    assert bench.queue.message_count == bench.queue.leased_count == 0


def test_a_get_takes_what_may_be_taken():
    bench = GroupBench()
    bench.store_groups("a", "a")
    assert bench.queue.get() == (0, False)
    assert bench.queue.get() is None
    assert (bench.queue.message_count, bench.queue.leased_count) == (1, 1)
    bench.settle(0)
    assert bench.queue.get() == (1, False)


def test_a_delayed_return_holds_its_group():
    bench = GroupBench()
    consumer = bench.consume()
    bench.store_groups("a", "a")
    bench.queue.return_([(0, 1)], failed=False, delay_ms=100)
    bench.run()
    assert offsets(consumer) == [0]
    bench.advance(100)
    assert consumer.got == [(0, False), (0, True)]


def test_what_expires_does_not_hold_its_group():
    bench = GroupBench()
    bench.store_groups("a", expiration="10")
    bench.store_groups("a")
    bench.advance(20)
    consumer = bench.consume()
    assert offsets(consumer) == [1]


def test_dead_letters_leave_their_group():
    bench = GroupBench(QueueSettings(group_ordering=True, dead_letter_exchange="dlx"))
    consumer = bench.consume()
    bench.store_groups("a", "a")
    bench.queue.discard([(0, 1)])
    bench.run()
    assert bench.dead == [(0, "rejected")]
    assert offsets(consumer) == [0, 1]


def test_the_delivery_limit_sets_a_group_free():
    limited = QueueSettings(
        group_ordering=True, counts_deliveries=True, delivery_limit=1, dead_letter_exchange="dlx"
    )
    bench = GroupBench(limited)
    consumer = bench.consume()
    bench.store_groups("a", "a")
    for _ in range(2):
        bench.queue.return_([(0, 1)])
        bench.run()
    assert bench.dead == [(0, "delivery_limit")]
    assert offsets(consumer) == [0, 0, 1]


def test_a_full_queue_drops_its_oldest():
    bench = GroupBench(QueueSettings(group_ordering=True, max_length=2))
    bench.store_groups("a", "b", "a", "b")
    assert bench.queue.message_count == 2
    assert offsets(bench.consume()) == [2, 3]


def test_a_full_queue_counts_what_waits_for_its_group():
    limited = QueueSettings(
        group_ordering=True, max_length_bytes=2, overflow=Overflow.REJECT_PUBLISH
    )
    bench = GroupBench(limited)
    consumer = bench.consume(limit=1)
    bench.store_groups(*"aaaaa")
    assert offsets(consumer) == [0]
    assert bench.queue.message_count <= 3


def test_one_active_consumer_gets_one_of_a_group_as_well():
    bench = GroupBench(QueueSettings(group_ordering=True, single_active=True))
    active, idle = bench.consume(), bench.consume()
    bench.store_groups("a", "b", "a")
    assert (offsets(active), offsets(idle)) == ([0, 1], [])


def test_prefetch_is_kept_to():
    bench = GroupBench()
    consumer = bench.consume(limit=2)
    bench.store_groups(*"abcd")
    assert offsets(consumer) == [0, 1]


def test_a_purge_leaves_what_is_out():
    bench = GroupBench()
    consumer = bench.consume()
    bench.store_groups("a", "a", "b", "b")
    assert bench.queue.purge() == 2
    bench.settle(0, 2)
    bench.store_groups("a")
    assert offsets(consumer) == [0, 2, 4]


@pytest.mark.parametrize("seed", range(15))
def test_a_restart_knows_the_groups(seed):
    """Settled here and there, reopened, and more published: the order of each group holds."""
    rng = random.Random(seed)
    bench = GroupBench()
    bench.store_groups(*rng.choices([None, "a", "b", "c"], k=60))
    consumer = bench.consume(limit=25)
    settled = rng.sample(offsets(consumer), k=min(10, len(consumer.got)))
    bench.settle(*settled)
    settled = set(settled)
    bench.reopen()
    bench.run()
    bench.store_groups(*rng.choices([None, "a", "b", "c"], k=20))
    seen = []
    while (leased := bench.queue.get()) is not None:
        offset, _ = leased
        seen.append(offset)
        if rng.random() < 0.2:
            bench.queue.return_([(offset, offset + 1)])
            bench.run()
            seen.pop()
        else:
            bench.settle(offset)
    assert sorted([*seen, *settled]) == [*range(80)]
    for group in "abc":
        of_group = [offset for offset in seen if bench.groups[offset] == group]
        assert of_group == sorted(of_group)


@pytest.mark.parametrize("seed", range(10))
def test_several_consumers_one_of_which_dies_now_and_then(seed):
    """Never two of a group with consumers, and in the end nothing is missing."""
    rng = random.Random(seed)
    bench = GroupBench()
    held, finished, consumers = {}, [], []
    for _ in range(200):
        if rng.random() < 0.3:
            bench.store_groups(*rng.choices("abcde", k=rng.randrange(5)))
        if len(consumers) < 3:
            consumers.append(bench.consume(limit=rng.randrange(1, 9)))
        for consumer in consumers:
            held[consumer] = [offset for offset in offsets(consumer) if offset not in finished]
        out = [bench.groups[offset] for one in consumers for offset in held[one]]
        assert len(out) == len(set(out))
        consumer = rng.choice(consumers)
        if rng.random() < 0.2:
            consumers.remove(consumer)
            bench.queue.remove_consumer(consumer)
            bench.queue.return_([(offset, offset + 1) for offset in held[consumer]])
            bench.run()
        elif held[consumer]:
            offset = rng.choice(held[consumer])
            finished.append(offset)
            consumer.limit += 1
            bench.settle(offset)
    for group in "abcde":
        of_group = [offset for offset in finished if bench.groups[offset] == group]
        assert of_group == sorted(of_group)


def test_a_policy_changes_nothing_until_the_queue_is_opened_again():
    bench = GroupBench()
    bench.queue.reconfigure(QueueSettings())
    assert bench.queue.settings.group_ordering
    consumer = bench.consume()
    bench.store_groups("a", "a")
    assert offsets(consumer) == [0]
    plain = Bench()
    plain.queue.reconfigure(GROUPED)
    assert not plain.queue.settings.group_ordering


# -- reading here and there


def filled_log(count, size):
    log = MemoryTopicLog()
    for _ in range(count):
        log.builder.add(0, 1, b"", b"q", b"", b"x" * size)
        log.append()
    return log


def test_far_places_are_read_once_each():
    log = filled_log(200, 10_000)
    window = ScatteredWindow(log)
    reads = []
    read = log.read
    log.read = lambda offset, size: reads.append(offset) or read(offset, size)
    for _ in range(3):
        for offset in (0, 50, 100, 150):
            assert any(batch.base_offset == offset for batch in window.at_hand(offset))
            assert window.holds(offset)
    assert reads == [0, 50, 100, 150]
    window.clear()
    assert not window.holds(0)


def test_what_is_kept_of_far_places_is_bounded():
    log = filled_log(400, 100_000)
    window = ScatteredWindow(log)
    for offset in range(0, 400, 2):
        window.at_hand(offset)
    kept = sum(window.holds(offset) for offset in range(0, 400, 2))
    assert kept <= min(STRETCHES_MAX, STRETCHES_BYTES_MAX // 100_000 + 1)
    assert window.holds(398)
