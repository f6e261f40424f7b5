"""Nodes that have a queue, and what lists need of nodes that lead others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from leveret.core.routing.bindings import QueueLike

__all__ = ["QueueNodes", "QueuesOfCluster", "QueuesOfNode"]


class QueueNodes(NamedTuple):
    """Names of the nodes that have a queue: who leads its first partition, and all replicas."""

    leader: str  # empty while there is none
    members: tuple[str, ...]
    online: tuple[str, ...]


class QueuesOfCluster(Protocol):
    """Queues of a cluster, as one of its nodes shows them."""

    async def refresh(self) -> None:
        """Have recent figures of the queues that other nodes lead, as far as these answer."""
        ...

    def nodes_of(self, queue: QueueLike) -> QueueNodes:
        """Return the names of the nodes that have a queue."""
        ...


class QueuesOfNode:
    """`QueuesOfCluster` of a node by itself."""

    def __init__(self, name: str) -> None:
        self._nodes = QueueNodes(name, (name,), (name,))

    async def refresh(self) -> None:
        """Do nothing: all figures are here."""

    def nodes_of(self, _queue: QueueLike) -> QueueNodes:
        """Return this node, which has all queues."""
        return self._nodes
