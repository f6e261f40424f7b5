"""GET /api/overview: facts and totals of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from leveret import __version__
from leveret.core.exchanges import EXCHANGE_TYPES, describe_type
from leveret.mgmt_ui.api.callers import Caller, CallerHere
from leveret.mgmt_ui.api.listing import READ, QueryHere, answer, select_columns
from leveret.mgmt_ui.api.listing import shown as shown_statistics
from leveret.mgmt_ui.api.views import HANDED_OUT, PUBLISHED, added, retention_policies
from leveret.mgmt_ui.objects import message_counts, object_counts

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.listing import Query
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.managed import ManagedNode

__all__ = ["contexts", "exchange_types", "object_totals", "router"]

router = APIRouter()


@router.api_route("/api/overview", methods=READ)
async def overview(caller: CallerHere, query: QueryHere) -> Response:
    """The node's properties and, unless `disable_stats=true`, its totals."""
    shown = _identity(caller.node, query)
    if not query.disable_stats:
        shown |= _message_stats(caller, query)
    if not query.disable_stats or query.enable_queue_totals:
        await caller.node.context.queues.refresh()
        totals = await message_counts(caller.visible_vhosts())
        shown["queue_totals"] = _queue_totals(caller, query, totals)
        shown["object_totals"] = await object_totals(caller)
    if caller.is_monitor:
        shown |= _addresses(caller.node)
    return answer(select_columns(shown, query.columns))


def _message_stats(caller: Caller, query: Query) -> Row:
    """Return message rates of the node for monitors, else of the visible virtual hosts."""
    wanted = shown_statistics(caller, query)
    if caller.is_monitor:
        rows = [wanted.messages(None, (*PUBLISHED, *HANDED_OUT))]
    else:
        rows = [wanted.messages(v, (*PUBLISHED, *HANDED_OUT)) for v in caller.visible_vhosts()]
    return {
        "message_stats": added(rows) if rows else {},
        "churn_rates": wanted.churn(),
        "statistics_db_event_queue": 0,
    }


def _queue_totals(caller: Caller, query: Query, totals: Row) -> Row:
    if query.disable_stats:
        return totals
    wanted = shown_statistics(caller, query)
    if caller.is_monitor:
        return wanted.lengths(None, totals)
    rows = [wanted.lengths(vhost, {}) for vhost in caller.visible_vhosts()]
    return {**(added(rows) if rows else {}), **totals}


def _identity(node: ManagedNode, query: Query) -> dict[str, Any]:
    configuration = node.configuration
    return {
        "management_version": configuration.version,
        "rates_mode": "basic",
        "sample_retention_policies": retention_policies(),
        "exchange_types": exchange_types(),
        "product_name": configuration.product,
        "product_version": configuration.version,
        "rabbitmq_version": configuration.version,
        "leveret_version": __version__,
        "cluster_name": node.cluster_name,
        "cluster_tags": {},
        "node_tags": {},
        "default_queue_type": "classic",
        "disable_stats": query.disable_stats,
        "enable_queue_totals": query.enable_queue_totals,
        "is_op_policy_updating_enabled": False,
    }


async def object_totals(caller: Caller) -> dict[str, int]:
    """Return the numbers of objects that the caller may see."""
    return await object_counts(caller.visible_vhosts(), caller.visible_clients())


def _addresses(node: ManagedNode) -> dict[str, Any]:
    listeners = [
        {
            "node": node.name,
            "protocol": listener.protocol,
            "ip_address": listener.host,
            "port": listener.port,
            "socket_opts": {},
        }
        for listener in sorted(node.listeners, key=lambda each: (each.protocol, each.port))
    ]
    return {"node": node.name, "listeners": listeners, "contexts": contexts(node)}


def contexts(node: ManagedNode) -> list[dict[str, Any]]:
    """Return the addresses at which the HTTP API is served."""
    return [
        {
            "node": node.name,
            "description": "Leveret management",
            "path": "/",
            "ip": listener.host,
            "port": str(listener.port),
        }
        for listener in node.listeners
        if listener.protocol == "http"
    ]


def exchange_types() -> list[dict[str, Any]]:
    """Return the types of exchanges."""
    return [
        {"name": name, "description": describe_type(name), "enabled": True}
        for name in sorted(EXCHANGE_TYPES)
    ]
