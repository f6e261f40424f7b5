"""The garbage collector looks at what is new; at the rest when that is worth it."""

import asyncio
import gc
from types import SimpleNamespace

import pytest

from leveret.node import collector as module
from leveret.node.collector import CLOSED_MAX, CLOSED_MIN, DELETED_MIN, Collector


class Knot:
    """Refers to itself; says when it goes."""

    def __init__(self, gone):
        self.gone = gone
        self.itself = self

    def __del__(self):
        self.gone.append(1)


class Node:
    activity = 0
    closed = deleted = 0

    def churn(self):
        return self.closed, self.deleted


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def collector(node, monkeypatch):
    monkeypatch.setattr(module, "FROZEN_QUICK_MAX", 1 << 60)  # however many objects tests have
    thresholds = gc.get_threshold()
    collector = Collector(lambda: node.activity, node.churn)
    collector.start()
    yield collector
    collector.stop()
    gc.set_threshold(*thresholds)


@pytest.fixture
def gone():
    """Return what was freed of one cycle that was set aside while it was alive."""
    return []


@pytest.fixture
def forgotten(collector, gone):
    knot = Knot(gone)
    gc.collect()  # it is alive: the collections that follow do not look at it
    del knot
    gc.collect()
    assert not gone
    return gone


def test_what_is_new_is_looked_at(collector, gone):
    Knot(gone)
    gc.collect()
    assert gone


def test_what_was_set_aside_goes_while_nobody_wants_anything(collector, node, forgotten):
    node.closed = CLOSED_MIN
    collector.look()
    assert forgotten


def test_a_busy_node_waits(collector, node, forgotten):
    node.closed, node.activity = CLOSED_MIN, 1
    collector.look()
    assert not forgotten
    collector.look()  # nothing has happened since
    assert forgotten


def test_a_busy_node_does_not_wait_for_ever(collector, node, forgotten):
    node.closed, node.activity = CLOSED_MAX, 1
    collector.look()
    assert forgotten


def test_few_are_not_worth_it(collector, node, forgotten):
    node.closed = CLOSED_MIN - 1
    collector.look()
    assert not forgotten


def test_a_node_with_very_many_objects_waits(collector, node, gone, monkeypatch):
    monkeypatch.setattr(module, "FROZEN_QUICK_MAX", 0)
    collector.stop()
    collector.start()
    knot = Knot(gone)
    gc.collect()  # it is set aside
    del knot
    node.closed = CLOSED_MAX - 1
    collector.look()
    assert not gone
    node.closed = CLOSED_MAX
    collector.look()
    assert gone


def test_each_is_looked_for_once(collector, node, gone):
    node.closed = CLOSED_MIN
    collector.look()
    knot = Knot(gone)
    gc.collect()
    del knot
    collector.look()
    assert not gone


def test_memory_of_deleted_queues_is_given_back(collector, node, forgotten):
    node.deleted, node.activity = DELETED_MIN - 1, 1
    assert not collector.look()
    node.deleted, node.activity = DELETED_MIN, 2
    assert collector.look()
    assert collector.look()  # the last of what they had goes a little later
    assert not collector.look()
    assert not forgotten  # nothing that is set aside was looked at


async def test_a_busy_node_gives_the_memory_of_closed_connections_back(monkeypatch):
    trims, process = [], SimpleNamespace(stopping=asyncio.Event())
    collector = SimpleNamespace(closed=0, look=lambda: False, stop=lambda: None)
    loop = asyncio.get_running_loop()

    def trim():
        trims.append(collector.closed)
        loop.call_soon_threadsafe(process.stopping.set)

    monkeypatch.setattr(module, "LOOK_SECONDS", 0)
    monkeypatch.setattr(module, "find_trim", lambda: trim)
    async with asyncio.TaskGroup() as tasks:
        cache = SimpleNamespace(dropped_bytes=0)
        tasks.create_task(module.collect_garbage(process, collector, cache))
        for collector.closed in (CLOSED_MIN - 1, CLOSED_MIN):
            for _ in range(10):
                await asyncio.sleep(0)
    assert trims == [CLOSED_MIN]


def test_collections_of_all_do_not_depend_on_what_lives(node):
    thresholds = gc.get_threshold()
    living = [[] for _ in range(300_000)]
    collector = Collector(lambda: node.activity, node.churn)
    collector.start()
    before = gc.get_stats()[-1]["collections"]
    living += [[] for _ in range(20_000)]
    after = gc.get_stats()[-1]["collections"]
    collector.stop()
    gc.set_threshold(*thresholds)
    assert after > before


def test_it_leaves_nothing_behind(node):
    callbacks = list(gc.callbacks)
    thresholds = gc.get_threshold()
    collector = Collector(lambda: node.activity, node.churn)
    collector.start()
    collector.stop()
    gc.set_threshold(*thresholds)
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0
