"""The parts of a node that the HTTP API uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.config import Configuration
    from leveret.mgmt_ui.metrics.instruments import Instruments
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.mgmt_ui.operations.runtime import Listener
    from leveret.ports.cluster import ClusterView
    from leveret.ports.sessions import Sessions

__all__ = ["FollowingNode", "ManagedNode"]


@dataclass(frozen=True, slots=True)
class ManagedNode:
    """A node as the HTTP API sees it. `is_serving()` is false once the node stops."""

    name: str
    broker: Broker
    context: AdminContext  # what operations work on
    configuration: Configuration
    sessions: Sessions  # by which the API publishes and gets
    listeners: tuple[Listener, ...]
    is_serving: Callable[[], bool]

    @property
    def cluster_name(self) -> str:
        """Name of the cluster: as set by an administrator, else as configured."""
        return self.broker.parameters.cluster_name or self.configuration.cluster_name

    instruments: Instruments | None = None  # on a running node


@dataclass(frozen=True, slots=True)
class FollowingNode:
    """A node of a cluster that does not lead, as its metrics see it.

    `cluster` returns what it knows of the cluster now.
    """

    cluster: Callable[[], ClusterView]
    allowed_hosts: tuple[str, ...]
