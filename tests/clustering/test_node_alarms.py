"""Alarms of one node block the publishers of all, until they clear or the node is gone."""

import asyncio
import contextlib

import aio_pika
import pytest

from leveret.clustering import node_alarms
from leveret.core.alarms import Resource
from leveret.links.identity import NodeIdentity
from tests.clustering.nodes import BrokerCluster
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = range(3)


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path, decision_partitions=0) as cluster:
        yield cluster


def alarms(cluster, number):
    return cluster.nodes[number].broker.alarms


def blocked(cluster, number):
    return [each.is_blocked for each in cluster.nodes[number].broker.connections]


async def publish_on(channel):
    while True:
        await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")


async def test_publishers_of_other_nodes_are_blocked_until_the_alarm_clears(cluster):
    await cluster.add_queue("q")
    channel = await (await aio_pika.connect(cluster.nodes[THIRD].url)).channel()
    publishing = asyncio.get_running_loop().create_task(publish_on(channel))
    alarms(cluster, FIRST).set(Resource.DISK, low=True)
    await eventually(lambda: blocked(cluster, THIRD) == [True])
    assert alarms(cluster, THIRD).elsewhere == [("leveret-0", Resource.DISK)]
    assert alarms(cluster, THIRD).low == []
    rows = cluster.nodes[THIRD].operated.status()["nodes"]
    assert [row["alarms"] for row in rows] in ([["disk"]], [["disk"], [], []])
    alarms(cluster, FIRST).set(Resource.MEMORY, low=True)
    await eventually(lambda: alarms(cluster, THIRD).reason == "low on memory & disk")
    for resource in Resource:
        alarms(cluster, FIRST).set(resource, low=False)
    await eventually(lambda: blocked(cluster, THIRD) == [False])
    assert not publishing.done()
    publishing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await publishing


async def test_a_node_that_begins_later_hears_of_alarms(cluster):
    await cluster.nodes[OTHER].kill()
    alarms(cluster, FIRST).set(Resource.MEMORY, low=True)
    await cluster.nodes[OTHER].start()
    await eventually(lambda: alarms(cluster, OTHER).reason == "low on memory")


async def test_alarms_of_a_node_that_is_gone_are_forgotten(cluster):
    alarms(cluster, FIRST).set(Resource.DISK, low=True)
    await eventually(lambda: alarms(cluster, OTHER).reason)
    await cluster.nodes[FIRST].kill()
    await eventually(lambda: not alarms(cluster, OTHER).reason)


async def test_alarms_of_a_node_that_is_not_heard_any_more_are_forgotten(cluster, monkeypatch):
    alarms(cluster, FIRST).set(Resource.DISK, low=True)
    await eventually(lambda: alarms(cluster, OTHER).reason)
    monkeypatch.setattr(cluster.nodes[FIRST].alarms, "_links", None)  # it cannot tell
    monkeypatch.setattr(cluster.nodes[FIRST].alarms, "tell", lambda: None)
    monkeypatch.setattr(node_alarms, "SILENT_MS_MAX", 100)
    await eventually(lambda: not alarms(cluster, OTHER).reason)
    assert cluster.nodes[OTHER].alarms.low_of(FIRST) == frozenset()


async def test_what_makes_no_sense_is_ignored(cluster):
    heard = cluster.nodes[OTHER].alarms.heard
    session = cluster.nodes[FIRST].coordinator.session
    for number, of_session, payload in [
        (FIRST, session, b""),
        (FIRST, session, b"\x02\x02"),
        (FIRST, session + 7, b"\x02"),
        (9, 1, b"\x02"),
        (FIRST, session, b"\x80"),  # a resource of a later release
    ]:
        identity = NodeIdentity("c", number, of_session, "test", frozenset())
        heard(identity, memoryview(payload))
        assert alarms(cluster, OTHER).elsewhere == []
