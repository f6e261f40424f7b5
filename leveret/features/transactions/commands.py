"""Operations on prepared messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, changed
from leveret.core.admin.rights import IN_VHOST
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.after_all import AfterAll

if TYPE_CHECKING:
    from leveret.features.transactions.prepared import PreparedMessages
    from leveret.features.transactions.prepared_interceptor import PreparedInterceptor


class PreparedNode(AdminNode, Protocol):
    """Parts of a node that commands on prepared messages use."""

    @property
    def prepared(self) -> PreparedInterceptor | None:
        """Prepared messages of a running node, else None."""
        ...


@query("prepared.list", IN_VHOST)
async def prepared_list(node: PreparedNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return prepared messages, the oldest first."""
    messages = _messages(node, vhost)
    return [] if messages is None else messages.rows()


@query("prepared.show", IN_VHOST)
async def prepared_show(node: PreparedNode, *, vhost: str, id_: str) -> dict[str, Any]:
    """Return one prepared message."""
    messages = _messages(node, vhost)
    for row in () if messages is None else messages.rows():
        if row["id"] == id_:
            return row
    raise AdministrationError("not_found", f"no prepared message '{id_}'")


@command("prepared.commit", IN_VHOST)
async def prepared_commit(node: PreparedNode, *, vhost: str, id_: str) -> None:
    """Commit a prepared message: it is routed to its queues."""
    await _decide(node, vhost, id_, commit=True)


@command("prepared.rollback", IN_VHOST)
async def prepared_rollback(node: PreparedNode, *, vhost: str, id_: str) -> None:
    """Roll back a prepared message: it is deleted."""
    await _decide(node, vhost, id_, commit=False)


async def _decide(node: PreparedNode, vhost: str, id_: str, *, commit: bool) -> None:
    messages, told = _messages(node, vhost), AfterAll(1)
    pending = None if messages is None else messages.find(id_)
    if messages is None or pending is None:
        raise AdministrationError("not_found", f"no prepared message '{id_}'")
    messages.decide(pending, commit=commit, decided=told)
    await changed(told)


def _messages(node: PreparedNode, vhost: str) -> PreparedMessages | None:
    """Return a virtual host's prepared messages; None if there never were any."""
    node.administration.vhost(vhost)
    if node.prepared is None:
        raise AdministrationError("invalid", "no node runs here: only a running one knows")
    return node.prepared.kept.get(vhost)
