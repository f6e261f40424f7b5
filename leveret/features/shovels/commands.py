"""Operations on shovels: their states, restarts, deletion. They are set as parameters are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, not_running
from leveret.core.admin.rights import MANAGEMENT, POLICYMAKER
from leveret.core.definitions.administration import AdministrationError
from leveret.features.shovels.parameters import COMPONENT

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ShovelsOfCluster", "shovel_delete", "shovel_restart", "shovel_status"]

Rows = list[dict[str, Any]]


class ShovelsOfCluster(Protocol):
    """Shovels of a running node, and of the other nodes of its cluster."""

    def rows_here(self) -> Rows:
        """Return the states of those that run here, as RabbitMQ's API has them."""
        ...

    async def rows(self) -> Rows:
        """Return the states of all; those of nodes that do not answer are left out."""
        ...

    def restart(self, vhost: str, name: str) -> bool:
        """Connect a shovel anew; False if it does not exist. Raises ElsewhereError."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of shovels that run here, by state: starting, running, terminated."""
        ...

    @property
    def forwarded(self) -> int:
        """Number of messages that shovels have published since the node started."""
        ...


class ShovelNode(AdminNode, Protocol):
    """Parts of a node that commands on shovels use."""

    @property
    def shovels(self) -> ShovelsOfCluster | None:
        """Shovels of a running node, else None."""
        ...


@query("shovel.status", MANAGEMENT)
async def shovel_status(node: ShovelNode) -> Rows:
    """Return the states of all shovels; URIs have no credentials."""
    return await _shovels(node).rows()


@query("shovel.status_here")
async def shovel_status_here(node: ShovelNode) -> Rows:
    """Return the states of the shovels that this node runs."""
    return _shovels(node).rows_here()


@command("shovel.restart", POLICYMAKER)
async def shovel_restart(node: ShovelNode, *, vhost: str, name: str) -> None:
    """Connect a shovel anew; what is in flight is delivered again."""
    if not _shovels(node).restart(vhost, name):
        raise AdministrationError("not_found", f"no shovel '{name}' in vhost '{vhost}'")


@command("shovel.delete", POLICYMAKER)
async def shovel_delete(node: ShovelNode, *, vhost: str, name: str) -> None:
    """Delete a shovel: the parameter that it is."""
    if node.administration.parameters.find(vhost, COMPONENT, name) is None:
        raise AdministrationError("not_found", f"no shovel '{name}' in vhost '{vhost}'")
    node.administration.clear_parameter(vhost, COMPONENT, name)


def _shovels(node: ShovelNode) -> ShovelsOfCluster:
    if node.shovels is None:
        raise not_running()
    return node.shovels
