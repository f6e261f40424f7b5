"""A replica on this node: the log of a partition, and what its leader must keep to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leveret.cluster.replication.leader import ReplicationLimits
    from leveret.ports.replication import ReplicatedLog

__all__ = ["PartitionReplica", "partition_key", "side_log_key"]


def partition_key(incarnation: str, number: int) -> str:
    """Return the name on all nodes of a partition of the queue that has this incarnation."""
    return f"{incarnation}/{number}"


def side_log_key(partition: str, side_log: str) -> str:
    """Return the name on all nodes of a side log of the partition that has this key."""
    return f"{partition}/{side_log}"


class PartitionReplica(NamedTuple):
    """A log of a partition: its own, or a side log; `key` names it on all nodes.

    `partition` is the key of the partition, whose state says who leads all its logs.

    `reopen` closes the log, and whoever uses it, after a failure that it does not get over while it
    is open, and opens it again. It may be called again after it has raised LeveretError, and is
    never called twice at a time.
    """

    key: str
    partition: str
    log: ReplicatedLog
    limits: ReplicationLimits
    reopen: Callable[[], Awaitable[ReplicatedLog]]
    side_log: str | None = None
