"""Which moves are made: to leave a node, or to give all nodes as much."""

from collections import Counter

import pytest

from leveret.cluster.assignment import NodeLoad, assign
from leveret.cluster.controller import (
    abandon_move,
    elect,
    elect_unclean,
    give_up_replica,
    hand_over,
)
from leveret.cluster.moves import PartitionMove, plan_balance, plan_departure
from leveret.cluster.partition_state import Member, PartitionState, Registration

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}
NODES = {node: Registration(0, 10 + node) for node in RACKS}


def state(*replicas, in_sync=None, leader=None):
    members = frozenset(Member(node, 0) for node in (replicas if in_sync is None else in_sync))
    return PartitionState(replicas, members, leader, 0 if leader is None else 10 + leader, 4, 7)


def spread_over(nodes, partitions=12):
    racks = {node: RACKS[node] for node in nodes}
    placed = assign(partitions, 2, racks, NodeLoad())
    return {f"q/{number}": state(*replicas) for number, replicas in enumerate(placed)}


def test_a_move_is_read_as_it_was_written():
    move = PartitionMove((1, 2), (3, 2))
    assert PartitionMove.from_bytes(move.to_bytes()) == move
    for value in (b"", b"{}", b'{"target":[],"origin":[1]}', b'{"target":[1,1],"origin":[1]}'):
        with pytest.raises(ValueError, match="no move"):
            PartitionMove.from_bytes(value)


def test_a_node_is_left_for_nodes_in_other_racks():
    states = {f"q/{number}": state(1, 3) for number in range(4)}
    moves = plan_departure(states, 1, {node: RACKS[node] for node in (2, 3, 4)})
    assert {move.target for move in moves.values()} == {(2, 3)}
    assert {move.origin for move in moves.values()} == {(1, 3)}


def test_what_has_no_other_node_stays():
    assert plan_departure({"q/0": state(1, 2, 3)}, 1, {2: "", 3: ""}) == {}


def test_all_nodes_have_as_much_after_a_balance():
    states = spread_over([1, 3])
    moves = plan_balance(states, RACKS, {})
    after = {key: moves[key].target if key in moves else states[key].replicas for key in states}
    replicas = Counter(node for each in after.values() for node in each)
    assert replicas == dict.fromkeys(RACKS, 6)
    assert Counter(each[0] for each in after.values()) == dict.fromkeys(RACKS, 3)
    assert all(len({RACKS[node] for node in each}) == 2 for each in after.values())
    assert all(len(set(each)) == 2 for each in after.values())
    assert plan_balance({key: state(*each) for key, each in after.items()}, RACKS, {}) == {}


def test_a_balance_onto_one_node_moves_to_it_alone():
    states = spread_over([1, 2, 3])
    moves = plan_balance(states, RACKS, {}, onto=4)
    assert moves
    for key, move in moves.items():
        assert set(move.target) - set(states[key].replicas) <= {4}


def test_partitions_get_the_replicas_that_they_lack():
    states = {"q/0": state(1), "q/1": state(1, 2), "other/0": state(1)}
    wanted = {"q/0": 3, "q/1": 2}
    moves = plan_balance(states, RACKS, wanted)
    assert len(moves["q/0"].target) == 3
    assert {RACKS[node] for node in moves["q/0"].target} == {"a", "b"}
    onto = plan_balance({"q/0": state(1)}, RACKS, {"q/0": 3}, onto=4)
    assert onto["q/0"].target == (1, 4)
    assert plan_balance({"q/0": state(1)}, {1: ""}, {"q/0": 3}) == {}


def test_leadership_is_handed_to_who_is_in_sync_and_there():
    before = state(1, 2, 3, in_sync=(1, 2), leader=1)
    after = hand_over(before, 2, NODES)
    assert (after.leader, after.leader_session, after.epoch, after.version) == (2, 12, 5, 8)
    assert after.in_sync == before.in_sync
    assert hand_over(before, 1, NODES) is None
    assert hand_over(before, 3, NODES) is None
    assert hand_over(before, 2, {1: NODES[1]}) is None
    assert hand_over(before, 2, {2: Registration(1, 12)}) is None


def test_nodes_that_are_avoided_lead_only_if_no_other_can():
    nodes = {node: NODES[node] for node in (2, 3)}
    before = state(1, 2, 3, leader=1)
    assert elect(before, nodes, survives_power_loss=False, avoided={2}).leader == 3
    assert elect(before, nodes, survives_power_loss=False, avoided={2, 3}).leader == 2


def test_an_abandoned_move_leaves_the_replicas_from_before():
    moving = state(3, 1, 2, in_sync=(1, 3), leader=1)
    after = abandon_move(moving, (1, 2))
    assert (after.replicas, after.in_sync_nodes, after.leader) == ((1, 2), {1}, 1)
    assert abandon_move(state(3, 1, 2, in_sync=(1, 3), leader=3), (1, 2)) is None


def test_a_replica_is_given_up_only_if_others_have_everything():
    assert give_up_replica(state(1, 2, leader=2), 1).replicas == (2,)
    assert give_up_replica(state(1, 2, in_sync=(1,)), 1) is None
    assert give_up_replica(state(1), 1) is None


def test_an_unclean_election_needs_a_replica_without_leader():
    dead = state(1, 2, in_sync=(1,), leader=1)
    nodes = {2: NODES[2]}
    after = elect_unclean(dead, 2, nodes)
    assert (after.leader, after.in_sync_nodes, after.epoch) == (2, {2}, 5)
    assert elect_unclean(dead, 3, NODES) is None
    assert elect_unclean(dead, 2, NODES) is None
