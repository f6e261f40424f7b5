"""Retries and tasks that wait beside a partition have its replicas, and go where it is led."""

import asyncio
import time

import aio_pika
import pytest

from leveret.cluster.partition_state import PartitionState
from leveret.replication.replicator import PARTITIONS_PREFIX
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import Publisher, connected, lead
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
SOON = {"x-retry-attempts": 3, "x-retry-delay": 1000}
LATE = {"x-retry-attempts": 3, "x-retry-delay": 3_600_000}


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


async def fail(node, *bodies):
    """Publish messages to q, and have each of them fail once."""
    channel = await connected(node)
    queue = await channel.get_queue("q")
    for body in bodies:
        await channel.default_exchange.publish(aio_pika.Message(body, delivery_mode=2), "q")
        message = await queue.get()
        assert message.body == body
        await message.reject(requeue=False)
    return channel


class Taker:
    """Acknowledges each message of q."""

    def __init__(self):
        self.got = []

    async def start(self, node):
        await (await (await connected(node)).get_queue("q")).consume(self._take)
        return self

    async def _take(self, message):
        self.got.append(message.body)
        await message.ack()


def waiting(node):
    """Return how many messages wait for their retry, as the node that leads q has them."""
    return sum(store.pending_count for store in node.broker.delayed_stores.opened)


def key_of(cluster):
    return f"{cluster.nodes[FIRST].queue('q').definition.incarnation}/0"


def state(cluster, node=FIRST):
    entries = cluster.nodes[node].coordinator.entries
    return PartitionState.from_bytes(entries[PARTITIONS_PREFIX + key_of(cluster)].value)


def files(cluster, name="q.retry"):
    """Return the nodes that have a file of a topic."""
    return {
        node.number
        for node in cluster.nodes
        for path in node.data.rglob("*.log")
        if name in str(path)
    }


async def away(cluster, node, count):
    """Wait until so many messages have left q for its retry topic, as all replicas know."""
    await eventually(lambda: waiting(node) == count)
    logs = [each.log("q") for each in cluster.nodes if each.is_up]
    await eventually(lambda: all(log.settled.count == count for log in logs))


async def test_the_next_leader_returns_what_waits(cluster):
    await cluster.add_queue("q", arguments=SOON)
    await fail(cluster.nodes[OTHER], b"a", b"b")
    await away(cluster, cluster.nodes[FIRST], 2)
    assert state(cluster).side_logs == {"q.retry"}
    await cluster.nodes[FIRST].kill()
    taker = await Taker().start(cluster.nodes[THIRD])
    await eventually(lambda: sorted(taker.got) == [b"a", b"b"])
    leader = await cluster.leader("q", among=(OTHER, THIRD))
    await eventually(lambda: not waiting(leader))


async def test_retries_go_on_as_leaders_come_and_go(cluster):
    await cluster.add_queue("q", arguments=LATE)
    await fail(cluster.nodes[FIRST], b"0")
    await away(cluster, cluster.nodes[FIRST], 1)
    for count, number in enumerate((OTHER, FIRST, THIRD, FIRST, OTHER), 2):
        await lead(cluster, "q", number)
        node = cluster.nodes[number]
        await eventually(lambda node=node, count=count: waiting(node) == count - 1)
        others = [each for each in cluster.nodes if each is not node]
        await eventually(lambda others=others: not any(map(waiting, others)))
        await fail(node, b"%d" % count)
        await away(cluster, node, count)


async def test_leadership_is_handed_over_with_what_waits(cluster):
    await cluster.add_queue("q", arguments=SOON)
    bodies = [b"%d" % number for number in range(5)]
    await fail(cluster.nodes[FIRST], *bodies)
    await away(cluster, cluster.nodes[FIRST], 5)
    assert await cluster.nodes[FIRST].hand_overs.hand_over(key_of(cluster), OTHER)
    taker = await Taker().start(cluster.nodes[FIRST])
    await eventually(lambda: sorted(taker.got) == bodies)
    await asyncio.sleep(0.2)
    assert sorted(taker.got) == bodies


async def test_a_follower_that_was_away_has_it_before_it_is_in_sync(cluster):
    await cluster.add_queue("q", arguments=LATE)
    await cluster.nodes[THIRD].kill()
    await fail(cluster.nodes[FIRST], b"a", b"b", b"c")
    await away(cluster, cluster.nodes[FIRST], 3)
    await cluster.nodes[THIRD].start()
    await cluster.in_sync("q", FIRST, OTHER, THIRD)
    await lead(cluster, "q", THIRD)
    await eventually(lambda: waiting(cluster.nodes[THIRD]) == 3)


async def test_all_replicas_are_deleted_with_the_queue(cluster):
    await cluster.add_queue("q", arguments=LATE)
    await fail(cluster.nodes[FIRST], b"a")
    await away(cluster, cluster.nodes[FIRST], 1)
    await eventually(lambda: files(cluster) == {FIRST, OTHER, THIRD})
    for node in cluster.nodes:
        node.broker.delete_queue(node.broker.vhosts["/"], node.queue("q"))
    await eventually(lambda: not files(cluster))


async def test_nothing_leaves_the_queue_before_others_know_of_the_topic(cluster):
    """Else a leader that begins without ZooKeeper would lose what waits there."""
    await cluster.add_queue("q", arguments=SOON)
    node = cluster.nodes[FIRST]
    channel = await connected(node)
    await channel.default_exchange.publish(aio_pika.Message(b"a", delivery_mode=2), "q")
    message = await (await channel.get_queue("q")).get()
    node.coordinator.lose_connection()
    await message.reject(requeue=False)
    await eventually(lambda: waiting(node) == 1)
    await asyncio.sleep(0.5)
    assert not node.log("q").settled
    node.coordinator.reconnect()
    taker = await Taker().start(cluster.nodes[OTHER])
    await eventually(lambda: taker.got == [b"a"])
    assert state(cluster, OTHER).side_logs == {"q.retry"}


async def test_tasks_with_an_eta_wait_at_the_next_leader(cluster):
    await cluster.add_queue("q", arguments={"x-celery-eta": True})
    channel = await connected(cluster.nodes[OTHER])
    eta = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 3))
    task = aio_pika.Message(b"task", headers={"eta": eta}, delivery_mode=2)
    await channel.default_exchange.publish(task, "q")
    assert waiting(cluster.nodes[FIRST]) == 1
    await cluster.nodes[FIRST].kill()
    taker = await Taker().start(cluster.nodes[OTHER])
    await eventually(lambda: taker.got == [b"task"])


class Rejecter:
    """Rejects each message of q once, and acknowledges it when it comes back."""

    def __init__(self):
        self.rejected, self.done = set(), set()

    async def start(self, node):
        channel = await connected(node)
        await channel.set_qos(20)
        await (await channel.get_queue("q")).consume(self._take)

    async def _take(self, message):
        number = int(message.body)
        if number in self.rejected:
            await message.ack()
            self.done.add(number)
        else:
            self.rejected.add(number)
            await message.reject(requeue=False)


@pytest.mark.parametrize("is_in_order", [True, False])
async def test_nothing_is_lost_on_its_way_as_leaders_change(cluster, is_in_order):
    """Whether leadership is handed over, or another node is elected at once."""
    await cluster.add_queue("q", arguments={"x-retry-attempts": 100, "x-retry-delay": 200})
    publisher = Publisher(await connected(cluster.nodes[OTHER]))
    rejecter = Rejecter()
    await rejecter.start(cluster.nodes[THIRD])
    for before, after in 4 * [(FIRST, OTHER), (OTHER, THIRD), (THIRD, FIRST)]:
        await publisher.more(20)
        if is_in_order:
            await cluster.nodes[FIRST].hand_overs.ask(before, key_of(cluster), after)
        if not cluster.nodes[after].leads("q"):
            await lead(cluster, "q", after)
    await publisher.more(20)
    sent = await publisher.stop()
    await eventually(lambda: rejecter.done >= set(sent))
