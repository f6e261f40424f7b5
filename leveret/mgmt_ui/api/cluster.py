"""The node: its cluster's name, its figures, its version, and cluster-only requests.

A node of Leveret is a cluster of its own; requests that need several nodes answer accordingly.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret import __version__
from leveret.mgmt_ui.api.bodies import json_object, require_fields
from leveret.mgmt_ui.api.callers import AdministratorHere, CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import (
    READ,
    QueryHere,
    Segment,
    answer,
    done,
    select_columns,
    shown,
)
from leveret.mgmt_ui.api.overview import contexts, exchange_types
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_found
from leveret.mgmt_ui.operations.node import cluster_set_name, described_members
from leveret.mgmt_ui.process import node_gauges, read_process
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.listing import Query


__all__ = ["router"]

router = LazyRouter(tags=["cluster"])


@router.api_route("/api/cluster-name", methods=READ)
async def show_cluster_name(caller: CallerHere) -> Response:
    """The cluster's name."""
    return answer({"name": caller.node.cluster_name})


@router.put("/api/cluster-name", openapi_extra=body({"name": "orders"}, "name"))
async def put_cluster_name(caller: AdministratorHere, request: Request) -> Response:
    """Set the cluster's name, which clients get when they connect."""
    asked = await json_object(request)
    require_fields(asked, "name")
    await caller.perform(cluster_set_name, name=asked["name"])
    return done()


@router.api_route("/api/nodes", methods=READ)
async def list_nodes(caller: CallerHere, query: QueryHere) -> Response:
    """All nodes of the cluster; of others than this one what it knows of them."""
    caller.require_monitor()
    own, cluster = await _node_row(caller, query), caller.node.context.cluster
    rows = [own]
    if cluster is not None:
        rows = [_member_row(own, each) for each in await described_members(cluster)]
    return answer([select_columns(row, query.columns) for row in rows])


@router.api_route("/api/nodes/{name}", methods=READ)
async def show_node(caller: CallerHere, query: QueryHere, name: Segment) -> Response:
    """One node."""
    caller.require_monitor()
    _require_this(caller, name)
    return answer(select_columns(await _node_row(caller, query), query.columns))


@router.api_route("/api/nodes/{name}/memory", methods=READ)
async def show_memory(caller: CallerHere, name: Segment) -> Response:
    """The node's memory by kind, in bytes."""
    caller.require_monitor()
    _require_this(caller, name)
    figures = await asyncio.to_thread(read_process, caller.node.configuration.data_dir)
    total = {"rss": figures.resident_bytes}
    return answer({"memory": {**figures.memory_bytes, "strategy": "rss", "total": total}})


@router.api_route("/api/nodes/{name}/memory/relative", methods=READ)
async def show_relative_memory(caller: CallerHere, name: Segment) -> Response:
    """The node's memory by kind, in percent of the whole, rounded up."""
    caller.require_monitor()
    _require_this(caller, name)
    figures = await asyncio.to_thread(read_process, caller.node.configuration.data_dir)
    whole = max(1, sum(figures.memory_bytes.values()))
    kinds = {kind: -(-100 * count // whole) for kind, count in figures.memory_bytes.items()}
    return answer({"memory": {"total": 100, **kinds}})


@router.api_route("/api/version", methods=READ)
async def show_version(caller: CallerHere) -> Response:
    """The version that clients see."""
    return answer(caller.node.configuration.version)


@router.api_route("/api/extensions", methods=READ)
async def list_extensions(caller: CallerHere) -> Response:  # noqa: ARG001  # authenticates
    """Extensions of the web UI: there are none."""
    return answer([])


@router.api_route("/api/config/effective", methods=READ)
async def show_configuration(caller: AdministratorHere) -> Response:
    """The settings that the node runs with, without secrets; for administrators."""
    return answer(caller.node.configuration.model_dump(mode="json"))


@router.post("/api/rebalance/queues")
async def rebalance_queues(_: AdministratorHere) -> Response:
    """Rebalance queue leaders over the nodes: nothing to do on one node."""
    return done()


@router.api_route("/api/reset", methods=["POST", "DELETE"])
@router.api_route("/api/reset/{name}", methods=["POST", "DELETE"])
async def reset_statistics(caller: AdministratorHere, name: Segment | None = None) -> Response:
    """Refused: counters must not fall while the node runs."""
    if name is not None:
        _require_this(caller, name)
    raise _not_reset()


@router.api_route("/api/auth/attempts/{name}", methods=READ)
async def show_login_attempts(caller: CallerHere, name: Segment) -> Response:
    """Number of logins, of all protocols, since the node's start."""
    caller.require_monitor()
    _require_this(caller, name)
    feature_counters = caller.node.broker.feature_counters
    return answer(
        [
            {
                "protocol": "all",
                "auth_attempts": feature_counters.logins_accepted + feature_counters.logins_refused,
                "auth_attempts_failed": feature_counters.logins_refused,
                "auth_attempts_succeeded": feature_counters.logins_accepted,
            }
        ]
    )


@router.api_route("/api/auth/attempts/{name}/source", methods=READ)
async def list_login_attempts(caller: CallerHere, name: Segment) -> Response:
    """Logins by address and user: not kept, as in RabbitMQ by default."""
    caller.require_monitor()
    _require_this(caller, name)
    return answer([])


@router.delete("/api/auth/attempts/{name}")
@router.delete("/api/auth/attempts/{name}/source")
async def reset_login_attempts(caller: AdministratorHere, name: Segment) -> Response:
    """Refused, like every other reset."""
    _require_this(caller, name)
    raise _not_reset()


def _not_reset() -> ApiError:
    return bad_request("counters begin with the node's start and cannot be reset")


def _require_this(caller: Caller, name: str) -> None:
    """Raise ApiError 404 unless the node of the path is this one."""
    if name != caller.node.name:
        raise not_found()


def _member_row(own: dict[str, Any], member: dict[str, Any]) -> dict[str, Any]:
    """Return a node of the cluster: this one with all its figures, others as RabbitMQ has them."""
    if member["is_this"]:
        return {**own, "member": member}
    return {
        "name": f"leveret-{member['node']}@{member['host'] or 'unknown'}",
        "type": "disc",
        "running": member["is_live"],
        "member": member,
    }


async def _node_row(caller: Caller, query: Query) -> dict[str, Any]:
    node = caller.node
    configuration = node.configuration
    figures = await asyncio.to_thread(read_process, configuration.data_dir)
    low = {resource.value for resource in node.broker.alarms.low}
    gauges = node_gauges(figures, len(node.broker.connections))
    return {
        **(gauges if query.disable_stats else shown(caller, query).node(gauges)),
        "name": node.name,
        "type": "disc",
        "running": True,
        "being_drained": not node.is_serving(),
        "partitions": [],
        "cluster_links": [],
        "os_pid": str(os.getpid()),
        "uptime": int(figures.uptime_seconds * 1000),
        "processors": os.cpu_count(),
        "mem_limit": int(configuration.memory_fraction_max * figures.memory_bytes_total),
        "mem_alarm": "memory" in low,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": configuration.disk_free_bytes_min,
        "disk_free_alarm": "disk" in low,
        "fd_total": figures.open_files_max,
        "sockets_total": configuration.connections_max,
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "applications": [
            {"name": "leveret", "description": "Leveret", "version": __version__},
        ],
        "contexts": contexts(node),
        "db_dir": str(configuration.data_dir.absolute()),
        "config_files": [],
        "log_files": [],
        "enabled_plugins": [],
    }
