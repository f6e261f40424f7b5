"""Places of shovels in a cluster: one node runs each, the same for all that see the same nodes.

Each node scores each shovel by a hash, and the highest score runs it, so that a node that leaves
gives its shovels evenly to the others, and moves none of theirs. While views differ, for as long as
the coordinator's session timeout, two nodes may run one: then they share its source's messages.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from leveret.ports.coordination import NODES_PREFIX, draining_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from leveret.ports.coordination import Coordinator, KeyChange

__all__ = ["ClusterPlacing", "ShovelPlacing", "SinglePlacing", "running_node"]


def running_node(nodes: Collection[int], vhost: str, name: str) -> int | None:
    """Return the node that runs a shovel; None of no nodes."""
    return max(nodes, key=lambda node: (_score(node, vhost, name), node), default=None)


def _score(node: int, vhost: str, name: str) -> bytes:
    return blake2b(f"{node}\0{vhost}\0{name}".encode(), digest_size=8).digest()


class ShovelPlacing(Protocol):
    """Places of shovels, as a node knows them."""

    def node_of(self, vhost: str, name: str) -> int | None:
        """Return the other node that runs a shovel; None if this node does."""
        ...

    def others(self) -> Collection[int]:
        """Return the other nodes."""
        ...

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever answers may have changed."""
        ...


class SinglePlacing:
    """`ShovelPlacing` of a node that is in no cluster: it runs all."""

    def node_of(self, vhost: str, name: str) -> int | None:  # noqa: ARG002
        """Return None: this node runs it."""
        return None

    def others(self) -> Collection[int]:
        """Return none."""
        return ()

    def follow(self, changed: Callable[[], None]) -> None:
        """Do nothing: it never changes."""


class ClusterPlacing:
    """`ShovelPlacing` by the nodes that are registered, without those that are being drained.

    While the coordinator is away, all nodes keep to what they saw last.
    """

    def __init__(self, node: int, coordinator: Coordinator) -> None:
        self._node = node
        self._coordinator = coordinator

    def node_of(self, vhost: str, name: str) -> int | None:
        """Return the other node that runs a shovel; None if this node does."""
        nodes = self._coordinator.nodes.keys()
        staying = nodes - draining_nodes(self._coordinator.entries)
        chosen = running_node(staying or nodes, vhost, name)
        return None if chosen in {None, self._node} else chosen

    def others(self) -> Collection[int]:
        """Return the other nodes that are registered."""
        return self._coordinator.nodes.keys() - {self._node}

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a node comes, goes, or is drained."""
        self._coordinator.follow_nodes(changed)

        def look(_sequence: int, changes: Sequence[KeyChange]) -> None:
            if any(change.key.startswith(NODES_PREFIX) for change in changes):
                changed()

        self._coordinator.follow(look)
