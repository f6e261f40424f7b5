"""/api/exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.answers import READ, QueryHere, Segment, answer, listed, vhosts_of
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import Kind, select_columns
from leveret.mgmt_ui.api.problems import not_found

if TYPE_CHECKING:
    from leveret.core.routing.exchange import Exchange


__all__ = ["router"]

router = APIRouter()

exchanges: Kind[Exchange] = Kind(
    lambda exchange: (exchange.definition.vhost, exchange.name), views.exchange_row
)


@router.api_route("/api/exchanges", methods=READ)
@router.api_route("/api/exchanges/{vhost}", methods=READ)
async def list_exchanges(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Exchanges, the predeclared ones included."""
    found = [found for host in vhosts_of(caller, vhost) for found in host.exchanges.values()]
    return await listed(found, exchanges, query)


@router.api_route("/api/exchanges/{vhost}/{name}", methods=READ)
async def show_exchange(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """One exchange; the default one is called `amq.default` here."""
    exchange = caller.vhost(vhost).exchanges.get("" if name == "amq.default" else name)
    if exchange is None:
        raise not_found("exchange_not_found")
    return answer(select_columns(views.exchange_row(exchange), query.columns))
