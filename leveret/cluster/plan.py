"""Plan of the controller: who leads a shard, and which nodes have a copy of it.

A pure function of what the coordinator holds. It names the entry that it replaces, so it may be
computed from an old list of live nodes, and by two controllers at once: a write that is based on an
entry which was replaced is refused. It takes nobody out of an in-sync set: only a leader knows who
has what, and a set of a node that is dead alone would be left without anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from leveret.replication.shard import ShardEntry

__all__ = ["next_entry"]


def next_entry(
    entry: ShardEntry, live: Mapping[int, int], nodes: Collection[int], replicas: int
) -> ShardEntry | None:
    """Return the entry that is to replace a shard's; None if it is as it should be.

    `live` are the incarnations of nodes that are live, `nodes` all that are registered; a shard is
    to have so many `replicas`.
    """
    if entry.leader is None or live.get(entry.leader) != entry.incarnation:
        return _elected(entry, live)
    missing = replicas - len(entry.replicas)
    added = [node for node in sorted(live) if node in nodes and node not in entry.replicas]
    if missing <= 0 or not added:
        return None
    return entry.changed(replicas=(*entry.replicas, *added[:missing]))


def _elected(entry: ShardEntry, live: Mapping[int, int]) -> ShardEntry | None:
    """Return the entry with a leader that has all that is committed: one of the in-sync set."""
    for node in entry.replicas:
        if node in entry.isr and node in live:
            return entry.elected(node, live[node])
    return None
