"""Figures of a cluster as one of its nodes sees it, for metrics."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "BELOW_MIN_ISR",
    "COPYING",
    "NO_LEADER",
    "SETTLING",
    "STUCK",
    "UNDER_REPLICATED",
    "WAITING",
    "WELL",
    "ClusterFigures",
    "NodeCondition",
    "NodeFigures",
    "PartitionFigures",
]

# What is wrong with a partition, the worst first.
NO_LEADER: Final = "without leader"
BELOW_MIN_ISR: Final = "below min-isr"
UNDER_REPLICATED: Final = "under-replicated"
WELL: Final = "ok"

# How far a move of a partition is: it waits for its turn, copies, lets leaders and old replicas
# change, or waits for a node that is down.
WAITING: Final = "waiting"
COPYING: Final = "copying"
SETTLING: Final = "settling"
STUCK: Final = "stuck"


class NodeCondition(NamedTuple):
    """State that a node has told: resources that are low, and how far its clock is ahead of this.

    The clock's offset is None where it is not known, and 0 for this node itself.
    """

    low: frozenset[str] = frozenset()
    clock_offset_seconds: float | None = None


class NodeFigures(NamedTuple):
    """One node of the cluster, this one included.

    `is_reachable`: it is registered, and is this node or linked with it.
    """

    node: int
    is_up: bool
    is_draining: bool
    is_reachable: bool
    condition: NodeCondition = NodeCondition()


class PartitionFigures(NamedTuple):
    """One partition: what is wrong with it, and whether this node leads it or has a replica."""

    condition: str
    is_led_here: bool
    is_replicated_here: bool


class ClusterFigures(NamedTuple):
    """This node in its cluster; `sequence` is the last change of metadata that it has."""

    is_connected: bool
    is_controller: bool
    sequence: int
    nodes: tuple[NodeFigures, ...]
