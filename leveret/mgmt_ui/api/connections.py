"""/api/connections: who is connected."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.answers import READ, QueryHere, listed
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import Kind

if TYPE_CHECKING:
    from leveret.core.clients import Client


__all__ = ["router"]

router = APIRouter()


@router.api_route("/api/connections", methods=READ)
async def list_connections(caller: CallerHere, query: QueryHere) -> Response:
    """Clients' connections."""
    kind: Kind[Client] = Kind(
        lambda client: (client.vhost.name, str(client.describe().endpoints)),
        partial(views.connection_row, node_name=caller.node.name),
    )
    return await listed(caller.visible_clients(), kind, query)
