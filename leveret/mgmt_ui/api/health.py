"""GET /api/health/checks/…: 200 {"status": "ok"}, or 503 with the reason.

As in RabbitMQ, the two that load balancers and orchestrators ask need no password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Response

from leveret.mgmt_ui.api.answers import READ, Segment, answer
from leveret.mgmt_ui.api.callers import NodeHere, authenticated
from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from leveret.mgmt_ui.managed import ManagedNode

__all__ = ["router"]

CHECKS = "/api/health/checks"
PORT_MAX = 65_535
# RabbitMQ's other names for what a node may listen to.
PROTOCOLS = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1"), "amqp"),
    **dict.fromkeys(("http1", "http1.1", "http_api", "management", "management_ui", "ui"), "http"),
}

public = APIRouter(prefix=CHECKS)
guarded = APIRouter(prefix=CHECKS, dependencies=[Depends(authenticated)])


def _ok(**details: object) -> Response:
    return answer({"status": "ok", **details})


def _failed(reason: str, **details: object) -> Response:
    return answer({"status": "failed", "reason": reason, **details}, 503)


@public.api_route("/is-in-service", methods=READ)
async def is_in_service(node: NodeHere) -> Response:
    """Whether the node is neither starting nor stopping."""
    if node.is_serving():
        return _ok()
    return _failed("this node is not currently available to serve")


@public.api_route("/ready-to-serve-clients", methods=READ)
async def ready_to_serve_clients(node: NodeHere) -> Response:
    """Whether one more client may come."""
    if not node.is_serving():
        return _failed("this node is not currently available to serve")
    if not any(listener.protocol == "amqp" for listener in node.listeners):
        return _failed("no active listeners for AMQP/AMQPS")
    connections = len(node.broker.connections)
    if connections >= node.configuration.connections_max:
        return _failed("node connection limit is reached", connections=connections)
    return _ok()


@guarded.api_route("/alarms", methods=READ)
async def alarms(node: NodeHere) -> Response:
    """Whether nothing runs low anywhere in the cluster, which is this node."""
    return _alarms(node, "There are alarms in effect in the cluster")


@guarded.api_route("/local-alarms", methods=READ)
async def local_alarms(node: NodeHere) -> Response:
    """Whether nothing runs low on this node."""
    return _alarms(node, "There are alarms in effect on the node")


def _alarms(node: ManagedNode, reason: str) -> Response:
    low = [{"node": node.name, "resource": low.value} for low in node.broker.alarms.low]
    return _failed(reason, alarms=low) if low else _ok()


@guarded.api_route("/virtual-hosts", methods=READ)
async def virtual_hosts(node: NodeHere) -> Response:
    """Whether every virtual host that is defined is open."""
    defined = [vhost.name for vhost in node.administered.administration.vhosts()]
    down = [name for name in defined if name not in node.broker.vhosts]
    if down:
        return _failed("Some virtual hosts are down", **{"virtual-hosts": down})
    return _ok()


@guarded.api_route("/port-listener/{port}", methods=READ)
async def port_listener(node: NodeHere, port: Segment) -> Response:
    """Whether the node listens on a port."""
    if not (port.isascii() and port.isdigit() and int(port[:6]) <= PORT_MAX):
        raise ApiError(400, "bad_request", "Invalid port")
    ports = [listener.port for listener in node.listeners]
    if int(port) in ports:
        return _ok(port=int(port))
    return _failed("No active listener", missing=int(port), ports=ports)


@guarded.api_route("/protocol-listener/{protocol}", methods=READ)
async def protocol_listener(node: NodeHere, protocol: Segment) -> Response:
    """Whether the node listens for a protocol, by any of its names."""
    protocol = PROTOCOLS.get(protocol.lower(), protocol.lower())
    protocols = [listener.protocol for listener in node.listeners]
    if protocol in protocols:
        return _ok(protocol=protocol)
    return _failed("No active listener", missing=protocol, protocols=protocols)


router = APIRouter()
router.include_router(public)
router.include_router(guarded)
