"""Clocks of nodes are compared: one that is far off is told."""

import logging

import pytest

from leveret.clustering import node_clocks
from tests.clustering.nodes import BrokerCluster

FIRST, OTHER, THIRD = range(3)


@pytest.fixture
async def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(node_clocks, "ROUND_TRIP_MS_MAX", 60_000)  # however busy the machine is
    async with BrokerCluster(tmp_path, decision_partitions=0) as cluster:
        yield cluster


async def compared(cluster):
    clocks = cluster.nodes[FIRST].clocks
    await clocks.compare()
    return {node: round(seconds / 60) for node, seconds in clocks.offsets.items()}  # minutes


async def test_a_clock_that_is_far_off_is_told_once(cluster, caplog):
    caplog.set_level(logging.INFO, "leveret.clustering.node_clocks")
    assert await compared(cluster) == {OTHER: 0, THIRD: 0}
    cluster.nodes[OTHER].clock.ahead_ms = 3_600_000
    cluster.nodes[THIRD].clock.ahead_ms = -7_200_000
    caplog.clear()
    for _ in range(2):
        assert await compared(cluster) == {OTHER: 60, THIRD: -120}
    told = sorted(record.message for record in caplog.records)
    assert len(told) == 2
    assert "the clock of node 1 is 3" in told[0]
    assert " s ahead of this node's" in told[0]
    assert " s behind this node's" in told[1]
    rows = cluster.nodes[FIRST].operated.status()["nodes"]
    assert all("clock_offset_seconds" in row for row in rows)
    caplog.clear()
    cluster.nodes[OTHER].clock.ahead_ms = 0
    assert (await compared(cluster))[OTHER] == 0


async def test_slow_answers_and_lost_nodes_say_nothing(cluster, monkeypatch):
    await compared(cluster)
    monkeypatch.setattr(node_clocks, "ROUND_TRIP_MS_MAX", -1)
    cluster.nodes[OTHER].clock.ahead_ms = 3_600_000
    assert (await compared(cluster))[OTHER] == 0  # as it was
    await cluster.nodes[OTHER].kill()
    assert OTHER not in await compared(cluster)
