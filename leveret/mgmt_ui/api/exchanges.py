"""/api/exchanges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bindings import BINDINGS
from leveret.mgmt_ui.api.bodies import condition, flag, json_object, table, text
from leveret.mgmt_ui.api.callers import CallerHere, require_to_declare
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.flows import flows_of_exchange
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    listed,
    select_columns,
    shown,
    vhosts_of,
)
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.operations.topology import exchange_declare, exchange_delete
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.core.routing.exchange import Exchange
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.listing import Query
    from leveret.mgmt_ui.api.views import Row


__all__ = ["router"]

EXAMPLE = {
    "type": "topic",
    "durable": True,
    "auto_delete": False,
    "internal": False,
    "arguments": {},
}

router = LazyRouter()


@router.api_route("/api/exchanges", methods=READ)
@router.api_route("/api/exchanges/{vhost}", methods=READ)
async def list_exchanges(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Exchanges, the predeclared ones included."""
    found = [found for host in vhosts_of(caller, vhost) for found in host.exchanges.values()]
    kind: ObjectKind[Exchange] = ObjectKind(
        lambda exchange: (exchange.definition.vhost, exchange.name),
        partial(_exchange_row, caller=caller, query=query),
    )
    return await listed(found, kind, query)


@router.api_route("/api/exchanges/{vhost}/{name}", methods=READ)
async def show_exchange(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """One exchange; the default one is called `amq.default` here."""
    exchange = _existing(caller, vhost, name)
    row = _exchange_row(exchange, caller, query)
    if not query.disable_stats:
        host, node = caller.vhost(vhost), caller.node
        wanted = shown(caller, query)
        row |= await flows_of_exchange(
            node.broker.connections, host, exchange.name, wanted, node.name
        )
    return answer(select_columns(row, query.columns))


def _exchange_row(exchange: Exchange, caller: Caller, query: Query) -> Row:
    return views.exchange_row(exchange, None if query.disable_stats else shown(caller, query))


@router.put("/api/exchanges/{vhost}/{name}", openapi_extra=body(EXAMPLE))
async def declare_exchange(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Declare an exchange: 201 where it is new, 204 where it was there."""
    host = caller.vhost(vhost)
    asked = await json_object(request)
    arguments = table(asked, "arguments")
    is_new = name not in host.exchanges
    await require_to_declare(caller, host, "exchange", name, arguments)
    await caller.perform(
        exchange_declare,
        vhost=vhost,
        name=name,
        type_=text(asked, "type", "direct"),
        durable=flag(asked, "durable"),
        auto_delete=flag(asked, "auto_delete"),
        internal=flag(asked, "internal"),
        arguments=arguments,
    )
    return Response(status_code=201 if is_new else 204)


@router.delete("/api/exchanges/{vhost}/{name}")
async def delete_exchange(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Delete an exchange, unless `if-unused` forbids it."""
    exchange = _existing(caller, vhost, name)
    await caller.require(vhost, "exchange", exchange.name, "configure")
    if_unused = condition(request, "if-unused")
    await caller.perform(exchange_delete, vhost=vhost, name=exchange.name, if_unused=if_unused)
    return Response(status_code=204)


@router.api_route("/api/exchanges/{vhost}/{name}/bindings/source", methods=READ)
async def list_bindings_from(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """The bindings by which messages leave an exchange."""
    exchange = _existing(caller, vhost, name)
    return await listed(list(exchange.outgoing.values()), BINDINGS, query)


@router.api_route("/api/exchanges/{vhost}/{name}/bindings/destination", methods=READ)
async def list_bindings_to(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """The bindings by which messages come to an exchange."""
    exchange = _existing(caller, vhost, name)
    return await listed(list(exchange.incoming.values()), BINDINGS, query)


def _existing(caller: Caller, vhost: str, name: str) -> Exchange:
    """Return the exchange of a path; the default one is `amq.default`. Raises ApiError 404."""
    exchange = caller.vhost(vhost).exchanges.get("" if name == "amq.default" else name)
    if exchange is None:
        raise not_found("exchange_not_found")
    return exchange
