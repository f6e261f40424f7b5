"""Commands about the cluster: its nodes, where partitions are, and moves of them.

A node by itself refuses all of them. Those that change something are performed by the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import not_running
from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.cluster_figures import ClusterFigures, PartitionFigures

__all__ = ["ClusterAdministration", "cluster_of"]

Rows = list[dict[str, Any]]


class ClusterAdministration(Protocol):
    """The cluster of a node, as commands need it. All raise AdministrationError.

    A queue is named by (virtual host, name); without a `partition` all of its partitions are meant.
    """

    def status(self) -> dict[str, Any]:
        """Return the nodes, the coordinator, and counts of partitions by what is wrong."""
        ...

    def partitions(self, *, problems: bool, limit: int | None) -> Rows:
        """Return the partitions, or those that something is wrong with."""
        ...

    def critical(self) -> Rows:
        """Return the partitions that would take no publishes, or stop, without this node.

        Those with one replica do not count.
        """
        ...

    async def moves(self) -> Rows:
        """Return the moves that are not done, with their progress."""
        ...

    def links(self) -> Rows:
        """Return the figures of this node's links with the others."""
        ...

    def figures(self) -> ClusterFigures:
        """Return figures of this node in the cluster, and of who is there."""
        ...

    def partition_figures(self) -> Iterator[PartitionFigures]:
        """Yield the figures of all partitions, as they are when they are asked for."""
        ...

    def move_states(self) -> Iterator[str]:
        """Yield how far each move is that is not done, without asking other nodes."""
        ...

    async def add(self, node: int) -> int:
        """Give a node its share of the replicas. Returns how many partitions move."""
        ...

    async def drain(self, node: int) -> dict[str, int]:
        """Have a node lead nothing, and its replicas moved to others: how many are, and are not."""
        ...

    async def undrain(self, node: int) -> None:
        """Let a node have replicas again."""
        ...

    async def remove(self, node: int, *, force: bool) -> int:
        """Forget a node for good. Returns how many replicas were given up, by `force`."""
        ...

    async def rebalance(self) -> int:
        """Give all nodes as many replicas and leaders. Returns how many partitions move."""
        ...

    async def move(
        self, queue: tuple[str, str], partition: int | None, nodes: Sequence[int]
    ) -> int:
        """Move partitions to these nodes, the preferred leader first. Returns how many move."""
        ...

    async def cancel_moves(self, queue: tuple[str, str] | None, partition: int | None) -> int:
        """End moves, of all queues without one; what has come with them is dropped."""
        ...

    async def elect(self, queue: tuple[str, str], partition: int | None, node: int | None) -> Rows:
        """Have partitions led by a node in sync, which is preferred from then on.

        Without a node their preferred leaders lead.
        """
        ...

    async def elect_unclean(
        self, queue: tuple[str, str], partition: int | None, node: int | None
    ) -> Rows:
        """Have partitions without leader led by a replica that may lack what was confirmed."""
        ...


def cluster_of(node: AdminContext) -> ClusterAdministration:
    """Return the cluster of a node. Raises AdministrationError without one."""
    if node.cluster is None and node.runtime is None:
        raise not_running()
    if node.cluster is None:
        raise AdministrationError(
            "invalid", "this node is by itself: `leveret serve --cluster` makes it one of a cluster"
        )
    return node.cluster


@query("cluster.status")
async def cluster_status(node: AdminContext) -> dict[str, Any]:
    """Return the nodes, the coordinator, and counts of partitions by what is wrong."""
    return cluster_of(node).status()


@query("cluster.partitions")
async def cluster_partitions(
    node: AdminContext, *, problems: bool, limit: int | None = None
) -> Rows:
    """Return the partitions, or those that something is wrong with."""
    return cluster_of(node).partitions(problems=problems, limit=limit)


@query("cluster.critical")
async def cluster_critical(node: AdminContext) -> Rows:
    """Return the partitions that would take no publishes, or stop, without this node."""
    return cluster_of(node).critical()


@query("cluster.moves")
async def cluster_moves(node: AdminContext) -> Rows:
    """Return the moves that are not done, with their progress."""
    return await cluster_of(node).moves()


@query("cluster.links")
async def cluster_links(node: AdminContext) -> Rows:
    """Return the figures of this node's links with the others."""
    return cluster_of(node).links()


@command("cluster.add")
async def cluster_add(node: AdminContext, *, number: int) -> int:
    """Give a node its share of the replicas. Returns how many partitions move."""
    return await cluster_of(node).add(number)


@command("cluster.drain")
async def cluster_drain(node: AdminContext, *, number: int) -> dict[str, int]:
    """Have a node lead nothing, and its replicas moved to others."""
    return await cluster_of(node).drain(number)


@command("cluster.undrain")
async def cluster_undrain(node: AdminContext, *, number: int) -> None:
    """Let a node have replicas again."""
    await cluster_of(node).undrain(number)


@command("cluster.remove")
async def cluster_remove(node: AdminContext, *, number: int, force: bool) -> int:
    """Forget a node for good. Returns how many replicas were given up."""
    return await cluster_of(node).remove(number, force=force)


@command("cluster.rebalance")
async def cluster_rebalance(node: AdminContext) -> int:
    """Give all nodes as many replicas and leaders. Returns how many partitions move."""
    return await cluster_of(node).rebalance()


@command("cluster.move")
async def cluster_move(
    node: AdminContext, *, vhost: str, name: str, partition: int | None = None, nodes: list[int]
) -> int:
    """Move partitions to these nodes, the preferred leader first. Returns how many move."""
    return await cluster_of(node).move((vhost, name), partition, nodes)


@command("cluster.cancel_moves")
async def cluster_cancel_moves(
    node: AdminContext,
    *,
    vhost: str | None = None,
    name: str | None = None,
    partition: int | None = None,
) -> int:
    """End the moves of a queue, or all. Returns how many."""
    if (vhost is None) != (name is None):
        raise AdministrationError("invalid", "a queue is named by its virtual host and its name")
    queue = None if vhost is None or name is None else (vhost, name)
    return await cluster_of(node).cancel_moves(queue, partition)


@command("cluster.elect")
async def cluster_elect(
    node: AdminContext,
    *,
    vhost: str,
    name: str,
    partition: int | None = None,
    number: int | None = None,
    unclean: bool,
) -> Rows:
    """Have partitions led by a node, or their preferred leaders.

    An `unclean` election lets a replica lead that may lack what was confirmed: that is lost.
    """
    cluster = cluster_of(node)
    elect = cluster.elect_unclean if unclean else cluster.elect
    return await elect((vhost, name), partition, number)
