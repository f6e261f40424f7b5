"""Partitions that hang on one node: those that stop if it does, and those that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leveret.cluster.partition_state import PartitionState
    from leveret.core.settings.replication import Replication

__all__ = ["is_critical", "kept_by"]

NAMED_MAX = 3  # queues in one sentence; the rest is counted


def is_critical(
    state: PartitionState, replication: Replication, node: int, present: Collection[int]
) -> bool:
    """Whether a partition would take no publishes, or have no leader, without a node.

    `present` are the nodes that are there. Partitions that shall have one replica do not count:
    they go with their node whenever it stops. Nor do those of which this node's replica is behind.
    """
    if node not in state.in_sync_nodes or max(replication.replicas, len(state.replicas)) < 2:
        return False
    others = state.in_sync_nodes.intersection(present) - {node}
    needed = min(replication.in_sync_min, max(len(state.replicas), 1))
    return len(others) < max(needed, 1)


def kept_by(node: int, queues: Sequence[tuple[str, PartitionState]]) -> AdministrationError:
    """Return why a node cannot be removed: it alone has everything of partitions of `queues`.

    Each is given as the words that name its queue, with the partition's state.
    """
    sentences = []
    alone = [name for name, state in queues if set(state.replicas) == {node}]
    if alone:
        sentences.append(
            f"node {node} has the only replica of {_listed(alone)}: start the node, or delete what "
            "only it has with `leveret queue delete QUEUE`"
        )
    behind = [name for name, state in queues if set(state.replicas) != {node}]
    if behind:
        sentences.append(
            f"node {node} has the only replica in sync of {_listed(behind)}: start the node, or go "
            "on with what another one has by `leveret cluster elect QUEUE --unclean`"
        )
    return AdministrationError("invalid", f"{'; '.join(sentences)}; and repeat this command")


def _listed(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - NAMED_MAX
    return ", ".join(distinct[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
