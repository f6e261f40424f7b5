"""Partitions of decisions are handed over and moved while clients commit: no commit fails."""

from __future__ import annotations

import asyncio
import contextlib

import aio_pika
import pytest

from leveret.cluster.transactions.numbers import TransactionNumber
from leveret.clustering.operating.mover import MoverSettings
from leveret.clustering.operating.states import known_moves
from leveret.clustering.transactions.placing import decisions_key
from leveret.ports.coordination import DIRECTORIES_PREFIX, KeyChange
from tests.clustering.nodes import BrokerCluster, BrokerNode
from tests.clustering.test_moves import controller
from tests.clustering.test_transactions import bodies, decisions, publish
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
QUICK = MoverSettings(preferred_seconds=0.2, replace_seconds=0)
KEYS = [decisions_key(number) for number in range(3)]


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path, QUICK) as cluster:
        await in_sync(cluster, {FIRST, OTHER, THIRD})
        yield cluster


def states(cluster):
    return [controller(cluster).table.states.get(key) for key in KEYS]


async def in_sync(cluster, nodes):
    """Wait until all partitions of decisions have these replicas, all in sync."""
    await eventually(
        lambda: all(
            state is not None and set(state.replicas) == state.in_sync_nodes == nodes
            for state in states(cluster)
        )
    )


@contextlib.asynccontextmanager
async def committing(cluster):
    """Have clients of all nodes commit transactions over two queues, none of which may fail.

    The first node leads none of them.
    """
    await cluster.add_queue("a", leader=OTHER)
    await cluster.add_queue("b", leader=THIRD)
    committed = []

    async def commit(node):
        connection = await aio_pika.connect(node.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=False)
            while True:
                body = b"%d.%d" % (node.number, len(committed))
                async with channel.transaction():
                    await publish(channel, "a", body)
                    await publish(channel, "b", body)
                committed.append(body)

    loop = asyncio.get_running_loop()
    clients = [loop.create_task(commit(node)) for node in cluster.nodes]

    async def more() -> None:
        wanted = len(committed) + 10
        await eventually(
            lambda: len(committed) >= wanted or any(client.done() for client in clients)
        )
        for client in clients:
            assert not client.done(), client.exception()

    try:
        await more()
        yield more
        await more()
    finally:
        for client in clients:
            client.cancel()
        await asyncio.wait(clients, timeout=5)
    found = [await bodies(cluster.nodes[THIRD], queue) for queue in ("a", "b")]
    assert all(set(each) >= set(committed) for each in found)
    assert sorted(found[0]) == sorted(set(found[1]))
    await eventually(lambda: decisions(cluster) == 0)


async def test_no_commit_fails_while_leadership_is_handed_over(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        await in_sync(cluster, {FIRST, OTHER, THIRD})
        async with committing(cluster) as more:
            for before, after in ((FIRST, OTHER), (OTHER, THIRD), (THIRD, FIRST)):
                asked = [cluster.nodes[FIRST].hand_overs.ask(before, key, after) for key in KEYS]
                assert await asyncio.gather(*asked) == [True] * 3
                await more()
                assert [state.leader for state in states(cluster)] == [after] * 3


async def test_a_node_that_stops_hands_decisions_over(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        await in_sync(cluster, {FIRST, OTHER, THIRD})
        async with committing(cluster):
            assert await cluster.nodes[FIRST].hand_overs.leave(5) == 3
        assert FIRST not in {state.leader for state in states(cluster)}


def has_decisions(node):
    return any((node.data / "topics").rglob("*leveret.transactions*"))


async def test_a_drained_node_has_no_decisions(cluster):
    fourth = BrokerNode(cluster, 3)
    cluster.nodes.append(fourth)
    await fourth.start()
    changes = [KeyChange(f"{DIRECTORIES_PREFIX}{node.number}", b"{}") for node in cluster.nodes]
    await cluster.nodes[FIRST].coordinator.write(changes)
    async with committing(cluster):
        assert has_decisions(cluster.nodes[FIRST])
        assert await controller(cluster).operated.drain(FIRST) == {"moving": 5, "staying": 0}
        await in_sync(cluster, {OTHER, THIRD, 3})
        await eventually(lambda: not has_decisions(cluster.nodes[FIRST]))
    assert has_decisions(fourth)
    assert FIRST not in {state.leader for state in states(cluster)}


async def test_what_is_given_up_is_placed_on_others(cluster):
    changes = [KeyChange(f"{DIRECTORIES_PREFIX}{node.number}", b"{}") for node in cluster.nodes]
    await cluster.nodes[FIRST].coordinator.write(changes)
    await cluster.nodes[OTHER].kill()
    operated = controller(cluster).operated
    await eventually(lambda: operated.status()["partitions"]["under_replicated"] == 3)
    assert operated.status()["partitions"]["below_min_isr"] == 0
    assert await operated.remove(OTHER, force=True) == 3
    await in_sync(cluster, {FIRST, THIRD})
    await cluster.nodes[OTHER].start()
    await in_sync(cluster, {FIRST, OTHER, THIRD})


async def test_numbers_in_use_keep_a_leader(cluster, monkeypatch):
    monkeypatch.setattr("leveret.clustering.transactions.decider.USE_SECONDS_MAX", 0.1)
    leader, other = cluster.nodes[FIRST], cluster.nodes[OTHER]
    await eventually(lambda: all(leader.transactions.partitions.led(n) for n in range(3)))
    decider = other.transactions.decider
    ready = asyncio.Event()
    decider.when_ready(ready.set)
    await ready.wait()
    transaction = decider.draw()
    number = TransactionNumber.of(transaction).partition
    key = decisions_key(number)
    assert not await leader.hand_overs.hand_over(key, THIRD)
    assert leader.transactions.partitions.led(number).draw()
    decider.ended(transaction)
    assert await leader.hand_overs.hand_over(key, THIRD)
    assert not leader.transactions.partitions.led(number)
    await eventually(lambda: cluster.nodes[THIRD].transactions.partitions.led(number) is not None)


async def test_a_balance_gives_other_nodes_decisions(cluster):
    planned = await controller(cluster).operated.rebalance()
    assert planned == 2
    await eventually(lambda: not known_moves(controller(cluster).coordinator))
    await eventually(
        lambda: sorted(state.leader for state in states(cluster)) == [FIRST, OTHER, THIRD]
    )
