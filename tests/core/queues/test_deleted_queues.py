"""A deleted queue goes with the last who has it: nothing of it waits for the garbage collector."""

import gc

import pytest
from pamqp import commands

from leveret.amqp.settling import (
    DELIVERY_STATISTICS_MIN,  # a channel counts for as many that are gone
)
from leveret.core.queues.queue import Queue
from leveret.ports.definitions import PolicyDefinition
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
    "de-duplicating": {"x-dedup-window": 60_000},
    "de-duplicating stream": {"x-queue-type": "stream", "x-dedup-window": 60_000},
    "message groups": {"x-group-ordering": True},
    "retrying": {"x-retry-delays": [1000]},
    "retrying in order": {"x-retry-delays": [1000], "x-retry-keep-order": "key"},
    "tasks": {"x-celery-eta": True},
    "rates": {"x-publish-rate": 1000, "x-consume-rate": 1000},
    "quorum": {"x-queue-type": "quorum"},
    "leases": {"x-visibility-timeout": 60_000},
    "partitions": {"x-partitions": 3, "x-expires": 60_000, "x-max-length": 3},
    "partitions, at random": {"x-partitions": 3, "x-partition-by": "random"},
    "partitioned stream": {"x-queue-type": "stream", "x-partitions": 3},
    "partitions with rates": {"x-partitions": 3, "x-publish-rate": 1000, "x-consume-rate": 1000},
    "compacted stream": {"x-queue-type": "stream", "x-compact": True},
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


POLICIES = {
    "message-ttl": 60_000,
    "max-length": 5,
    "expires": 60_000,
    "dedup-window": 60_000,
    "publish-rate": 1000,
    "retry-delays": [1000],
    "celery-eta": True,
}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("key", POLICIES)
def test_a_queue_that_a_policy_has_changed_leaves_nothing(stage, client, key, durable):
    def use_by_policy(count):
        for number in range(count):
            client.call(commands.Queue.Declare(queue=f"q{number}", durable=durable))
        stage.broker.policies.put(PolicyDefinition("/", "p", ".*", {key: POLICIES[key]}))
        stage.broker.apply_policies("/")
        stage.run()
        for number in range(count):
            client.publish(f"q{number}", b"body")
        stage.broker.policies.remove("/", "p", operator=False)
        for number in range(count):
            client.call(commands.Queue.Delete(queue=f"q{number}"))
        stage.advance(1)
        stage.run()

    use_by_policy(3)  # what is made once for all
    before = queues_in_memory()
    with left_in_cycles() as left:
        use_by_policy(DELIVERY_STATISTICS_MIN + 100)
        kept = queues_in_memory() - before
    assert left == []
    assert kept <= DELIVERY_STATISTICS_MIN  # that stale timers and the like may still name


def queues_in_memory():
    return sum(isinstance(each, Queue) for each in gc.get_objects())
