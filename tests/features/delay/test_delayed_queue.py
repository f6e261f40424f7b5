"""Envelopes of a cluster's delayed messages, and what waits until their queue is there."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.logs.log_writer import PendingCommit
from leveret.core.names import DELAYED_QUEUE
from leveret.errors import ChannelError, StorageError
from leveret.features.delay import delayed_queue
from leveret.features.delay.delayed_queue import DelayedQueues, open_envelope, pack_envelope
from leveret.features.delay.scheduled import MARKED, Draft, ScheduleKey
from leveret.ports.contents import encode_properties
from leveret.ports.records import BatchBuilder

NAMES = st.binary(max_size=255)


@given(st.integers(0, 2**63), NAMES, NAMES, st.binary(max_size=2000), st.binary())
def test_an_envelope_keeps_a_message(due_ms, exchange, routing_key, header, body):
    draft = Draft(due_ms, 9, exchange, routing_key, header, body, None)
    assert open_envelope(pack_envelope(draft)) == draft


def test_an_envelope_keeps_the_id_of_a_message():
    headers = {"x-schedule-id": "one", "x-schedule-owner": "app"}
    header = encode_properties({"headers": headers}, 1)
    draft = Draft(1, MARKED, b"", b"q", header, b"b", ScheduleKey("one", "app"))
    assert open_envelope(pack_envelope(draft)) == draft


@given(st.binary(max_size=300))
def test_what_is_no_envelope_is_refused(data):
    try:
        draft = open_envelope(data)
    except ValueError:
        return
    assert pack_envelope(draft) == data


class Place:
    """A place of the queue's partition that commits what it has when told."""

    is_led_here = True

    def __init__(self):
        self.builder = BatchBuilder()
        self.waiters = []

    def await_commit(self, waiter):
        self.waiters.append(waiter)

    @property
    def bodies(self):
        return [open_envelope(record[-1]).body for record in self.builder.preview(0).records()]


class Told:
    def __init__(self):
        self.failed = None

    def done(self, *, failed):
        self.failed = failed


class Node:
    """A node whose definitions change when `asked` is set."""

    def __init__(self):
        self.vhost = SimpleNamespace(name="/", queues={})
        self.reported = []
        self.changes = []
        self.asked = asyncio.get_running_loop().create_future()
        self.tasks = []
        self.touched = []
        core = SimpleNamespace(
            vhosts={"/": self.vhost},
            timers=SimpleNamespace(wall_ms=lambda: 1),
            turn=SimpleNamespace(touch=self.touched.append),
            spawn=lambda work: self.tasks.append(asyncio.get_running_loop().create_task(work)),
            report=lambda subject, error: self.reported.append((subject, error)),
        )
        self.queues = DelayedQueues(core, None, self._make, None)

    def _make(self, change, owner, then):
        self.changes.append(change)
        return self.asked

    def put(self, body, write=None):
        draft = Draft(7, 1, b"", b"q", encode_properties({}, len(body)), body, None)
        return self.queues.put(self.vhost, draft, write)

    def told(self, body):
        (committing,) = self.put(body)
        told = Told()
        committing.await_commit(told)
        return told

    def create(self):
        place = Place()
        self.vhost.queues[DELAYED_QUEUE] = SimpleNamespace(places=[place])
        return place


async def test_messages_wait_until_the_queue_is_there():
    node = Node()
    told = [node.told(b"a"), node.told(b"b")]
    await asyncio.sleep(0)
    assert [change.definition.name for change in node.changes] == [DELAYED_QUEUE]
    place = node.create()
    node.asked.set_result(None)
    await asyncio.gather(*node.tasks)
    assert place.bodies == [b"a", b"b"]
    assert [each.failed for each in told] == [None, None]
    for waiter in place.waiters:
        waiter.done(failed=False)
    assert [each.failed for each in told] == [False, False]
    assert node.put(b"c") == (place,)
    assert place.bodies == [b"a", b"b", b"c"]
    assert place in node.touched


async def test_messages_are_refused_where_the_queue_cannot_be_created():
    node = Node()
    told = node.told(b"a")
    node.asked.set_exception(StorageError("no"))
    await asyncio.gather(*node.tasks)
    assert told.failed
    assert [str(error) for _, error in node.reported] == ["no"]
    assert isinstance(node.put(b"b")[0], PendingCommit)  # it is tried again
    await asyncio.gather(*node.tasks)
    assert len(node.changes) == 2


async def test_neither_transactions_nor_too_many_bytes_wait_for_the_queue(monkeypatch):
    node = Node()
    monkeypatch.setattr(delayed_queue, "EARLY_BYTES_MAX", 100)
    for refused in (lambda: node.put(b"a", object()), lambda: node.put(b"x" * 100)):
        with pytest.raises(ChannelError, match="is being created") as error:
            refused()
        assert error.value.code == 506
    node.asked.set_result(None)
    await asyncio.gather(*node.tasks)
