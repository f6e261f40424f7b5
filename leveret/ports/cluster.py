"""Nodes of a cluster, as one of them sees them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ID_BYTES", "ClusterView", "MemberFacts", "new_id"]

ID_BYTES = 16  # of a cluster, or of a data directory; links have the former in their handshake


def new_id() -> str:
    """Return the id of a new cluster or data directory, in hexadecimal digits."""
    return secrets.token_hex(ID_BYTES)


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A node of the cluster. What only a live one tells is empty or 0 for others.

    `messages_behind` and `ms_behind` are what a follower has not on its disk yet, and for how long;
    None where this node does not know, since another one leads. `lease_ms` is for how long the node
    surely has its session with ZooKeeper, which it renews several times in a second; only the node
    itself knows. `reason` says why a node is not in sync, or will not stay so, or that this node
    does not know; else it is empty.
    """

    node: int
    role: str  # "leader", "follower"; "none" of a node that is to have no copy
    is_live: bool
    is_in_sync: bool
    rack: str
    host: str
    port: int
    release: str
    messages_behind: int | None
    ms_behind: int | None
    reason: str
    lease_ms: int | None = None


class ClusterView(Protocol):
    """The cluster of a node, of which `node` is its own number."""

    @property
    def node(self) -> int:
        """Number of this node."""
        ...

    async def members(self) -> list[MemberFacts]:
        """Return all registered nodes, by number."""
        ...
