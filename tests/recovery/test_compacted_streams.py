"""Compacted streams as clients see them, on a node with log files in memory."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands

from leveret.features.range_reads.bounds import bounds_of
from leveret.features.range_reads.range_reads import OffsetRangeError
from leveret.features.range_reads.rules import RangeRequest
from leveret.range_reader import parse_chunk
from tests.recovery.node import Node
from tests.support.waiting import eventually

KEYS = ("copper", "gold", "silver")
LIMITS = {"segment_bytes_max": 3000, "tail_cache_bytes_max": 1000, "open_files_max": 2}
FIRST = {"x-stream-offset": "first"}


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def node(loop):
    node = Node(loop, **LIMITS)
    node.topics.compactor.check = lambda log: None  # not before the tests say so
    node.declare("prices", queue_type="stream", compact=True)
    yield node
    if not node.is_over:
        node.kill()


def log_of(node):
    return node.broker.vhosts["/"].queues["prices"].log


def publish(node, count: int) -> None:
    """Publish prices of one metal after the other, of gold once, and one of none now and then."""
    for number in range(count):
        key = "gold" if number == 0 else ("copper", "silver")[number % 2]
        headers = {"x-partition-key": key} if number % 10 != 5 else {}
        node.publish("prices", b"%s %d" % (key.encode(), number), headers=headers)


def compact(node) -> None:
    """Seal what is written, and compact it."""
    log, compactor = log_of(node), node.topics.compactor

    async def done():
        log._segments.roll(log.end)
        log.flush()
        await eventually(lambda: not log._segments.sealed_dirty and not log.is_flushing)
        passes = compactor.figures.passes
        compactor.compact(log)
        await eventually(lambda: compactor._running is None and compactor.figures.passes > passes)

    node.loop.run_until_complete(done())


def read(node, **arguments) -> list[bytes]:
    client = node.client
    client.prefetch(1000)
    client.consume("prices", arguments=FIRST | arguments)
    found = client.deliveries()
    client.send(commands.Basic.Ack(delivery_tag=0, multiple=True), commands.Basic.Cancel("c"))
    client.received()
    return [each.body for each in found]


def expected_of(count: int) -> list[bytes]:
    names = ["gold", *(("copper", "silver")[n % 2] for n in range(1, count))]
    latest = {name: n for n, name in enumerate(names) if n % 10 != 5}
    kept = {*latest.values(), *range(5, count, 10)}
    return [b"%s %d" % (names[n].encode(), n) for n in sorted(kept)]


@pytest.mark.parametrize("end", [None, Node.close, Node.kill])
def test_a_consumer_from_the_first_on_reads_what_compaction_has_left(node, end):
    publish(node, 100)
    compact(node)
    if end is not None:
        node.flush()
        end(node)
        node = node.next_life()
    assert read(node) == expected_of(100)
    assert node.client.count("prices") == len(expected_of(100))
    offsets = [stop - 1 for _, stop in log_of(node).settled.gaps(0, 100)]
    assert offsets[0] == 0
    assert offsets[-1] == 99
    node.kill()


def test_a_compacted_stream_keeps_what_is_old(node):
    assert log_of(node).retention.age_ms_max is None


def test_a_reader_goes_on_where_it_is_though_files_are_replaced(node):
    publish(node, 60)
    node.client.prefetch(3)
    node.client.consume("prices", arguments=FIRST)
    before = node.client.deliveries()
    assert [each.body for each in before] == [b"gold 0", b"silver 1", b"copper 2"]
    compact(node)
    found = before
    while found:
        node.client.send(commands.Basic.Ack(delivery_tag=found[-1].tag, multiple=True))
        found = node.client.deliveries()
        before += found
    assert [each.body for each in before] == [
        *(b"gold 0", b"silver 1", b"copper 2"),
        *expected_of(60)[1:],
    ]


def test_a_group_counts_what_compaction_has_removed_as_read(node):
    publish(node, 10)
    group = {"x-consumer-group": "shops", **FIRST}
    node.client.prefetch(1)
    node.client.consume("prices", arguments=group)
    (first,) = node.client.deliveries()
    publish(node, 80)
    compact(node)
    node.client.prefetch(1000)
    found = [first]
    while True:
        node.client.send(commands.Basic.Ack(delivery_tag=found[-1].tag, multiple=True))
        more = node.client.deliveries()
        if not more:
            break
        found += more
    node.client.send(commands.Basic.Cancel("c"))
    node.client.received()
    # What it held when that was removed is its own.
    assert [each.body for each in found] == [b"gold 0", *read(node)]
    assert len(found) < 30


def test_tombstones_delete(node):
    publish(node, 20)
    for key in KEYS:
        node.publish("prices", b"", headers={"x-partition-key": key})
    compact(node)
    assert read(node) == [b"silver 5", b"silver 15", b"", b"", b""]
    node.topics.compactor.wall_ms = lambda: 1_700_000_000_000 + 24 * 3_600_000
    compact(node)
    assert read(node) == [b"silver 5", b"silver 15"]


def read_range(node, offset: int) -> tuple[list[int], int]:
    """Return the offsets of a range read, and how many records it says are missing."""
    partition = node.queue("prices")
    packed = node.ask(node.broker.range_reads.read(partition, RangeRequest(offset)))
    chunk = parse_chunk(b"".join(packed.parts))
    return [chunk.columns["offset"][row] for row in range(chunk.rows)], chunk.missing


@pytest.mark.parametrize("end", [None, Node.close, Node.kill])
def test_whoever_is_behind_compaction_reads_what_it_has_left(node, end):
    for number in range(100):
        node.publish("prices", b"%d" % number, headers={"x-partition-key": "copper"})
    compact(node)
    node.flush()
    if end is not None:
        end(node)
        node = node.next_life()
    assert log_of(node).settled.contains(0, 40)
    assert bounds_of(node.queue("prices")).first == 0
    offsets, _ = read_range(node, 20)
    assert offsets[-1] == 99
    assert len(offsets) < 80
    node.kill()


@pytest.mark.parametrize("end", [None, Node.close, Node.kill])
def test_what_retention_has_removed_of_a_compacted_stream_is_lost_to_readers(loop, end):
    node = Node(loop, **LIMITS)
    node.topics.compactor.check = lambda log: None
    node.declare("prices", queue_type="stream", compact=True, retention_messages=50)
    for number in range(200):
        node.publish("prices", b"%d" % number, headers={"x-partition-key": "copper"})
    compact(node)
    compact(node)
    node.flush()
    first = bounds_of(node.queue("prices")).first
    assert 0 < first <= 150
    if end is not None:
        end(node)
        node = node.next_life()
    assert log_of(node).settled.contains(0, first + 10)
    assert bounds_of(node.queue("prices")).first == first
    assert read_range(node, first)[0][-1] == 199
    with pytest.raises(OffsetRangeError):
        node.ask(node.broker.range_reads.read(node.queue("prices"), RangeRequest(first - 1)))
    node.kill()
