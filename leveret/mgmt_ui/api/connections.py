"""/api/connections: clients' connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    listed,
    select_columns,
    shown,
)
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.operations.topology import connection_close
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from leveret.core.clients import Client
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.listing import Query
    from leveret.mgmt_ui.api.views import Row


__all__ = ["existing", "router"]

router = LazyRouter()


@router.api_route("/api/connections", methods=READ)
async def list_connections(caller: CallerHere, query: QueryHere) -> Response:
    """Clients' connections."""
    return await listed(caller.visible_clients(), _kind(caller, query), query)


@router.api_route("/api/connections/{name}", methods=READ)
async def show_connection(caller: CallerHere, query: QueryHere, name: Segment) -> Response:
    """One connection."""
    client = await existing(caller, name)
    return answer(select_columns(_connection_row(client, caller, query), query.columns))


@router.delete("/api/connections/{name}")
async def close_connection(caller: CallerHere, request: Request, name: Segment) -> Response:
    """Close a connection; its client gets the reason from the header `X-Reason`."""
    caller.require_to_close(await existing(caller, name))
    reason = request.headers.get("x-reason")
    await caller.perform(connection_close, name=name, reason=reason)
    return Response(status_code=204)


@router.api_route("/api/connections/username/{user}", methods=READ)
async def list_connections_of_user(caller: CallerHere, query: QueryHere, user: Segment) -> Response:
    """The connections of one user."""
    found = [client for client in caller.visible_clients() if client.user == user]
    return await listed(found, _kind(caller, query), query)


@router.delete("/api/connections/username/{user}")
async def close_connections_of_user(
    caller: CallerHere, request: Request, user: Segment
) -> Response:
    """Close all connections of one user that the caller may close."""
    reason = request.headers.get("x-reason")
    found = [client for client in caller.visible_clients() if client.user == user]
    for client in filter(caller.may_close, found):
        name = str(client.describe().endpoints)
        await caller.perform(connection_close, name=name, reason=reason)
    return Response(status_code=204)


@router.api_route("/api/vhosts/{vhost}/connections", methods=READ)
async def list_connections_to_vhost(
    caller: CallerHere, query: QueryHere, vhost: Segment
) -> Response:
    """The connections to one virtual host."""
    caller.vhost(vhost)
    found = [client for client in caller.visible_clients() if client.vhost.name == vhost]
    return await listed(found, _kind(caller, query), query)


async def existing(caller: Caller, name: str) -> Client:
    """Return a connection that the caller may see, by name. Raises ApiError 404."""
    async for part in in_yielding_chunks(caller.visible_clients()):
        for client in part:
            if str(client.describe().endpoints) == name:
                return client
    raise not_found()


def _kind(caller: Caller, query: Query) -> ObjectKind[Client]:
    return ObjectKind(
        lambda client: (client.vhost.name, str(client.describe().endpoints)),
        partial(_connection_row, caller=caller, query=query),
    )


def _connection_row(client: Client, caller: Caller, query: Query) -> Row:
    wanted = None if query.disable_stats else shown(caller, query)
    return views.connection_row(client, caller.node.name, wanted)
