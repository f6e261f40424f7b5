"""A queue calls its extensions at each point of a record's way, and knows none of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from leveret.core.queues.extensions import QueueExtension
from leveret.core.queues.queue import Queue
from leveret.core.settings.queue_settings import QueueSettings
from leveret.ports.definitions import QueueDefinition
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag
from tests.support.queue_bench import Bench

CORE = Path(__file__).parents[3] / "leveret/core"


class PassCounter(QueueExtension):
    """A whole feature in one file: counts records by what happened to them.

    It survives a restart, since the queue shows it the unsettled records again.
    """

    indexes_all = True

    def __init__(self):
        self.indexed, self.settled_count, self.was_closed = RangeSet(), 0, False
        self.withheld: set[int] = set()

    @classmethod
    def follow(cls, queue, present, demand):
        return present or cls()

    def appended(self, batch, settled):
        for offset in range(batch.base_offset, batch.stop_offset):
            if settled is None or offset not in settled:
                self.indexed.add(offset, offset + 1)

    def truncated(self, offset):
        self.indexed.remove(offset, 1 << 62)

    def withholds(self, batch, offset):
        return offset in self.withheld

    def settled(self, ranges):
        for first, stop in ranges:
            self.settled_count += stop - first
            self.indexed.remove(first, stop)

    def close(self):
        self.was_closed = True


class OnDemand(PassCounter):
    """Exists once a record with a priority came."""

    demanded_by = RecordFlag.HAS_PRIORITY

    @classmethod
    def follow(cls, queue, present, demand):
        return present or (cls() if demand.features & cls.demanded_by else None)


class Lasting(PassCounter):
    outlives_reordering = True


class Reversed(QueueExtension):
    """Delivers the newest message first."""

    delivers = True

    def __init__(self, queue):
        self.queue, self.consumers = queue, []

    @classmethod
    def follow(cls, queue, present, demand):
        return present or cls(queue)

    def consumer_added(self, consumer):
        self.consumers.append(consumer)

    def pump(self):
        delivered = 0
        while self.consumers and self.queue.state.ready_count:
            [(_, stop)] = self.queue.state.ready_in(0, self.queue.state.committed)
            batches = self.queue.reader.read(stop - 1)
            run = [(stop - 1, stop)]
            self.queue.send_runs(self.consumers[0], run, batches, redelivered=False)
            delivered += 1
        return delivered, False


def bench_with(*kinds, settings=QueueSettings()):  # noqa: B008  # frozen
    bench = Bench()
    bench.services = replace(bench.services, extensions=kinds)
    bench.queue = Queue(QueueDefinition("/", "q"), settings, None, bench.log, bench.services)
    return bench


@pytest.fixture
def bench():
    return bench_with(PassCounter)


def test_an_extension_sees_all_records_and_what_becomes_of_them(bench):
    counter = bench.queue.extension(PassCounter)
    consumer = bench.consume(no_ack=False)
    bench.store(5)
    bench.run()
    assert consumer.got
    bench.queue.settle([(0, 2)])
    assert (list(counter.indexed), counter.settled_count) == ([(2, 5)], 2)
    bench.queue.return_([(2, 3)])
    bench.run()
    bench.queue.purge()
    assert counter.settled_count == 2  # what is leased stays


def test_an_extension_finds_its_records_again_after_a_restart(bench):
    bench.consume()
    bench.store(5)
    bench.run()
    bench.queue.settle([(1, 3)])
    bench.reopen()
    bench.run()
    assert list(bench.queue.extension(PassCounter).indexed) == [(0, 1), (3, 5)]


def test_a_record_that_an_extension_withholds_is_not_got(bench):
    bench.store(3)
    bench.run()
    bench.queue.extension(PassCounter).withheld.add(0)
    assert bench.queue.get()[0] == 1


def test_an_extension_is_made_when_records_demand_it():
    bench = bench_with(OnDemand)
    bench.store(2)
    assert bench.queue.extension(OnDemand) is None
    bench.store(1, priority=3)
    assert list(bench.queue.extension(OnDemand).indexed) == [(2, 3)]


def test_an_extension_is_closed_with_its_queue(bench):
    counter = bench.queue.extension(PassCounter)
    bench.queue.mark_deleted()
    assert counter.was_closed
    assert bench.queue.extension(PassCounter) is None


def test_core_imports_no_extension():
    """Extensions of queues are named where a node is put together, in leveret.broker."""
    kind = re.compile(r"^class \w+\((?:QueueExtension|ExtensionKind)\b", re.M)
    modules = {
        ".".join(path.relative_to(CORE.parents[1]).with_suffix("").parts)
        for path in CORE.parent.rglob("*.py")
        if kind.search(path.read_text())
    } - {"leveret.core.queues.extensions"}
    assert len(modules) >= 6
    for path in CORE.rglob("*.py"):
        assert not modules.intersection(
            re.findall(r"^\s*from (\S+) import", path.read_text(), re.M)
        )


def test_an_extension_may_deliver_instead_of_the_queue():
    bench = bench_with(PassCounter, Reversed)
    bench.store(3)
    consumer = bench.consume()
    bench.run()
    assert [offset for offset, _ in consumer.got] == [2, 1, 0]


def test_an_extension_that_outlives_reordering_stays():
    bench = bench_with(PassCounter, Lasting)
    counter, lasting = bench.queue.extension(PassCounter), bench.queue.extension(Lasting)
    bench.queue.reorder(QueueSettings(max_priority=3))
    assert counter.was_closed
    assert not lasting.was_closed
    assert bench.queue.extension(Lasting) is lasting
