"""The age of the message at a queue's head, and what is read for it."""

from datetime import UTC, datetime

import pytest
from pamqp import commands

from leveret.core.queues.head_timestamp import HEADS_READ_MAX, head_timestamp, read_heads
from leveret.errors import StorageError
from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def client():
    return Client(Stage()).open()


def publish(client, queue, *seconds):
    for each in seconds:
        client.publish(queue, b"x", timestamp=datetime.fromtimestamp(each, UTC))


def declared(client, name="q", **arguments):
    client.declare(name, **arguments)
    return client.stage.broker.vhosts["/"].queues[name]


def test_the_oldest_ready_message_counts(client):
    queue = declared(client)
    assert head_timestamp(queue) is None
    publish(client, "q", 1_000, 900)
    assert head_timestamp(queue) == 1_000
    client.send(commands.Basic.Get(queue="q"))
    assert head_timestamp(queue) == 900
    client.send(commands.Basic.Get(queue="q"))
    assert head_timestamp(queue) is None
    client.send(commands.Basic.Nack(delivery_tag=2, multiple=True, requeue=True))
    assert head_timestamp(queue) == 1_000


def test_a_message_without_a_timestamp_has_none(client):
    queue = declared(client)
    client.publish("q", b"x")
    publish(client, "q", 1_000)
    assert head_timestamp(queue) is None
    client.send(commands.Basic.Get(queue="q"))
    assert head_timestamp(queue) == 1_000


def test_the_next_of_a_priority_queue_counts(client):
    queue = declared(client, arguments={"x-max-priority": 5})
    publish(client, "q", 1_000)
    client.publish("q", b"x", timestamp=datetime.fromtimestamp(2_000, UTC), priority=3)
    assert head_timestamp(queue) == 2_000


def test_streams_have_no_head(client):
    queue = declared(client, durable=True, arguments={"x-queue-type": "stream"})
    publish(client, "q", 1_000)
    assert head_timestamp(queue) is None


async def test_what_is_not_in_memory_is_read_once(client):
    queue = declared(client)
    publish(client, "q", 1_000, 2_000)
    queue.log.at_hand = False
    assert head_timestamp(queue) is None
    await read_heads([queue])
    assert head_timestamp(queue) == 1_000
    queue.log.fetch_error = StorageError("it would have to be read again")
    await read_heads([queue])
    assert head_timestamp(queue) == 1_000


async def test_what_cannot_be_read_is_not_told(client):
    queue = declared(client)
    publish(client, "q", 1_000)
    queue.log.at_hand = False
    queue.log.fetch_error = StorageError("gone")
    await read_heads([queue])
    assert head_timestamp(queue) is None


async def test_so_many_are_read_for_one_answer(client):
    queues = [declared(client, f"q{i}") for i in range(HEADS_READ_MAX + 1)]
    for i, queue in enumerate(queues):
        publish(client, f"q{i}", 1_000)
        queue.log.at_hand = False
    await read_heads(queues)
    told = [head_timestamp(queue) for queue in queues]
    assert told == [1_000] * HEADS_READ_MAX + [None]
    await read_heads(queues)
    assert head_timestamp(queues[-1]) == 1_000
