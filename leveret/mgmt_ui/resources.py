"""GET /api/…: what exists on the node, as lists and one by one.

Every handler is a coroutine on the broker's own loop: nothing it reads can change while it does not
wait, and nothing needs a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator

from leveret.mgmt_ui import views
from leveret.mgmt_ui.callers import Caller, CallerHere
from leveret.mgmt_ui.listing import Kind, Query, encoded, in_slices, list_rows, select_columns
from leveret.mgmt_ui.problems import not_found

if TYPE_CHECKING:
    from leveret.core.bindings import Binding, QueueLike
    from leveret.core.clients import Client
    from leveret.core.exchange import Exchange
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.views import Row
    from leveret.ports.definitions import PermissionDefinition, UserDefinition

__all__ = ["READ", "Segment", "answer", "message_counts", "router"]

READ = ["GET", "HEAD"]
# Routes match the path as it was sent, so that `%2F` is a virtual host and not two slashes.
Segment = Annotated[str, AfterValidator(unquote)]

router = APIRouter()

exchanges: Kind[Exchange] = Kind(
    lambda exchange: (exchange.definition.vhost, exchange.name), views.exchange_row
)
bindings: Kind[Binding] = Kind(
    lambda binding: (
        binding.definition.vhost,
        binding.definition.source,
        binding.definition.destination_type,
        binding.definition.destination,
        binding.definition.routing_key,
    ),
    views.binding_row,
    ("vhost", "source", "destination_type", "destination", "routing_key"),
)
users: Kind[UserDefinition] = Kind(lambda user: (user.name,), views.user_row, ("name",))
permissions: Kind[PermissionDefinition] = Kind(
    lambda permission: (permission.vhost, permission.user),
    views.permission_row,
    ("vhost", "user"),
)


async def answer(value: Any, status: int = 200) -> Response:
    """The response that says `value`."""
    return Response(
        await encoded(value),
        status,
        headers={"cache-control": "no-cache"},
        media_type="application/json",
    )


async def _list(request: Request, items: Iterable[Any], kind: Kind[Any]) -> Response:
    query = Query.parse(request.query_params)
    return await answer(await list_rows(list(items), kind, query))


def _vhosts(caller: Caller, name: str | None) -> list[Vhost]:
    """The virtual host of the path, or all whose contents the caller may list."""
    return caller.open_vhosts() if name is None else [caller.vhost(name)]


@router.api_route("/api/whoami", methods=READ)
async def whoami(caller: CallerHere) -> Response:
    """The caller."""
    return await answer({"name": caller.name, "tags": list(caller.tags), "is_internal_user": True})


@router.api_route("/api/vhosts", methods=READ)
async def list_vhosts(request: Request, caller: CallerHere) -> Response:
    """The virtual hosts that the caller may know of."""
    visible = caller.visible_vhosts()
    counts = {vhost.name: await message_counts([vhost]) for vhost in visible}
    kind: Kind[Vhost] = Kind(
        lambda vhost: (vhost.name,),
        lambda vhost: views.vhost_row(vhost, counts[vhost.name], caller.node.name),
        ("name",),
    )
    return await _list(request, visible, kind)


@router.api_route("/api/queues", methods=READ)
@router.api_route("/api/queues/{vhost}", methods=READ)
async def list_queues(
    request: Request, caller: CallerHere, vhost: Segment | None = None
) -> Response:
    """Queues, with their counts unless `disable_stats=true`."""
    query = Query.parse(request.query_params)
    found = [queue for host in _vhosts(caller, vhost) for queue in host.queues.values()]
    kind: Kind[QueueLike] = Kind(
        lambda queue: (queue.definition.vhost, queue.definition.name),
        partial(_queue_row, node_name=caller.node.name, query=query),
    )
    return await answer(await list_rows(found, kind, query))


@router.api_route("/api/queues/{vhost}/{name}", methods=READ)
async def show_queue(
    request: Request, caller: CallerHere, vhost: Segment, name: Segment
) -> Response:
    """One queue."""
    query = Query.parse(request.query_params)
    queue = caller.vhost(vhost).queues.get(name)
    if queue is None:
        raise not_found("queue_not_found")
    return await answer(select_columns(_queue_row(queue, caller.node.name, query), query.columns))


def _queue_row(queue: QueueLike, node_name: str, query: Query) -> Row:
    if not query.disable_stats:
        return views.queue_row(queue, node_name)
    row = views.queue_basics(queue, node_name)
    return row | views.queue_counts(queue) if query.enable_queue_totals else row


@router.api_route("/api/exchanges", methods=READ)
@router.api_route("/api/exchanges/{vhost}", methods=READ)
async def list_exchanges(
    request: Request, caller: CallerHere, vhost: Segment | None = None
) -> Response:
    """Exchanges, the predeclared ones included."""
    found = [found for host in _vhosts(caller, vhost) for found in host.exchanges.values()]
    return await _list(request, found, exchanges)


@router.api_route("/api/exchanges/{vhost}/{name}", methods=READ)
async def show_exchange(
    request: Request, caller: CallerHere, vhost: Segment, name: Segment
) -> Response:
    """One exchange; the default one is called `amq.default` here."""
    exchange = caller.vhost(vhost).exchanges.get("" if name == "amq.default" else name)
    if exchange is None:
        raise not_found("exchange_not_found")
    columns = Query.parse(request.query_params).columns
    return await answer(select_columns(views.exchange_row(exchange), columns))


@router.api_route("/api/bindings", methods=READ)
@router.api_route("/api/bindings/{vhost}", methods=READ)
async def list_bindings(
    request: Request, caller: CallerHere, vhost: Segment | None = None
) -> Response:
    """Bindings to queues and exchanges, those of the default exchange included."""
    sources = [source for host in _vhosts(caller, vhost) for source in host.exchanges.values()]
    found = [binding for source in sources for binding in source.outgoing.values()]
    return await _list(request, found, bindings)


@router.api_route("/api/connections", methods=READ)
async def list_connections(request: Request, caller: CallerHere) -> Response:
    """Clients' connections."""
    kind: Kind[Client] = Kind(
        lambda client: (client.vhost.name, str(client.describe().endpoints)),
        partial(views.connection_row, node_name=caller.node.name),
    )
    return await _list(request, caller.visible_clients(), kind)


@router.api_route("/api/users", methods=READ)
async def list_users(request: Request, caller: CallerHere) -> Response:
    """Users, for administrators."""
    caller.require_administrator()
    return await _list(request, caller.node.broker.access.users(), users)


@router.api_route("/api/permissions", methods=READ)
async def list_permissions(request: Request, caller: CallerHere) -> Response:
    """Permissions of all users in all virtual hosts, for administrators."""
    caller.require_administrator()
    return await _list(request, caller.node.broker.access.permissions(), permissions)


async def message_counts(hosts: Iterable[Vhost]) -> Row:
    """How full the queues of some virtual hosts are together."""
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    async for part in in_slices([queue for host in hosts for queue in host.queues.values()]):
        for queue in part:
            for name, count in views.queue_counts(queue).items():
                totals[name] += count
    return totals
