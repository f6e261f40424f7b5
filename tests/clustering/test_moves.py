"""Partitions move to other nodes while clients use them."""

import asyncio

import pytest

from leveret.cluster.moves import PartitionMove
from leveret.clustering.operating.mover import MoverSettings
from leveret.clustering.operating.states import known_moves
from leveret.clustering.placement import PartitionPlace
from leveret.ports.coordination import DIRECTORIES_PREFIX, DRAINING, MOVES_PREFIX, KeyChange
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_hand_overs import FIRST, OTHER, THIRD, key_of, stored
from tests.clustering.test_takeover import Publisher, connected
from tests.support.waiting import eventually

QUICK = MoverSettings(moves_at_once=2, preferred_seconds=0.2, replace_seconds=0)


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path, QUICK) as cluster:
        yield cluster


def controller(cluster):
    return next(node for node in cluster.nodes if node.is_up and node.coordinator.is_controller)


def state_of(cluster, name="q"):
    node = controller(cluster)
    return node.table.states[f"{node.queue(name).definition.incarnation}/0"]


async def move(cluster, name, target):
    key = key_of(cluster, name)
    origin = state_of(cluster, name).replicas
    await controller(cluster).mover.begin({key: PartitionMove(target, origin)})


def has_log(node, name="q"):
    return any((node.data / "topics").glob(f"%2F/{name}*/*.log"))


async def moved(cluster, target, name="q"):
    await eventually(
        lambda: (
            state_of(cluster, name).replicas == target
            and not known_moves(cluster.nodes[OTHER].coordinator)
        )
    )


async def test_a_partition_moves_under_a_publisher(cluster):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    publisher = Publisher(await connected(cluster.nodes[THIRD]))
    await publisher.more(20)
    assert not has_log(cluster.nodes[THIRD])
    await move(cluster, "q", (THIRD, OTHER))
    await moved(cluster, (THIRD, OTHER))
    await publisher.more(20)
    sent = await publisher.stop()
    await eventually(lambda: cluster.nodes[THIRD].leads("q"))
    await eventually(lambda: not has_log(cluster.nodes[FIRST]))
    bodies = await stored(cluster.nodes[THIRD])
    assert bodies == sorted(set(bodies))
    assert bodies[: len(sent)] == sent


async def test_a_move_keeps_a_leader_that_stays(cluster):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    epoch = state_of(cluster).epoch
    await move(cluster, "q", (FIRST, THIRD))
    await moved(cluster, (FIRST, THIRD))
    assert (state_of(cluster).leader, state_of(cluster).epoch) == (FIRST, epoch)
    await eventually(lambda: not has_log(cluster.nodes[OTHER]))


async def test_a_move_of_the_order_alone_changes_who_is_preferred(cluster):
    await cluster.add_queue("q")
    await move(cluster, "q", (THIRD, FIRST, OTHER))
    await moved(cluster, (THIRD, FIRST, OTHER))
    await eventually(lambda: cluster.nodes[THIRD].leads("q"))


async def test_a_leader_that_cannot_hand_over_is_replaced_by_an_election(cluster, monkeypatch):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))

    async def refuse(*_):
        return False

    monkeypatch.setattr("leveret.clustering.operating.hand_overs.HandOvers.hand_over", refuse)
    await move(cluster, "q", (OTHER, THIRD))
    await moved(cluster, (OTHER, THIRD))
    await eventually(lambda: cluster.nodes[OTHER].leads("q"))


async def test_the_next_controller_goes_on_with_moves(cluster, monkeypatch):
    await cluster.add_queue("q", replicas=(OTHER, THIRD), leader=OTHER)
    first = controller(cluster)
    assert first is cluster.nodes[FIRST]
    first.mover._settings = MoverSettings(moves_at_once=0)
    await move(cluster, "q", (OTHER,))
    await first.kill()
    await eventually(lambda: cluster.nodes[OTHER].coordinator.is_controller)
    await moved(cluster, (OTHER,))
    assert not known_moves(cluster.nodes[THIRD].coordinator)


async def test_few_partitions_catch_up_at_a_time(cluster, monkeypatch):
    names = [f"q{number}" for number in range(4)]
    for name in names:
        await cluster.add_queue(name, replicas=(FIRST, OTHER))
    # The third node never has the logs, and so never catches up.
    monkeypatch.setattr(PartitionPlace, "_have_replica", lambda *_: None)
    for name in names:
        await move(cluster, name, (FIRST, THIRD))
    await asyncio.sleep(1.5)
    begun = [name for name in names if THIRD in state_of(cluster, name).replicas]
    assert len(begun) == QUICK.moves_at_once


async def test_a_move_of_a_queue_that_is_deleted_ends(cluster):
    coordinator = controller(cluster).coordinator
    value = PartitionMove((FIRST,), (OTHER,)).to_bytes()
    await coordinator.write([KeyChange(MOVES_PREFIX + "gone/0", value)])
    await eventually(lambda: not known_moves(coordinator))


async def test_a_draining_node_leads_nothing(cluster):
    await cluster.add_queue("q")
    await cluster.nodes[FIRST].coordinator.write([KeyChange(f"nodes/{FIRST}", DRAINING)])
    await eventually(lambda: cluster.nodes[OTHER].leads("q"))
    await asyncio.sleep(1)
    assert cluster.nodes[OTHER].leads("q")


async def test_replicas_of_a_node_that_stays_away_are_placed_on_others(tmp_path):
    mover = MoverSettings(preferred_seconds=1e6, replace_seconds=0.5)
    async with BrokerCluster(tmp_path, mover) as cluster:
        await cluster.add_queue("q", replicas=(FIRST, OTHER))
        changes = [KeyChange(f"{DIRECTORIES_PREFIX}{node.number}", b"{}") for node in cluster.nodes]
        await cluster.nodes[FIRST].coordinator.write(changes)
        await cluster.nodes[OTHER].kill()
        key = key_of(cluster)
        table = cluster.nodes[FIRST].table
        await eventually(lambda: table.states[key].replicas == (FIRST, THIRD))
        assert cluster.nodes[FIRST].leads("q")
