"""Facts about all nodes of a cluster, from what one of them knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.cluster.entries import NODES, NodeValue, node_path, parse_entry
from leveret.cluster.numbered_entries import read_numbered
from leveret.ports.cluster import MemberFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.cluster.entries import LiveValue
    from leveret.ports.coordinator import Coordinator
    from leveret.replication.leader import Leader
    from leveret.replication.shard import ShardEntry

__all__ = ["UnconnectedNode", "member_facts", "read_racks"]

UNKNOWN = "this node has no session with ZooKeeper, and does not know who has one"


class UnconnectedNode:
    """Node that has had no session with ZooKeeper since it was started: it knows itself.

    It is a `ClusterView`.
    """

    def __init__(self, node: int, rack: str) -> None:
        self.node = node
        self._rack = rack

    async def members(self) -> list[MemberFacts]:
        """Return this node, with no role, which has no lease (see ports.ClusterView)."""
        facts = member_facts({self.node: self._rack}, None, None, None, 0)
        return [replace(one, lease_ms=0) for one in facts]


async def read_racks(coordinator: Coordinator) -> dict[int, str]:
    """Return the racks of the registered nodes. Raises CoordinatorError."""
    entries = await read_numbered(coordinator, NODES)
    return {
        node: parse_entry(NodeValue, node_path(node), entry).rack for node, entry in entries.items()
    }


def member_facts(
    racks: Mapping[int, str],
    live: Mapping[int, LiveValue] | None,
    entry: ShardEntry | None,
    leader: Leader | None,
    now_ms: int,
) -> list[MemberFacts]:
    """Return facts about nodes with a known rack and live ones; `leader` if this node leads.

    `live` is None if this node does not know who is live now.
    """
    known = live or {}
    facts = [
        _facts(number, racks.get(number, ""), known.get(number), entry, leader, now_ms)
        for number in sorted(racks.keys() | known.keys())
    ]
    return facts if live is not None else [replace(one, reason=UNKNOWN) for one in facts]


def _facts(  # noqa: PLR0917  # all that there is to know
    number: int,
    rack: str,
    live: LiveValue | None,
    entry: ShardEntry | None,
    leader: Leader | None,
    now_ms: int,
) -> MemberFacts:
    leads = entry is not None and entry.leader == number
    is_replica = entry is not None and number in entry.replicas
    is_in_sync = entry is not None and number in entry.isr
    lag = None if leader is None or leads else leader.lag(number, now_ms)
    return MemberFacts(
        node=number,
        role="leader" if leads else "follower" if is_replica else "none",
        is_live=live is not None,
        is_in_sync=is_in_sync,
        rack=rack,
        host="" if live is None else live.host,
        port=0 if live is None else live.port,
        release="" if live is None else live.release,
        messages_behind=0 if leads else None if lag is None else lag.messages,
        ms_behind=0 if leads else None if lag is None else lag.ms,
        reason=_reason(
            is_live=live is not None,
            is_replica=is_replica,
            is_in_sync=is_in_sync,
            leads_here=leader is not None,
            is_attached=lag is not None,
        ),
    )


def _reason(
    *, is_live: bool, is_replica: bool, is_in_sync: bool, leads_here: bool, is_attached: bool
) -> str:
    """Return why a node is not in sync, or not for long any more."""
    if not is_live:
        return "it has no session with ZooKeeper: it is stopped, hangs, or is cut off"
    if not is_replica:
        return "it has no copy: the cluster has as many as it is to have (cluster_replicas)"
    if leads_here and not is_attached and not is_in_sync:
        return "it has no link to this node, which leads: its log says why"
    if is_in_sync:
        return ""
    return "it copies what it lacks" if leads_here else "the node that leads knows why"
