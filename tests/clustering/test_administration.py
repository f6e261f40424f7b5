"""Administrators look at a cluster and change it."""

import asyncio

import pytest

from leveret.clustering.operating.mover import MoverSettings
from leveret.clustering.operating.states import known_moves
from leveret.clustering.placement import PartitionPlace
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.coordination import DIRECTORIES_PREFIX, KeyChange, draining_nodes
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_hand_overs import FIRST, OTHER, THIRD, key_of, stored
from tests.clustering.test_moves import QUICK, controller, has_log, moved, state_of
from tests.clustering.test_takeover import Publisher, connected
from tests.support.waiting import eventually

Q = ("/", "q")


async def know_directories(cluster):
    changes = [KeyChange(f"{DIRECTORIES_PREFIX}{node.number}", b"{}") for node in cluster.nodes]
    await cluster.nodes[FIRST].coordinator.write(changes)


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path, QUICK, decision_partitions=0) as cluster:
        await know_directories(cluster)
        yield cluster


def operated(cluster):
    return controller(cluster).operated


async def test_the_status_says_who_is_there_and_what_is_wrong(cluster):
    await cluster.add_queue(
        "q", replicas=(FIRST, OTHER), arguments={"x-replicas": 2, "x-min-isr": 2}
    )
    await cluster.add_queue("other", leader=OTHER, replicas=(OTHER,))
    status = cluster.nodes[THIRD].operated.status()
    assert (status["node"], status["controller"]) == (THIRD, FIRST)
    assert status["coordinator"]["connected"]
    rows = [
        (each["node"], each["state"], each["replicas"], each["leaders"]) for each in status["nodes"]
    ]
    assert rows == [(0, "up", 1, 1), (1, "up", 2, 1), (2, "up", 0, 0)]
    counts = {"all": 2, "without_leader": 0, "below_min_isr": 0, "under_replicated": 0}
    assert status["partitions"] == counts
    figures = cluster.nodes[THIRD].operated.figures()
    assert (figures.is_connected, figures.is_controller) == (True, False)
    assert [(each.node, each.is_up) for each in figures.nodes] == [(0, True), (1, True), (2, True)]
    told = list(cluster.nodes[OTHER].operated.partition_figures())
    assert told == [("ok", False, True), ("ok", True, True)]
    await cluster.nodes[OTHER].kill()
    await eventually(lambda: operated(cluster).status()["partitions"]["without_leader"] == 1)
    await eventually(lambda: operated(cluster).status()["partitions"]["below_min_isr"] == 1)
    assert [each["state"] for each in operated(cluster).status()["nodes"]] == ["up", "down", "up"]
    figures = operated(cluster).figures()
    assert figures.is_controller
    assert {each.node: each.is_reachable for each in figures.nodes}[OTHER] is False
    told = [each.condition for each in operated(cluster).partition_figures()]
    assert told == ["below min-isr", "without leader"]
    rows = operated(cluster).partitions(problems=True, limit=None)
    assert [(row["queue"], row["state"]) for row in rows] == [
        ("q", "below min-isr"),
        ("other", "without leader"),
    ]
    assert len(operated(cluster).partitions(problems=False, limit=1)) == 1


async def test_transactions_whose_decisions_are_refused_count_as_such(tmp_path):
    async with BrokerCluster(tmp_path, QUICK, decision_partitions=1) as cluster:
        await know_directories(cluster)

        def counts():
            return operated(cluster).status()["partitions"]

        whole = {"all": 1, "without_leader": 0, "below_min_isr": 0, "under_replicated": 0}
        await eventually(lambda: counts() == whole)
        await cluster.nodes[THIRD].kill()
        await eventually(lambda: counts()["under_replicated"] == 1)
        await cluster.nodes[OTHER].kill()
        await eventually(lambda: counts()["below_min_isr"] == 1)


async def test_a_drained_node_is_left(cluster):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    await cluster.add_queue("everywhere")
    told = await operated(cluster).drain(FIRST)
    assert told == {"moving": 1, "staying": 1}
    await moved(cluster, (THIRD, OTHER))
    await eventually(lambda: not has_log(cluster.nodes[FIRST]))
    await eventually(lambda: not cluster.nodes[FIRST].leads("everywhere"))
    await operated(cluster).undrain(FIRST)
    await eventually(lambda: cluster.nodes[FIRST].leads("everywhere"))
    with pytest.raises(AdministrationError, match="not drained"):
        await operated(cluster).undrain(FIRST)


async def test_a_balance_gives_all_nodes_as_much(cluster):
    for number in range(6):
        await cluster.add_queue(f"q{number}", replicas=(FIRST,))
    assert await operated(cluster).add(THIRD) == 3
    await eventually(lambda: not known_moves(cluster.nodes[FIRST].coordinator))
    assert await operated(cluster).rebalance() == 2
    await eventually(lambda: not known_moves(cluster.nodes[FIRST].coordinator))
    assert [each["replicas"] for each in operated(cluster).status()["nodes"]] == [2, 2, 2]
    assert await operated(cluster).rebalance() == 0


async def test_moves_are_begun_shown_and_cancelled(cluster, monkeypatch):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    publisher = Publisher(await connected(cluster.nodes[FIRST]))
    await publisher.more(10)
    await publisher.stop()
    monkeypatch.setattr(PartitionPlace, "_have_replica", lambda *_: None)
    with pytest.raises(AdministrationError, match="no queue"):
        await operated(cluster).move(("/", "missing"), None, [THIRD])
    with pytest.raises(AdministrationError, match="no partition 7"):
        await operated(cluster).move(Q, 7, [THIRD])
    with pytest.raises(AdministrationError, match="node 9 is not there"):
        await operated(cluster).move(Q, None, [9])
    assert await operated(cluster).move(Q, 0, [THIRD, FIRST]) == 1
    await eventually(lambda: THIRD in state_of(cluster).replicas)
    (row,) = await cluster.nodes[OTHER].operated.moves()
    assert (row["queue"], row["from"], row["to"]) == ("q", [FIRST, OTHER], [THIRD, FIRST])
    assert (row["state"], row["copied"]) == ("copying", 0)
    assert list(cluster.nodes[OTHER].operated.move_states()) == ["copying"]
    assert row["records"] >= 10
    assert await operated(cluster).cancel_moves(Q, None) == 1
    await eventually(lambda: state_of(cluster).replicas == (FIRST, OTHER))
    assert not known_moves(cluster.nodes[FIRST].coordinator)
    assert await operated(cluster).cancel_moves(None, None) == 0


async def test_a_node_is_removed_once_nothing_is_on_it(cluster):
    await cluster.add_queue("q", replicas=(FIRST, OTHER))
    await cluster.add_queue("only", leader=OTHER, replicas=(OTHER,))
    with pytest.raises(AdministrationError, match="drain it, and stop it"):
        await operated(cluster).remove(OTHER, force=False)
    await cluster.nodes[OTHER].kill()
    with pytest.raises(AdministrationError, match="2 replicas"):
        await operated(cluster).remove(OTHER, force=False)
    await eventually(lambda: state_of(cluster).in_sync_nodes == {FIRST})
    with pytest.raises(AdministrationError) as refused:
        await operated(cluster).remove(OTHER, force=True)
    assert str(refused.value) == (
        "node 1 has the only replica of queue 'only' in vhost '/': start the node, or delete what "
        "only it has with `leveret queue delete QUEUE`; and repeat this command"
    )
    assert state_of(cluster).replicas == (FIRST,)
    assert operated(cluster).status()["nodes"][OTHER]["state"] == "down"


async def test_partitions_that_hang_on_a_node_are_found(cluster):
    quorum = {"x-queue-type": "quorum"}
    await cluster.add_queue("q", replicas=(FIRST, OTHER), arguments=quorum)
    await cluster.add_queue("only", replicas=(FIRST,))
    await eventually(lambda: state_of(cluster).in_sync_nodes == {FIRST, OTHER})
    assert [row["queue"] for row in operated(cluster).critical()] == ["q"]  # two must be in sync
    assert cluster.nodes[THIRD].operated.critical() == []
    await cluster.nodes[OTHER].kill()
    (row,) = operated(cluster).critical()
    assert (row["vhost"], row["queue"], row["replicas"]) == ("/", "q", [FIRST, OTHER])


async def test_removed_nodes_are_forgotten(cluster):
    await cluster.nodes[THIRD].kill()
    await operated(cluster).drain(THIRD)
    assert await operated(cluster).remove(THIRD, force=False) == 0
    assert [each["node"] for each in operated(cluster).status()["nodes"]] == [FIRST, OTHER]
    assert not draining_nodes(cluster.nodes[FIRST].coordinator.entries)
    with pytest.raises(AdministrationError, match="no node 2"):
        await operated(cluster).remove(THIRD, force=False)


async def test_leaders_are_elected_by_name(tmp_path):
    calm = MoverSettings(preferred_seconds=1e6, replace_seconds=0)
    async with BrokerCluster(tmp_path, calm, decision_partitions=0) as cluster:
        await cluster.add_queue("q")
        assert await operated(cluster).elect(Q, None, OTHER) == [{"partition": 0, "leader": OTHER}]
        assert state_of(cluster).replicas == (OTHER, FIRST, THIRD)
        assert await operated(cluster).elect(Q, 0, None) == [{"partition": 0, "leader": OTHER}]
        await cluster.nodes[OTHER].hand_overs.hand_over(key_of(cluster), FIRST)
        assert await operated(cluster).elect(Q, 0, None) == [{"partition": 0, "leader": OTHER}]
        with pytest.raises(AdministrationError, match="has a leader"):
            await operated(cluster).elect_unclean(Q, None, OTHER)
        with pytest.raises(AdministrationError, match="not in sync"):
            await operated(cluster).elect(Q, None, 9)


async def test_an_unclean_election_gives_up_what_only_others_have(tmp_path):
    calm = MoverSettings(preferred_seconds=1e6, replace_seconds=0)
    async with BrokerCluster(tmp_path, calm, decision_partitions=0) as cluster:
        await cluster.add_queue("q", leader=OTHER, replicas=(OTHER, THIRD))
        publisher = Publisher(await connected(cluster.nodes[OTHER]))
        await publisher.more(10)
        await publisher.stop()
        early = len(publisher.confirmed)
        await cluster.nodes[THIRD].kill()
        publisher = Publisher(await connected(cluster.nodes[OTHER]))
        await publisher.more(10)
        await publisher.stop()
        await cluster.nodes[OTHER].kill()
        await cluster.nodes[THIRD].start()
        await asyncio.sleep(1.5)
        third = cluster.nodes[THIRD]
        assert not third.leads("q")
        rows = await operated(cluster).elect_unclean(Q, None, None)
        assert rows == [{"partition": 0, "leader": THIRD, "in_sync_before": [OTHER]}]
        await eventually(lambda: third.leads("q"))
        await cluster.nodes[OTHER].start()  # drops what the new leader does not have
        await eventually(lambda: state_of(cluster).in_sync_nodes == {OTHER, THIRD})
        assert cluster.nodes[OTHER].log("q").end == third.log("q").end
        assert len(await stored(third)) >= early
