"""/api/bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.answers import READ, QueryHere, Segment, listed, vhosts_of
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import Kind

if TYPE_CHECKING:
    from leveret.core.routing.bindings import Binding


__all__ = ["router"]

router = APIRouter()

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


@router.api_route("/api/bindings", methods=READ)
@router.api_route("/api/bindings/{vhost}", methods=READ)
async def list_bindings(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Bindings to queues and exchanges, those of the default exchange included."""
    sources = [source for host in vhosts_of(caller, vhost) for source in host.exchanges.values()]
    found = [binding for source in sources for binding in source.outgoing.values()]
    return await listed(found, bindings, query)
