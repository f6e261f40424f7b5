"""Leadership is handed over while both nodes live: nothing is nacked, stored twice, or lost."""

import asyncio

import aio_pika
import pytest

from leveret.clustering.operating.mover import MoverSettings
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import Consumer, Publisher, connected
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


def key_of(cluster, name="q"):
    return f"{cluster.nodes[FIRST].queue(name).definition.incarnation}/0"


async def stored(node):
    """Return the bodies in the queue's log, each as often as it is there."""
    channel = await connected(node)
    queue = await channel.get_queue("q")
    bodies = []
    while (message := await queue.get(fail=False)) is not None:
        bodies.append(int(message.body))
    return bodies


@pytest.mark.parametrize("publisher_at", [FIRST, OTHER, THIRD])
async def test_publishers_notice_nothing(cluster, publisher_at):
    await cluster.add_queue("q")
    publisher = Publisher(await connected(cluster.nodes[publisher_at]))
    key = key_of(cluster)
    await publisher.more(20)
    for before, after in ((FIRST, OTHER), (OTHER, THIRD), (THIRD, FIRST)):
        assert await cluster.nodes[FIRST].hand_overs.ask(before, key, after)
        await eventually(lambda after=after: cluster.nodes[after].leads("q"))
        await publisher.more(20)
    sent = await publisher.stop()
    await asyncio.sleep(0.1)
    bodies = await stored(cluster.nodes[FIRST])
    assert bodies == sorted(set(bodies))
    assert bodies[: len(sent)] == sent


async def test_many_publishes_in_flight_are_stored_once(cluster):
    await cluster.add_queue("q")
    channels = [await connected(node) for node in cluster.nodes]
    key = key_of(cluster)

    async def publish(channel, first):
        waiting = [
            channel.default_exchange.publish(aio_pika.Message(b"%d" % number, delivery_mode=2), "q")
            for number in range(first, first + 1000)
        ]
        await asyncio.gather(*waiting)

    async def hand_over():
        for before, after in ((FIRST, OTHER), (OTHER, THIRD), (THIRD, FIRST)):
            await asyncio.sleep(0.05)
            assert await cluster.nodes[FIRST].hand_overs.ask(before, key, after)

    await asyncio.gather(
        hand_over(), *(publish(channel, 1000 * at) for at, channel in enumerate(channels))
    )
    assert sorted(await stored(await cluster.leader("q"))) == list(range(3000))


async def test_consumers_go_on_at_the_next_leader(cluster):
    await cluster.add_queue("q")
    publisher = Publisher(await connected(cluster.nodes[OTHER]))
    consumer = Consumer()
    await consumer.start(await connected(cluster.nodes[THIRD]))
    await publisher.more()
    assert await cluster.nodes[FIRST].hand_overs.hand_over(key_of(cluster), OTHER)
    await publisher.more()
    sent = await publisher.stop()
    await eventually(lambda: set(consumer.got) >= set(sent))
    queue = (await cluster.leader("q")).queue("q")
    await eventually(lambda: queue.message_count == queue.leased_count == 0)


@pytest.mark.parametrize("publisher_at", [FIRST, OTHER])
async def test_who_cannot_commit_leads_on_and_nobody_is_nacked(cluster, monkeypatch, publisher_at):
    monkeypatch.setattr("leveret.clustering.operating.hand_overs.COMMIT_SECONDS_MAX", 0.3)
    await cluster.add_queue("q")
    publisher = Publisher(await connected(cluster.nodes[publisher_at]))
    await publisher.more(20)
    first = cluster.nodes[FIRST]
    never = property(lambda _: False)
    monkeypatch.setattr("leveret.clustering.placement.PausedPartition.is_committed", never)
    assert not await first.hand_overs.hand_over(key_of(cluster), OTHER)
    assert first.leads("q")
    await publisher.more(20)
    sent = await publisher.stop()
    bodies = await stored(first)
    assert bodies == sorted(set(bodies))
    assert bodies[: len(sent)] == sent


async def test_what_is_not_led_or_not_in_sync_is_refused(cluster):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    ask = cluster.nodes[THIRD].hand_overs.ask
    assert not await ask(OTHER, key_of(cluster), FIRST)
    assert not await ask(FIRST, key_of(cluster), THIRD)
    assert not await ask(FIRST, key_of(cluster), FIRST)
    assert not await ask(FIRST, "unknown/0", OTHER)
    assert cluster.nodes[FIRST].leads("q")


async def test_a_node_that_stops_leaves_all_it_leads(cluster):
    await cluster.add_queue("q")
    await cluster.add_queue("alone", replicas=(FIRST,))
    assert await cluster.nodes[FIRST].hand_overs.leave(5) == 4  # decisions, too
    assert cluster.nodes[FIRST].leads("alone")
    await eventually(lambda: cluster.nodes[OTHER].leads("q"))


async def test_nodes_tell_how_far_their_replicas_are(cluster):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    publisher = Publisher(await connected(cluster.nodes[FIRST]))
    await publisher.more(10)
    count = len(await publisher.stop())
    key = key_of(cluster)
    for node in (FIRST, OTHER):
        ends = await cluster.nodes[THIRD].hand_overs.ends(node, [key, "unknown/0"])
        assert ends.keys() == {key}
        assert ends[key].end >= count
    assert await cluster.nodes[FIRST].hand_overs.ends(THIRD, [key]) == {}


async def test_the_preferred_leader_leads_again(tmp_path):
    mover = MoverSettings(preferred_seconds=0.2, replace_seconds=0)
    async with BrokerCluster(tmp_path, mover) as cluster:
        await cluster.add_queue("q")
        assert await cluster.nodes[FIRST].hand_overs.hand_over(key_of(cluster), OTHER)
        await eventually(lambda: cluster.nodes[OTHER].leads("q"))
        await eventually(lambda: cluster.nodes[FIRST].leads("q"))


async def test_a_hand_over_waits_for_nothing_but_the_other_nodes(cluster, monkeypatch):
    """Each wait ends by what it waits for: none may come to its limit."""
    limits = ("CALM_SECONDS_MAX", "COMMIT_SECONDS_MAX", "LEAVE_SECONDS_MAX")
    for name in limits:
        monkeypatch.setattr(f"leveret.clustering.operating.hand_overs.{name}", 1e6)
    await cluster.add_queue("q")
    publisher = Publisher(await connected(cluster.nodes[OTHER]))
    consumer = Consumer()
    await consumer.start(await connected(cluster.nodes[THIRD]))
    await publisher.more()
    async with asyncio.timeout(60):
        assert await cluster.nodes[FIRST].hand_overs.hand_over(key_of(cluster), OTHER)
    await publisher.more()
    await publisher.stop()
