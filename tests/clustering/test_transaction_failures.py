"""Transactions whose leaders, or whose deciders, die between all steps: all or nothing."""

import asyncio
from collections import Counter
from random import Random

import aio_pika
import pytest

from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import lead
from tests.clustering.test_transactions import bodies, decisions, publish
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
QUEUES = ("a", "b")
PAUSE = 0.15  # of a mover, in seconds: the source must not run out


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


class Mover:
    """Moves messages from one queue to two others, each in one transaction, until it is stopped."""

    def __init__(self, cluster, number) -> None:
        self._cluster = cluster
        self._number = number
        self.committed = []  # bodies
        self._stopping = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping:  # a client that reconnects may take a cancellation for a failure
            try:
                await self._work()
            except (aio_pika.exceptions.AMQPError, ConnectionError, TimeoutError, RuntimeError):
                await asyncio.sleep(0.05)

    async def _work(self) -> None:
        connection = await aio_pika.connect(self._cluster.nodes[self._number].url, timeout=5)
        try:
            channel = await connection.channel(publisher_confirms=False)
            source = await channel.get_queue("source")
            while True:
                message = await source.get(fail=False, timeout=15)
                if message is None:
                    await asyncio.sleep(0.05)
                    continue
                transaction = channel.transaction()
                await transaction.select()
                for queue in QUEUES:
                    await publish(channel, queue, message.body)
                await message.ack()
                await transaction.commit(timeout=30)
                self.committed.append(message.body)
                await asyncio.sleep(PAUSE)
        finally:
            await connection.close()

    async def more(self, count) -> None:
        """Wait until so many more are told to have committed."""
        wanted = len(self.committed) + count
        await eventually(lambda: len(self.committed) >= wanted)

    async def stop(self) -> None:
        self._stopping = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def check_moved(cluster, node, movers, count):
    """Wait until everything has been moved; check that it was, exactly once."""
    told = [body for mover in movers for body in mover.committed]
    assert len(told) == len(set(told)), "a message was moved twice"
    found = {}
    for queue in QUEUES:
        found[queue] = Counter(await bodies(node, queue))
    assert found["a"] == found["b"]
    assert set(found["a"].values()) <= {1}
    assert set(found["a"]) >= set(told)
    left = await bodies(node, "source")
    assert sorted([*found["a"], *left]) == sorted(b"%d" % each for each in range(count))
    await eventually(lambda: decisions(cluster) == 0)


async def begin(cluster, count, leaders=(FIRST, OTHER, THIRD)):
    """Fill the source, and define all queues, each with a leader of its own."""
    for name, leader in zip(("source", *QUEUES), leaders, strict=True):
        await cluster.add_queue(name, leader=leader)
    connection = await aio_pika.connect(cluster.nodes[FIRST].url)
    channel = await connection.channel()
    messages = [aio_pika.Message(b"%d" % number, delivery_mode=2) for number in range(count)]
    exchange = channel.default_exchange
    await asyncio.gather(*(exchange.publish(message, "source") for message in messages))
    await connection.close()


@pytest.mark.parametrize("killed", [FIRST, OTHER, THIRD])
async def test_a_killed_node_leaves_no_half_of_a_transaction(cluster, killed):
    count = 300
    await begin(cluster, count)
    movers = [Mover(cluster, number) for number in (FIRST, OTHER, THIRD)]
    others = [mover for number, mover in enumerate(movers) if number != killed]
    for mover in movers:
        await mover.more(5)
    await cluster.nodes[killed].kill()
    await movers[killed].stop()
    for mover in others:
        await mover.more(10)
    await cluster.nodes[killed].start()
    for mover in others:
        await mover.more(5)
        await mover.stop()
    await check_moved(cluster, cluster.nodes[killed], movers, count)


async def test_leaders_that_move_around_leave_no_half_of_a_transaction(cluster):
    count, draw = 400, Random(7)
    await begin(cluster, count)
    movers = [Mover(cluster, number) for number in (FIRST, OTHER, THIRD)]
    for _ in range(6):
        await movers[draw.randrange(3)].more(3)
        await lead(cluster, draw.choice(("source", *QUEUES)), draw.randrange(3))
    for mover in movers:
        await mover.more(3)
        await mover.stop()
    await check_moved(cluster, cluster.nodes[OTHER], movers, count)
