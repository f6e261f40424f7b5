"""Metrics of a cluster, as the node sees it that is asked: nodes, partitions, moves and links.

Each node tells of the whole cluster, so they are not to be summed over nodes, but for what a node
leads and has. A node by itself tells of no nodes and links, and of no partitions: zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.metrics.groups import MetricGroup, counter, gauge
from leveret.mgmt_ui.metrics.own import PREFIX
from leveret.ports.cluster_figures import BELOW_MIN_ISR, NO_LEADER, STUCK, UNDER_REPLICATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.mgmt_ui.metrics.groups import MetricColumn
    from leveret.mgmt_ui.metrics.reading import Reading
    from leveret.ports.cluster_figures import ClusterFigures, NodeFigures, PartitionFigures

__all__ = ["GROUPS"]

Link = dict[str, Any]  # a row of the operation cluster.links


def _figures(reading: Reading) -> list[ClusterFigures]:
    cluster = reading.node.context.cluster
    return [] if cluster is None else [cluster.figures()]


def _nodes(reading: Reading) -> list[NodeFigures]:
    return [node for figures in _figures(reading) for node in figures.nodes]


def _partitions(reading: Reading) -> Iterable[PartitionFigures]:
    cluster = reading.node.context.cluster
    return [] if cluster is None else cluster.partition_figures()


def _moves(reading: Reading) -> Iterable[str]:
    cluster = reading.node.context.cluster
    return [] if cluster is None else cluster.move_states()


def _links(reading: Reading) -> list[Link]:
    cluster = reading.node.context.cluster
    return [] if cluster is None else cluster.links()


def _link_labels(link: Link) -> Mapping[str, str]:
    return {"node": str(link["node"]), "direction": "out" if link["dialed"] else "in"}


def _is(condition: str) -> Callable[[PartitionFigures], int]:
    return lambda partition: int(partition.condition == condition)


_CLUSTER: tuple[MetricColumn[ClusterFigures], ...] = (
    gauge(
        "cluster_coordinator_connected",
        "Whether ZooKeeper answers and the node is registered there",
        lambda figures: int(figures.is_connected),
    ),
    gauge(
        "cluster_controller",
        "Whether the node is the controller of the cluster",
        lambda figures: int(figures.is_controller),
    ),
    gauge(
        "cluster_metadata_sequence",
        "Number of the last change of the cluster's metadata that the node has",
        lambda figures: figures.sequence,
    ),
)

_NODES: tuple[MetricColumn[NodeFigures], ...] = (
    gauge(
        "cluster_node_up",
        "Whether a node of the cluster is registered with ZooKeeper",
        lambda node: int(node.is_up),
    ),
    gauge(
        "cluster_node_draining",
        "Whether a node of the cluster is drained: it leads nothing and gets no replicas",
        lambda node: int(node.is_draining),
    ),
    gauge(
        "cluster_node_disk_alarm",
        "Whether a node of the cluster is low on disk, which blocks publishers on all nodes",
        lambda node: int("disk" in node.condition.low),
    ),
    gauge(
        "cluster_node_memory_alarm",
        "Whether a node of the cluster is low on memory, which blocks publishers on all nodes",
        lambda node: int("memory" in node.condition.low),
    ),
    gauge(
        "cluster_node_clock_offset_seconds",
        "Seconds by which a node's clock is ahead of this node's; 0 where it is not known",
        lambda node: node.condition.clock_offset_seconds or 0,
    ),
)

_PARTITIONS: tuple[MetricColumn[PartitionFigures], ...] = (
    gauge("cluster_partitions", "Partitions with replicas in the cluster", lambda _: 1),
    gauge(
        "cluster_partitions_without_leader",
        "Partitions that nobody leads: neither publishes nor deliveries",
        _is(NO_LEADER),
    ),
    gauge(
        "cluster_partitions_below_min_isr",
        "Partitions with a leader and too few replicas in sync: publishes are refused",
        _is(BELOW_MIN_ISR),
    ),
    gauge(
        "cluster_partitions_under_replicated",
        "Partitions that take publishes, and of which a replica is not in sync",
        _is(UNDER_REPLICATED),
    ),
    gauge(
        "cluster_partitions_led",
        "Partitions that the node leads",
        lambda partition: int(partition.is_led_here),
    ),
    gauge(
        "cluster_replicas",
        "Partitions that the node has a replica of",
        lambda partition: int(partition.is_replicated_here),
    ),
)

_MOVES: tuple[MetricColumn[str], ...] = (
    gauge("cluster_moves", "Moves of partitions to other nodes that are not done", lambda _: 1),
    gauge(
        "cluster_moves_stuck",
        "Moves of partitions that wait for nodes that are down",
        lambda state: int(state == STUCK),
    ),
)

_LINKS: tuple[MetricColumn[Link], ...] = (
    gauge(
        "link_up",
        "Whether a link with another node is open, dialed by this one (out) or by the other (in)",
        lambda link: int(link["connected"]),
    ),
    gauge(
        "link_breaker_open",
        "Whether the circuit breaker of a peer is open or half open: nothing is asked of it",
        lambda link: int(link["breaker"] not in {"", "closed"}),
    ),
    counter("link_sent_bytes", "Bytes sent by links with a node", lambda link: link["bytes_sent"]),
    counter(
        "link_received_bytes",
        "Bytes received by links with a node",
        lambda link: link["bytes_received"],
    ),
    counter(
        "link_failures",
        "Attempts to connect that failed, and links that were lost",
        lambda link: link["failures"],
    ),
    gauge(
        "link_queued_bytes",
        "Bytes that wait to be sent by a link",
        lambda link: link["queued_bytes"],
    ),
    gauge(
        "link_round_trip_seconds",
        "Round trip of the last heartbeat of a link",
        lambda link: link["round_trip_ms"] / 1000,
    ),
)

GROUPS: tuple[MetricGroup[Any], ...] = (
    MetricGroup("leveret_cluster", _figures, _CLUSTER, always_labelled=True, prefix=PREFIX),
    MetricGroup(
        "leveret_cluster_nodes",
        _nodes,
        _NODES,
        lambda node: {"node": str(node.node)},
        always_labelled=True,
        prefix=PREFIX,
    ),
    MetricGroup(
        "leveret_cluster_partitions", _partitions, _PARTITIONS, only_summed=True, prefix=PREFIX
    ),
    MetricGroup("leveret_cluster_moves", _moves, _MOVES, only_summed=True, prefix=PREFIX),
    MetricGroup("leveret_links", _links, _LINKS, _link_labels, always_labelled=True, prefix=PREFIX),
)
