"""Decisions of the controller: who leads a partition, and how it moves to other nodes.

Plain functions of a partition's state and the nodes that are there. Each returns the next state, or
None if nothing is to be done; the coordinator takes it if nobody was faster (see `version`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.cluster.partition_state import Member

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from leveret.cluster.partition_state import PartitionState, Registration

__all__ = [
    "abandon_move",
    "elect",
    "elect_unclean",
    "give_up_replica",
    "hand_over",
    "reassign",
    "resign",
    "settle_move",
]


def elect(
    state: PartitionState,
    nodes: Mapping[int, Registration],
    *,
    survives_power_loss: bool,
    avoided: Container[int] = (),
) -> PartitionState | None:
    """Return the state with a leader that is there and in sync, if the present one is not.

    Nodes that are `avoided` lead only where no other can.

    Who may have lost data is not elected, unless the log `survives_power_loss`: its members have on
    their disks what they have said to have. Members that are not there stay in the set until the
    new leader removes them, as this view of the nodes may be an old one: a leader that is gone by
    now must not have been the only member that was left.
    """
    if _leads(state, nodes):
        return None
    eligible = [
        Member(node, nodes[node].incarnation)
        for node in state.replicas
        if node in nodes and _keeps(state, node, nodes[node], survives=survives_power_loss)
    ]
    if not eligible:
        if state.leader is None:
            return None
        return replace(state, leader=None, leader_session=0, version=state.version + 1)
    leader = next((each.node for each in eligible if each.node not in avoided), eligible[0].node)
    there = {each.node for each in eligible}
    others = (each for each in state.in_sync if each.node not in there)
    return replace(
        state,
        in_sync=frozenset((*eligible, *others)),
        leader=leader,
        leader_session=nodes[leader].session,
        epoch=state.epoch + 1,
        version=state.version + 1,
    )


def _leads(state: PartitionState, nodes: Mapping[int, Registration]) -> bool:
    known = None if state.leader is None else nodes.get(state.leader)
    return known is not None and known.session == state.leader_session


def _keeps(state: PartitionState, node: int, known: Registration, *, survives: bool) -> bool:
    if survives:
        return node in state.in_sync_nodes
    return Member(node, known.incarnation) in state.in_sync


def resign(state: PartitionState, node: int) -> PartitionState | None:
    """Return the state after its leader gives up: nobody leads, until the controller elects.

    Who resigns leaves the set if others are in it, and joins again as any follower does. None if
    `node` does not lead.
    """
    if state.leader != node:
        return None
    others = frozenset(each for each in state.in_sync if each.node != node)
    return replace(
        state,
        in_sync=others or state.in_sync,
        leader=None,
        leader_session=0,
        version=state.version + 1,
    )


def reassign(state: PartitionState, target: Sequence[int]) -> PartitionState | None:
    """Return the state in which the nodes of `target` are replicas beside those that are it now."""
    replicas = tuple(dict.fromkeys((*target, *state.replicas)))
    if replicas == state.replicas:
        return None
    return replace(state, replicas=replicas, version=state.version + 1)


def settle_move(
    state: PartitionState, target: Sequence[int], nodes: Mapping[int, Registration]
) -> PartitionState | None:
    """Return the state in which only `target` has replicas, once all of it is in sync.

    If the leader is not among them, the first of them that is there leads.
    """
    if state.replicas == tuple(target) or not set(target) <= state.in_sync_nodes:
        return None
    kept = frozenset(each for each in state.in_sync if each.node in target)
    moved = replace(state, replicas=tuple(target), in_sync=kept, version=state.version + 1)
    if state.leader in target:
        return moved
    there = [
        node for node in target if node in nodes and Member(node, nodes[node].incarnation) in kept
    ]
    if not there:
        return None
    return replace(
        moved, leader=there[0], leader_session=nodes[there[0]].session, epoch=state.epoch + 1
    )


def hand_over(
    state: PartitionState, node: int, nodes: Mapping[int, Registration]
) -> PartitionState | None:
    """Return the state in which `node` leads in place of the present leader.

    None if it leads already, is not there, or does not have everything that is committed.
    """
    known = nodes.get(node)
    if state.leader == node or known is None or node not in state.replicas:
        return None
    if Member(node, known.incarnation) not in state.in_sync:
        return None
    return replace(
        state,
        leader=node,
        leader_session=known.session,
        epoch=state.epoch + 1,
        version=state.version + 1,
    )


def abandon_move(state: PartitionState, origin: Sequence[int]) -> PartitionState | None:
    """Return the state in which only `origin` has replicas again, those from before a move.

    None if a node that came with the move leads by now, or nobody of `origin` is in sync.
    """
    kept = frozenset(each for each in state.in_sync if each.node in origin)
    if not kept or (state.leader is not None and state.leader not in origin):
        return None
    return replace(state, replicas=tuple(origin), in_sync=kept, version=state.version + 1)


def give_up_replica(state: PartitionState, node: int) -> PartitionState | None:
    """Return the state without the replica of a node that will not come back.

    None if it is the only one, leads, or is the only one that has everything.
    """
    replicas = tuple(each for each in state.replicas if each != node)
    in_sync = frozenset(each for each in state.in_sync if each.node != node)
    if not replicas or not in_sync or state.leader == node:
        return None
    return replace(state, replicas=replicas, in_sync=in_sync, version=state.version + 1)


def elect_unclean(
    state: PartitionState, node: int, nodes: Mapping[int, Registration]
) -> PartitionState | None:
    """Return the state in which `node` leads though others may have more: what it lacks is lost.

    Only by an operator's command. None if the partition has a leader, or the node is not there or
    has no replica.
    """
    known = nodes.get(node)
    if _leads(state, nodes) or known is None or node not in state.replicas:
        return None
    return replace(
        state,
        in_sync=frozenset([Member(node, known.incarnation)]),
        leader=node,
        leader_session=known.session,
        epoch=state.epoch + 1,
        version=state.version + 1,
    )
