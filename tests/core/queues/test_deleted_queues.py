"""A deleted queue goes with the last who has it: nothing of it waits for the garbage collector."""

import pytest
from pamqp import commands

from leveret.amqp.settling import (
    DELIVERY_STATISTICS_MIN,  # a channel counts for as many that are gone
)
from tests.support.client import Client
from tests.support.cycles import left_in_cycles
from tests.support.stage import Stage

KINDS = {
    "plain": {},
    "limited": {"x-max-length": 2, "x-message-ttl": 60_000},
    "expiring": {"x-expires": 60_000},
    "dead-lettering": {"x-dead-letter-exchange": "amq.fanout", "x-max-length": 1},
    "priorities": {"x-max-priority": 5},
    "one active": {"x-single-active-consumer": True},
    "stream": {"x-queue-type": "stream"},
}


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


def use(client, name, arguments):
    """Declare a queue, have messages delivered, returned and dropped, and delete it."""
    client.call(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
    client.call(commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key="a.#"))
    for _ in range(4):
        client.publish(name, b"body")
    if "x-queue-type" not in arguments:
        client.send(commands.Basic.Get(queue=name))
        client.send(commands.Basic.Reject(client.deliveries()[-1].tag, requeue=True))
    client.prefetch(1)
    client.consume(name, name)
    client.send(commands.Basic.Cancel(name))
    client.received()
    client.call(commands.Queue.Delete(queue=name))
    client.send(commands.Basic.Ack(0, multiple=True))  # what is outstanding keeps its queue


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_queue_leaves_no_cycle(stage, client, kind):
    use(client, "first", KINDS[kind])  # what is made once for all
    use(client, "second", KINDS[kind])
    with left_in_cycles() as left:
        for number in range(DELIVERY_STATISTICS_MIN + 8):
            use(client, f"q{number}", KINDS[kind])
    assert left == []
