"""Messages that were stored and not counted count for the hours in which they were stored."""

from __future__ import annotations

import pytest

from leveret.broker.usage_catch_up import first_uncounted, uncounted
from leveret.errors import StorageError
from leveret.ports.usage import HOUR_SECONDS, Usage
from tests.support.client import Client
from tests.support.stage import Stage

HOUR_MS = HOUR_SECONDS * 1000
RECORD_BYTES = 26 + len("q") + 14 + 100  # framing, key, content header, body


@pytest.fixture
def stage():
    stage = Stage()
    stage.now += HOUR_MS - stage.now % HOUR_MS
    return stage


@pytest.fixture
def publish(stage):
    client = Client(stage).open()
    client.declare("q", durable=True)
    return lambda count: client.publish("q", *[b"x" * 100] * count)


def parts(stage, first, stop=None):
    queue, found = stage.queue("q"), []

    async def gather():
        parts = uncounted(queue, first, stop or queue.log.end, stage.now)
        found.extend([part async for part in parts])

    stage.spawn(gather())
    stage.run()
    return found


def hour(stage):
    return stage.now // HOUR_MS * HOUR_SECONDS


def test_each_hour_has_its_part(stage, publish):
    first = hour(stage)
    publish(3)
    stage.now += HOUR_MS - 1
    publish(2)
    stage.now += 1
    publish(4)
    stage.now += 5 * HOUR_MS
    assert parts(stage, 0) == [
        (first, Usage(5, 5 * RECORD_BYTES), 5),
        (first + HOUR_SECONDS, Usage(4, 4 * RECORD_BYTES), 9),
    ]


@pytest.mark.parametrize(("first", "stop"), [(0, 6), (1, 5), (2, 4), (3, 4), (4, 4)])
def test_parts_of_batches_have_their_share(stage, publish, first, stop):
    publish(3)
    publish(3)
    assert sum(part.usage.messages_in for part in parts(stage, first, stop)) == stop - first
    total = sum(part.usage.bytes_in for part in parts(stage, first, stop))
    assert total == (stop - first) * RECORD_BYTES


def test_messages_that_are_gone_count_without_their_bytes(stage, publish):
    publish(2)
    publish(3)
    stage.queue("q").log.removed.add(0, 2)
    assert parts(stage, 0) == [(hour(stage), Usage(5, 3 * RECORD_BYTES), 5)]
    stage.queue("q").log.removed.add(2, 5)
    stage.now += 3 * HOUR_MS  # nobody knows when they came
    assert parts(stage, 0) == [(hour(stage), Usage(5, 0), 5)]


def test_messages_that_cannot_be_read_count(stage, publish):
    publish(2)

    async def fail(*_):
        raise StorageError("damaged")

    stage.queue("q").log.fetch = fail
    assert parts(stage, 0) == [(hour(stage), Usage(2, 0), 2)]


def test_a_log_of_which_nothing_was_noted_counts_from_its_first_use(stage, publish):
    before = stage.now - 1
    publish(2)
    queue, found = stage.queue("q"), []

    async def look(counted_ms):
        found.append(await first_uncounted(queue, counted_ms))

    stage.spawn(look(before))
    stage.run()
    after = stage.now + 10
    stage.now += 20
    publish(1)
    stage.spawn(look(after))
    stage.run()
    assert found == [0, 2]
