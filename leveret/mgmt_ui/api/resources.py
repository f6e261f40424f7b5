"""GET /api/…: what exists on the node, as lists and one by one.

Every handler is a coroutine on the broker's own loop: nothing it reads can change while it does not
wait, and nothing needs a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AfterValidator

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.callers import Caller, CallerHere
from leveret.mgmt_ui.api.listing import (
    Kind,
    Query,
    all_pages,
    in_order,
    in_slices,
    one_page,
    select_columns,
)
from leveret.mgmt_ui.api.problems import not_found

if TYPE_CHECKING:
    from leveret.core.clients import Client
    from leveret.core.routing.bindings import Binding, QueueLike
    from leveret.core.routing.exchange import Exchange
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.views import Row
    from leveret.ports.definitions import PermissionDefinition, UserDefinition

__all__ = ["READ", "QueryHere", "Segment", "answer", "message_counts", "router"]

READ = ["GET", "HEAD"]
NO_CACHE = {"cache-control": "no-cache"}
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


def answer(value: Any, status: int = 200) -> Response:
    """The response that says `value`."""
    return JSONResponse(value, status, NO_CACHE)


async def _list(items: list[Any], kind: Kind[Any], query: Query) -> Response:
    """All items or the page that is asked for; whole lists are sent while they are made."""
    ordered = await in_order(items, kind, query)
    if query.page is None:
        pieces = all_pages(ordered, kind, query)
        return StreamingResponse(pieces, headers=NO_CACHE, media_type="application/json")
    return answer(one_page(ordered, len(items), kind, query))


async def _query(request: Request) -> Query:
    """A coroutine, since FastAPI would call a function in a thread."""
    return Query.parse(request.query_params)


QueryHere = Annotated[Query, Depends(_query)]


def _vhosts(caller: Caller, name: str | None) -> list[Vhost]:
    """The virtual host of the path, or all whose contents the caller may list."""
    return caller.open_vhosts() if name is None else [caller.vhost(name)]


@router.api_route("/api/whoami", methods=READ)
async def whoami(caller: CallerHere) -> Response:
    """The caller."""
    return answer({"name": caller.name, "tags": list(caller.tags), "is_internal_user": True})


@router.api_route("/api/vhosts", methods=READ)
async def list_vhosts(caller: CallerHere, query: QueryHere) -> Response:
    """The virtual hosts that the caller may know of."""
    visible = caller.visible_vhosts()
    counts = {vhost.name: await message_counts([vhost]) for vhost in visible}
    kind: Kind[Vhost] = Kind(
        lambda vhost: (vhost.name,),
        lambda vhost: views.vhost_row(vhost, counts[vhost.name], caller.node.name),
        ("name",),
    )
    return await _list(visible, kind, query)


@router.api_route("/api/queues", methods=READ)
@router.api_route("/api/queues/{vhost}", methods=READ)
async def list_queues(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Queues, with their counts unless `disable_stats=true`."""
    found = [queue for host in _vhosts(caller, vhost) for queue in host.queues.values()]
    kind: Kind[QueueLike] = Kind(
        lambda queue: (queue.definition.vhost, queue.definition.name),
        partial(_queue_row, node_name=caller.node.name, query=query),
    )
    return await _list(found, kind, query)


@router.api_route("/api/queues/{vhost}/{name}", methods=READ)
async def show_queue(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """One queue."""
    queue = caller.vhost(vhost).queues.get(name)
    if queue is None:
        raise not_found("queue_not_found")
    return answer(select_columns(_queue_row(queue, caller.node.name, query), query.columns))


def _queue_row(queue: QueueLike, node_name: str, query: Query) -> Row:
    if not query.disable_stats:
        return views.queue_row(queue, node_name)
    row = views.queue_basics(queue, node_name)
    return row | views.queue_counts(queue) if query.enable_queue_totals else row


@router.api_route("/api/exchanges", methods=READ)
@router.api_route("/api/exchanges/{vhost}", methods=READ)
async def list_exchanges(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Exchanges, the predeclared ones included."""
    found = [found for host in _vhosts(caller, vhost) for found in host.exchanges.values()]
    return await _list(found, exchanges, query)


@router.api_route("/api/exchanges/{vhost}/{name}", methods=READ)
async def show_exchange(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """One exchange; the default one is called `amq.default` here."""
    exchange = caller.vhost(vhost).exchanges.get("" if name == "amq.default" else name)
    if exchange is None:
        raise not_found("exchange_not_found")
    return answer(select_columns(views.exchange_row(exchange), query.columns))


@router.api_route("/api/bindings", methods=READ)
@router.api_route("/api/bindings/{vhost}", methods=READ)
async def list_bindings(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Bindings to queues and exchanges, those of the default exchange included."""
    sources = [source for host in _vhosts(caller, vhost) for source in host.exchanges.values()]
    found = [binding for source in sources for binding in source.outgoing.values()]
    return await _list(found, bindings, query)


@router.api_route("/api/connections", methods=READ)
async def list_connections(caller: CallerHere, query: QueryHere) -> Response:
    """Clients' connections."""
    kind: Kind[Client] = Kind(
        lambda client: (client.vhost.name, str(client.describe().endpoints)),
        partial(views.connection_row, node_name=caller.node.name),
    )
    return await _list(caller.visible_clients(), kind, query)


@router.api_route("/api/users", methods=READ)
async def list_users(caller: CallerHere, query: QueryHere) -> Response:
    """Users, for administrators."""
    caller.require_administrator()
    return await _list(caller.node.broker.access.users(), users, query)


@router.api_route("/api/permissions", methods=READ)
async def list_permissions(caller: CallerHere, query: QueryHere) -> Response:
    """Permissions of all users in all virtual hosts, for administrators."""
    caller.require_administrator()
    return await _list(caller.node.broker.access.permissions(), permissions, query)


async def message_counts(hosts: Iterable[Vhost]) -> Row:
    """How full the queues of some virtual hosts are together."""
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    async for part in in_slices([queue for host in hosts for queue in host.queues.values()]):
        for queue in part:
            for name, count in views.queue_counts(queue).items():
                totals[name] += count
    return totals
