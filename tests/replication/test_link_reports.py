"""A leader that is cut off from its followers is replaced soon, one that has lost them is not."""

from __future__ import annotations

import asyncio

import pytest

from leveret.cluster.replication.leader import ReplicationLimits
from leveret.ports.coordination import LINKS_PREFIX, KeyChange
from tests.replication.cluster import KEYS, Cluster
from tests.support.waiting import eventually

ORDERS = KEYS[0]
NEVER_LAGS = ReplicationLimits(lag_ms_max=1_000_000_000, in_sync_min=2)
LONG_ENOUGH = 2.5  # seconds in which a leader would have been replaced


@pytest.fixture
async def cluster(tmp_path):
    async with Cluster(tmp_path, limits=NEVER_LAGS) as cluster:
        end = await cluster.publish(ORDERS, b"a")
        await cluster.in_sync(ORDERS, 0, 1, 2)
        await cluster.committed(ORDERS, end)
        yield cluster


def cut(one, another) -> None:
    one.links.clear_address(another.number)
    another.links.clear_address(one.number)


async def leader_and_followers(cluster):
    leader = await cluster.led(ORDERS)
    return leader, [node for node in cluster.nodes if node is not leader]


def reports(cluster):
    entries = cluster.nodes[0].coordinator.entries
    return {key.removeprefix(LINKS_PREFIX) for key in entries.keys(LINKS_PREFIX)}


async def test_others_lead_that_have_links_with_each_other(cluster):
    leader, followers = await leader_and_followers(cluster)
    epoch = cluster.state(ORDERS).epoch
    began = asyncio.get_running_loop().time()
    for each in followers:
        cut(leader, each)
    await eventually(lambda: cluster.state(ORDERS).leader in {each.number for each in followers})
    assert asyncio.get_running_loop().time() - began > 0.9  # it was patient
    assert cluster.state(ORDERS).epoch == epoch + 1
    end = await cluster.publish(ORDERS, b"b")
    new = await cluster.led(ORDERS)
    await eventually(lambda: new.logs[ORDERS].committed == end)
    assert leader.number not in cluster.state(ORDERS).in_sync_nodes
    cluster.meet(leader)
    await cluster.in_sync(ORDERS, 0, 1, 2)
    await eventually(lambda: not reports(cluster))
    assert await cluster.contents(ORDERS) == [{0: b"a", 1: b"b"}] * 3


async def test_a_link_that_is_soon_there_again_changes_nothing(cluster):
    leader, followers = await leader_and_followers(cluster)
    epoch = cluster.state(ORDERS).epoch
    for _ in range(4):
        for each in followers:
            cut(leader, each)
        await asyncio.sleep(0.4)
        cluster.meet(leader)
        await eventually(lambda: len(leader.links.connected_nodes()) == 2)
        await asyncio.sleep(0.4)  # what is there for less than a look is not seen
    await asyncio.sleep(1)
    assert cluster.state(ORDERS).epoch == epoch
    assert not reports(cluster)


async def test_one_link_is_enough(cluster):
    leader, followers = await leader_and_followers(cluster)
    epoch = cluster.state(ORDERS).epoch
    cut(leader, followers[0])
    await eventually(lambda: reports(cluster) == {f"{leader.number}", f"{followers[0].number}"})
    await asyncio.sleep(LONG_ENOUGH)
    assert cluster.state(ORDERS).epoch == epoch


async def test_nobody_yields_to_those_that_have_no_links_either(cluster):
    leader, followers = await leader_and_followers(cluster)
    epoch = cluster.state(ORDERS).epoch
    cut(*followers)
    for each in followers:
        cut(leader, each)
    await eventually(lambda: reports(cluster) == {"0", "1", "2"})
    await asyncio.sleep(LONG_ENOUGH)
    assert cluster.state(ORDERS).epoch == epoch


async def test_nobody_yields_to_those_that_may_have_died(cluster):
    """They are registered for some seconds more, and do not tell anything."""
    leader, followers = await leader_and_followers(cluster)
    epoch = cluster.state(ORDERS).epoch
    await cluster.nodes[0].coordinator.write(
        [KeyChange(f"{LINKS_PREFIX}{each.number}", b'{"session":0}') for each in followers]
    )
    for each in followers:
        for task in list(each.replicator._tasks):
            task.cancel()
    for each in followers:
        cut(leader, each)
    await eventually(lambda: f"{leader.number}" in reports(cluster))
    await asyncio.sleep(LONG_ENOUGH)
    assert cluster.state(ORDERS).epoch == epoch
