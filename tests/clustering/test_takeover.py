"""Clients ride through the loss of leaders, and changes of who leads."""

import asyncio
import itertools
from dataclasses import replace

import aio_pika
import pytest

from leveret.cluster.partition_state import PartitionState
from leveret.ports.coordination import KeyChange
from leveret.ports.definitions import PolicyDefinition
from leveret.replication.replicator import PARTITIONS_PREFIX
from tests.clustering.nodes import BrokerCluster
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


class Publisher:
    """Publishes numbers with confirms, one after the other."""

    def __init__(self, channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()
        self.confirmed = []
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        for number in self._numbers:
            message = aio_pika.Message(b"%d" % number, delivery_mode=2)
            await self._channel.default_exchange.publish(message, "q")
            self.confirmed.append(number)

    async def more(self, count: int = 50) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        await eventually(lambda: self.task.done() or len(self.confirmed) >= wanted)
        assert not self.task.done(), self.task.exception()

    async def stop(self) -> list[int]:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        return self.confirmed


class Consumer:
    """Acknowledges each message."""

    def __init__(self) -> None:
        self.got = []

    async def start(self, channel) -> None:
        await channel.set_qos(20)
        await (await channel.get_queue("q")).consume(self._take)

    async def _take(self, message) -> None:
        self.got.append(int(message.body))
        await message.ack()


async def connected(node):
    connection = await aio_pika.connect(node.url)
    return await connection.channel()


async def lead(cluster, name, number) -> None:
    """Have another node lead a queue, as an operator may want."""
    incarnation = cluster.nodes[number].queue(name).definition.incarnation
    key = f"{PARTITIONS_PREFIX}{incarnation}/0"
    coordinator = cluster.nodes[number].coordinator
    entry = coordinator.entries[key]
    state = PartitionState.from_bytes(entry.value)
    moved = replace(
        state,
        leader=number,
        leader_session=coordinator.session,
        epoch=state.epoch + 1,
        version=state.version + 1,
    )
    await coordinator.write([KeyChange(key, moved.to_bytes(), entry.version)])
    await eventually(lambda: cluster.nodes[number].leads(name))


@pytest.mark.parametrize("durability", ["publisher and consumer", "publisher", "consumer"])
async def test_a_killed_leader_loses_nothing(cluster, durability):
    await cluster.add_queue("q")
    publisher = Publisher(await connected(cluster.nodes[OTHER]))
    consumer = Consumer()
    if "consumer" in durability:
        await consumer.start(await connected(cluster.nodes[THIRD]))
    await publisher.more()
    await cluster.nodes[FIRST].kill()
    await publisher.more(200)
    sent = await publisher.stop()
    if "consumer" not in durability:
        await consumer.start(await connected(cluster.nodes[THIRD]))
    await eventually(lambda: set(consumer.got) >= set(sent))
    first_times = list(dict.fromkeys(consumer.got))
    assert first_times == sorted(first_times)
    assert len(consumer.got) - len(first_times) <= 40


async def test_a_policy_says_at_once_how_many_replicas_must_be_in_sync(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "quorum"})
    for node in (OTHER, THIRD):
        await cluster.nodes[node].kill()
    await cluster.in_sync("q", FIRST)
    channel = await connected(cluster.nodes[FIRST])
    message = aio_pika.Message(b"x", delivery_mode=2)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(message, "q")
    broker = cluster.nodes[FIRST].broker
    broker.policies.put(PolicyDefinition("/", "one", "^q$", {"min-isr": 1}))
    broker.apply_policies("/")
    await eventually(lambda: broker.follows_policies)
    await channel.default_exchange.publish(message, "q")
    broker.policies.remove("/", "one", operator=False)
    broker.apply_policies("/")
    await eventually(lambda: broker.follows_policies)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(message, "q")


async def test_clients_follow_a_leader_that_moves_around(cluster):
    await cluster.add_queue("q")
    publisher = Publisher(await connected(cluster.nodes[OTHER]))
    consumer = Consumer()
    await consumer.start(await connected(cluster.nodes[THIRD]))
    for number in (OTHER, THIRD, FIRST):
        await publisher.more()
        await lead(cluster, "q", number)
    await publisher.more()
    sent = await publisher.stop()
    await eventually(lambda: set(consumer.got) >= set(sent))
    leading = await cluster.leader("q")
    queue = leading.queue("q")
    await eventually(lambda: queue.message_count == queue.leased_count == 0)


async def test_messages_that_clients_have_are_settled_at_the_next_leader(cluster):
    await cluster.add_queue("q")
    channel = await connected(cluster.nodes[OTHER])
    for number in range(10):
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "q")
    queue = await channel.get_queue("q")
    held = [await queue.get() for _ in range(10)]
    await lead(cluster, "q", THIRD)
    for message in held[:8]:
        await message.ack()
    await held[8].reject(requeue=False)
    leading = cluster.nodes[THIRD].queue("q")
    await eventually(lambda: leading.message_count == 1)
    log = cluster.nodes[OTHER].log("q")
    await eventually(lambda: log.settled.count == 9)
    await lead(cluster, "q", OTHER)
    assert (await queue.get(no_ack=True)).body == b"9"


async def test_publishers_wait_while_nobody_leads(cluster):
    await cluster.add_queue("q", replicas=(FIRST, THIRD))
    connection = await aio_pika.connect(cluster.nodes[OTHER].url)
    channel = await connection.channel()
    publisher = Publisher(channel)
    await publisher.more()
    await cluster.nodes[FIRST].kill()
    await cluster.nodes[THIRD].kill()
    blocked = cluster.nodes[OTHER].broker.blocked_publishers
    await eventually(lambda: bool(blocked.overdue))
    await cluster.nodes[FIRST].start()
    await cluster.nodes[THIRD].start()
    await publisher.more()
    assert not blocked.overdue
    sent = await publisher.stop()
    leading = await cluster.leader("q")
    assert leading.queue("q").message_count >= len(sent)


@pytest.mark.parametrize("start", ["first", "next"])
async def test_a_reader_of_a_stream_goes_on_where_it_is_at_each_leader(cluster, start):
    await cluster.add_queue("s", arguments={"x-queue-type": "stream"})
    publisher = await connected(cluster.nodes[FIRST])
    reader = await connected(cluster.nodes[THIRD])
    await reader.set_qos(100)
    got = []

    async def take(message):
        got.append(message.headers["x-stream-offset"])
        await message.ack()

    queue = await reader.get_queue("s")
    await queue.consume(take, arguments={"x-stream-offset": start})
    count = 0
    for number in (OTHER, THIRD, FIRST, OTHER):
        if start == "first" or count:
            await publisher.default_exchange.publish(aio_pika.Message(b"before"), "s")
            count += 1
            await eventually(lambda: len(got) >= count)  # noqa: B023  # at once
        await lead(cluster, "s", number)
        await publisher.default_exchange.publish(aio_pika.Message(b"after"), "s")
        count += 1
    await eventually(lambda: len(got) >= count)
    assert got == list(range(count))


async def test_what_a_reader_of_a_stream_holds_is_acknowledged_at_the_next_leader(cluster):
    """The node that it is connected to leads by then."""
    await cluster.add_queue("s", leader=OTHER, arguments={"x-queue-type": "stream"})
    reader = await connected(cluster.nodes[THIRD])
    await reader.set_qos(3)
    held, bodies = [], []

    async def take(message):
        bodies.append(message.body)
        held.append(message)

    queue = await reader.get_queue("s")
    await queue.consume(take, arguments={"x-stream-offset": "next"})
    for number in range(3):
        await reader.default_exchange.publish(aio_pika.Message(b"%d" % number), "s")
    await eventually(lambda: len(held) == 3)
    await lead(cluster, "s", THIRD)
    await held[0].ack()
    await held[1].reject(requeue=False)
    await held[2].nack(requeue=True)
    await reader.default_exchange.publish(aio_pika.Message(b"3"), "s")
    await eventually(lambda: len(bodies) == 4)
    assert bodies == [b"0", b"1", b"2", b"3"]


async def test_a_leader_that_does_not_know_of_the_next_one_confirms_nothing(cluster):
    await cluster.add_queue("q")
    channel = await connected(cluster.nodes[FIRST])
    publisher = Publisher(channel)
    await publisher.more()
    await cluster.in_sync("q", FIRST, OTHER, THIRD)
    forgotten = cluster.nodes[FIRST].coordinator
    forgotten.lose_connection()
    forgotten.expire()
    new = await cluster.leader("q", among=(OTHER, THIRD))
    await asyncio.sleep(0.1)
    at_most = len(publisher.confirmed)
    await asyncio.sleep(0.5)
    assert cluster.nodes[FIRST].leads("q")
    assert len(publisher.confirmed) == at_most
    log = new.log("q")
    forgotten.reconnect()
    await publisher.more()
    sent = await publisher.stop()
    consumer = Consumer()
    await consumer.start(await connected(cluster.nodes[THIRD]))
    await eventually(lambda: set(consumer.got) >= set(sent))
    assert not cluster.nodes[FIRST].leads("q")
    assert log.committed >= len(sent)
    first_times = list(dict.fromkeys(consumer.got))
    assert first_times == sorted(first_times)


async def test_a_reader_of_a_stream_goes_on_where_nobody_led_meanwhile(cluster):
    await cluster.add_queue("s", arguments={"x-queue-type": "stream"})
    channel = await connected(cluster.nodes[FIRST])
    await channel.set_qos(100)
    got = []
    queue = await channel.get_queue("s")
    await queue.consume(got.append, arguments={"x-stream-offset": "first"})
    await channel.default_exchange.publish(aio_pika.Message(b"before"), "s")
    await eventually(lambda: len(got) == 1)
    place = next(iter(cluster.nodes[FIRST].placement._places.values()))
    place._forward()
    place.review()
    assert cluster.nodes[FIRST].leads("s")
    await channel.default_exchange.publish(aio_pika.Message(b"after"), "s")
    await eventually(lambda: len(got) == 2)
    assert [each.headers["x-stream-offset"] for each in got] == [0, 1]


async def test_a_consumer_group_goes_on_where_it_was_when_its_node_leads_again(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "stream"})
    await lead(cluster, "q", FIRST)
    publisher = await connected(cluster.nodes[THIRD])
    got = {"before": [], "after": []}

    async def publish(*bodies):
        for body in bodies:
            await publisher.default_exchange.publish(aio_pika.Message(body), "q")

    async def consume(when):
        channel = await connected(cluster.nodes[FIRST])
        await channel.set_qos(10)
        queue = await channel.get_queue("q")

        async def take(message):
            got[when].append(message.body)
            await message.ack()

        arguments = {"x-consumer-group": "g", "x-stream-offset": "first"}
        await queue.consume(take, arguments=arguments)

    await publish(b"1", b"2")
    await consume("before")
    await eventually(lambda: got["before"] == [b"1", b"2"])
    groups = cluster.nodes[FIRST].broker.groups
    await eventually(lambda: not groups.all()[0].lag)
    await lead(cluster, "q", OTHER)
    await eventually(lambda: not groups.all()[0].is_in_use)
    await publish(b"3")
    await lead(cluster, "q", FIRST)
    await consume("after")
    await eventually(lambda: got["after"] == [b"3"])
    assert got["before"] == [b"1", b"2"]
    assert not cluster.failures


async def test_a_group_is_deleted_while_another_node_leads_its_partition(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "stream"})
    await lead(cluster, "q", FIRST)
    node = cluster.nodes[FIRST]
    group = node.broker.groups.create(node.queue("q"), "g", {0: 0})
    await lead(cluster, "q", OTHER)
    node.broker.groups.delete(group)
    await lead(cluster, "q", FIRST)
    again = node.broker.groups.create(node.queue("q"), "g", {0: 0})
    assert list(again.subscriptions) == [0]
    assert not cluster.failures
