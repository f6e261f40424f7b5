"""Operations on batch leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, not_running
from leveret.core.admin.rights import IN_VHOST
from leveret.core.definitions.administration import AdministrationError
from leveret.features.batch_leases.batch_leases import holder_row

if TYPE_CHECKING:
    from leveret.features.batch_leases.batch_leases import BatchLeases
    from leveret.features.batch_leases.holder import BatchHolder

__all__ = ["lease_list", "lease_release"]


class LeaseNode(AdminNode, Protocol):
    """Parts of a node that commands on batch leases use."""

    @property
    def batch_leases(self) -> BatchLeases | None:
        """Batch leases of a running node, else None."""
        ...


@query("lease.list", IN_VHOST)
async def lease_list(node: LeaseNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the holders of batch leases, by queue and name."""
    return [holder_row(each) for each in _holders(node, vhost)]


@command("lease.release")
async def lease_release(
    node: LeaseNode, *, vhost: str, queue: str, holder: str, user: str | None = None
) -> dict[str, Any]:
    """Give back what a holder has leased, that of one user or of all: others get it now."""
    found = [
        each
        for each in _holders(node, vhost)
        if (each.queue.name, each.name.name) == (queue, holder) and user in {None, each.name.user}
    ]
    if not found:
        text = f"no holder '{holder}' of batch leases of queue '{queue}' in vhost '{vhost}'"
        raise AdministrationError("not_found", text)
    return {"released": sum(each.release() for each in found)}


def _holders(node: LeaseNode, vhost: str) -> list[BatchHolder]:
    node.administration.vhost(vhost)
    if node.batch_leases is None:
        raise not_running()
    return node.batch_leases.holders(vhost)
