"""Elections and moves of partitions."""

import pytest

from leveret.cluster.controller import elect, reassign, resign, settle_move
from leveret.cluster.partition_state import Member, PartitionState, Registration

A, B, C = (Member(node, 0) for node in (1, 2, 3))
NODES = {node: Registration(0, 10 + node) for node in (1, 2, 3, 4)}
STATE = PartitionState((1, 2, 3), frozenset({A, B, C}), 1, 11, epoch=5, version=8)


def without(*nodes, **anew):
    return {node: anew.get(f"n{node}", known) for node, known in NODES.items() if node not in nodes}


def elected(nodes, state=STATE, *, survives=False):
    return elect(state, nodes, survives_power_loss=survives)


def test_a_leader_that_is_there_stays():
    assert elected(NODES) is None
    assert elected(without(2, 3)) is None


def test_the_next_replica_in_sync_leads_in_the_next_epoch():
    found = elected(without(1))
    assert (found.leader, found.leader_session, found.epoch, found.version) == (2, 12, 6, 9)
    assert found.in_sync == STATE.in_sync  # node 1 may be back before anybody has noticed
    assert elected(without(1, 2)).leader == 3


def test_a_leader_that_was_started_again_leads_in_the_next_epoch():
    found = elected(without(n1=Registration(0, 20)))
    assert (found.leader, found.leader_session, found.epoch) == (1, 20, 6)


def test_who_has_lost_data_is_elected_only_where_nothing_is_lost():
    nodes = without(n1=Registration(1, 20))
    assert elected(nodes).leader == 2
    found = elected(nodes, survives=True)
    assert (found.leader, found.in_sync) == (1, {Member(1, 1), B, C})


def test_nobody_leads_while_nobody_in_sync_is_there():
    state = PartitionState((1, 2, 3), frozenset({A}), 1, 11, epoch=5, version=8)
    found = elected(without(1), state)
    assert (found.leader, found.epoch, found.version) == (None, 5, 9)
    assert found.in_sync == {A}
    assert elected(without(1), found) is None
    assert elected(NODES, found).leader == 1


def test_a_move_adds_before_it_removes():
    target = (4, 2)
    assert settle_move(STATE, target, NODES) is None
    added = reassign(STATE, target)
    assert added.replicas == (4, 2, 1, 3)
    assert reassign(added, target) is None
    has_all = PartitionState(
        added.replicas, added.in_sync | {Member(4, 0)}, 1, 11, epoch=5, version=added.version
    )
    found = settle_move(has_all, target, NODES)
    assert (found.replicas, found.in_sync) == ((4, 2), {Member(4, 0), B})
    assert (found.leader, found.leader_session, found.epoch) == (4, 14, 6)
    assert settle_move(found, target, NODES) is None


@pytest.mark.parametrize(("missing", "leader"), [((4,), 2), ((4, 2), None)])
def test_a_move_ends_once_somebody_can_lead(missing, leader):
    state = PartitionState((4, 2, 1), frozenset({A, B, Member(4, 0)}), 1, 11, epoch=5, version=8)
    found = settle_move(state, (4, 2), without(*missing))
    assert (None if found is None else found.leader) == leader


def test_a_leader_that_stays_keeps_its_epoch():
    found = settle_move(STATE, (2, 1), NODES)
    assert (found.leader, found.epoch, found.replicas) == (1, 5, (2, 1))


def test_who_resigns_leaves_the_set_to_the_others():
    members = frozenset({Member(1, 0), Member(2, 0)})
    state = PartitionState((1, 2), members, 1, 7, epoch=3, version=5)
    after = resign(state, 1)
    assert after == PartitionState((1, 2), frozenset({Member(2, 0)}), None, 0, 3, 6)
    assert resign(state, 2) is None
    alone = PartitionState((1, 2), frozenset({Member(1, 0)}), 1, 7, epoch=3, version=5)
    assert resign(alone, 1).in_sync == alone.in_sync
