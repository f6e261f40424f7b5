"""Transactions of clients over queues that several nodes lead: all or nothing, whoever dies."""

import aio_pika
import pytest

from tests.clustering.nodes import BrokerCluster
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


async def transactional(node):
    connection = await aio_pika.connect(node.url)
    return await connection.channel(publisher_confirms=False)


async def publish(channel, queue, *bodies):
    for body in bodies:
        message = aio_pika.Message(body, delivery_mode=2)
        await channel.default_exchange.publish(message, queue)


async def bodies(node, queue):
    """Return what a queue has, and leave it there."""
    connection = await aio_pika.connect(node.url)
    found = []
    try:
        channel = await connection.channel()
        opened = await channel.get_queue(queue)
        while (message := await opened.get(fail=False)) is not None:
            found.append(message.body)
    finally:
        await connection.close()
    return found


def decisions(cluster):
    """Return how many decisions the leaders remember."""
    return sum(
        len(led.machine._committed)
        for node in cluster.nodes
        if node.is_up
        for led in node.transactions.partitions._led.values()
        if led.is_loaded
    )


@pytest.mark.parametrize("number", [FIRST, OTHER, THIRD])
async def test_publishes_to_queues_of_several_leaders_take_effect_together(cluster, number):
    await cluster.add_queue("a", leader=FIRST)
    await cluster.add_queue("b", leader=OTHER)
    channel = await transactional(cluster.nodes[number])
    async with channel.transaction():
        await publish(channel, "a", b"1")
        await publish(channel, "b", b"1", b"2")
        assert await bodies(cluster.nodes[THIRD], "a") == []
    assert await bodies(cluster.nodes[THIRD], "a") == [b"1"]
    assert await bodies(cluster.nodes[THIRD], "b") == [b"1", b"2"]
    await eventually(lambda: decisions(cluster) == 0)


async def test_a_rollback_leaves_nothing(cluster):
    await cluster.add_queue("a", leader=FIRST)
    await cluster.add_queue("b", leader=OTHER)
    channel = await transactional(cluster.nodes[THIRD])
    transaction = channel.transaction()
    await transaction.select()
    await publish(channel, "a", b"1")
    await publish(channel, "b", b"1")
    await transaction.rollback()
    assert await bodies(cluster.nodes[FIRST], "a") == []
    assert await bodies(cluster.nodes[FIRST], "b") == []


@pytest.mark.parametrize("number", [FIRST, OTHER, THIRD])
async def test_a_message_moves_from_one_leader_to_another(cluster, number):
    await cluster.add_queue("a", leader=FIRST)
    await cluster.add_queue("b", leader=OTHER)
    channel = await transactional(cluster.nodes[number])
    await publish(channel, "a", b"m")
    queue = await channel.get_queue("a")
    message = await queue.get(timeout=60)
    async with channel.transaction():
        await publish(channel, "b", message.body)
        await message.ack()
    await channel.close()
    assert await bodies(cluster.nodes[THIRD], "a") == []
    assert await bodies(cluster.nodes[THIRD], "b") == [b"m"]
