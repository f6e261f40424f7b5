"""GET /api/health/checks/…: 200 {"status": "ok"}, or 503 with the reason.

As in RabbitMQ, the two used by load balancers and orchestrators need no password.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cryptography import x509
from fastapi import APIRouter, Depends, Response

from leveret.core.patterns import Pattern, PatternError
from leveret.mgmt_ui.api.callers import CallerHere, NodeHere, authenticated
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.problems import ApiError, not_found
from leveret.ports.cluster_figures import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from leveret.mgmt_ui.managed import ManagedNode

__all__ = ["router"]

CHECKS = "/api/health/checks"
PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
DAY_MS = 86_400_000
PERIODS_DIGITS_MAX = 6
LEADERLESS = "Detected quorum queues without an elected leader"
CRITICAL = "There are quorum queues that would lose their quorum if the target node is shut down"
# RabbitMQ's other names for what a node may listen to.
PROTOCOLS = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1"), "amqp"),
    **dict.fromkeys(("http1", "http1.1", "http_api", "management", "management_ui", "ui"), "http"),
}

public = APIRouter(prefix=CHECKS, tags=["health"])
guarded = APIRouter(prefix=CHECKS, tags=["health"], dependencies=[Depends(authenticated)])


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
    """Whether the node would accept one more client."""
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
    """Whether there is no resource alarm in the cluster."""
    elsewhere = [
        {"node": name, "resource": low.value} for name, low in node.broker.alarms.elsewhere
    ]
    return _alarms(_own_alarms(node) + elsewhere, "There are alarms in effect in the cluster")


@guarded.api_route("/local-alarms", methods=READ)
async def local_alarms(node: NodeHere) -> Response:
    """Whether there is no resource alarm on this node."""
    return _alarms(_own_alarms(node), "There are alarms in effect on the node")


def _own_alarms(node: ManagedNode) -> list[dict[str, str]]:
    return [{"node": node.name, "resource": low.value} for low in node.broker.alarms.low]


def _alarms(low: list[dict[str, str]], reason: str) -> Response:
    return _failed(reason, alarms=low) if low else _ok()


@guarded.api_route("/virtual-hosts", methods=READ)
async def virtual_hosts(node: NodeHere) -> Response:
    """Whether every virtual host that is defined is open."""
    defined = [vhost.name for vhost in node.context.administration.vhosts()]
    down = [name for name in defined if name not in node.broker.vhosts]
    if down:
        return _failed("Some virtual hosts are down", **{"virtual-hosts": down})
    return _ok()


@guarded.api_route("/port-listener/{port}", methods=READ)
async def port_listener(node: NodeHere, port: Segment) -> Response:
    """Whether the node listens on a port."""
    is_number = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    if not is_number or int(port) > PORT_MAX:
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


@guarded.api_route("/node-is-quorum-critical", methods=READ)
async def node_is_quorum_critical(node: NodeHere) -> Response:
    """Whether no queue would take no publishes, or stop, without this node."""
    cluster = node.context.cluster
    if cluster is None or len(cluster.figures().nodes) == 1:
        return _ok(reason="single node cluster")
    queues = _queues(cluster.critical())
    return _failed(CRITICAL, queues=queues) if queues else _ok()


@guarded.api_route("/node-is-mirror-sync-critical", methods=READ)
async def node_is_mirror_sync_critical() -> Response:
    """Whether mirrored queues would be lost without this node: there are none."""
    return _ok(reason="single node cluster")


def _queues(rows: Iterable[dict[str, Any]], *, state: str | None = None) -> list[dict[str, str]]:
    """Return the queues of partitions, or of those in a state, each once, as RabbitMQ has them."""
    found = {
        (row["vhost"], row["queue"]): {
            "readable_name": f"queue '{row['queue']}' in vhost '{row['vhost']}'",
            "name": row["queue"],
            "virtual_host": row["vhost"],
            "type": row["type"],
        }
        for row in rows
        if state in {None, row.get("state")}
    }
    return list(found.values())


@guarded.api_route("/metadata-store/initialized", methods=READ)
@guarded.api_route("/metadata-store/initialized/with-data", methods=READ)
async def metadata_store_initialized() -> Response:
    """Whether definitions were loaded, which is so once the node answers."""
    return _ok()


@guarded.api_route("/below-node-connection-limit", methods=READ)
async def below_node_connection_limit(node: NodeHere) -> Response:
    """Whether the limit of connections allows more."""
    count, limit = len(node.broker.connections), node.configuration.connections_max
    if count < limit:
        return _ok(current=count, limit=limit)
    return _failed("node connection limit is reached", current=count, limit=limit)


@guarded.api_route("/reached-target-cluster-size", methods=READ)
async def reached_target_cluster_size(node: NodeHere) -> Response:
    """Whether all nodes of the cluster are up."""
    cluster = node.context.cluster
    nodes = [True] if cluster is None else [each.is_up for each in cluster.figures().nodes]
    sizes = {"target_size": len(nodes), "actual_size": sum(nodes)}
    if all(nodes):
        return _ok(**sizes)
    return _failed("target cluster size is not reached", **sizes)


ELECTED = "/quorum-queues-without-elected-leaders"


@guarded.api_route(f"{ELECTED}/all-vhosts", methods=READ)
@guarded.api_route(f"{ELECTED}/all-vhosts/pattern/{{pattern}}", methods=READ)
@guarded.api_route(f"{ELECTED}/vhost/{{vhost}}", methods=READ)
@guarded.api_route(f"{ELECTED}/vhost/{{vhost}}/pattern/{{pattern}}", methods=READ)
async def quorum_queues_have_leaders(
    node: NodeHere, vhost: Segment | None = None, pattern: Segment = ".*"
) -> Response:
    """Whether all quorum queues have a leader, those whose names match a pattern."""
    cluster = node.context.cluster
    if cluster is None:
        return _ok()
    try:
        compiled = Pattern(pattern)
    except PatternError as error:
        raise ApiError(400, "bad_request", f"Invalid pattern: {error.reason}") from None
    queues = [
        row
        for row in _queues(cluster.partitions(problems=True, limit=None), state=NO_LEADER)
        if row["type"] == "quorum"
        and vhost in {None, row["virtual_host"]}
        and compiled.is_in(row["name"])
    ]
    return _failed(LEADERLESS, queues=queues) if queues else _ok()


@guarded.api_route("/certificate-expiration/{within}/{unit}", methods=READ)
async def certificate_expiration(node: NodeHere, within: Segment, unit: Segment) -> Response:
    """Whether the node's certificates and CA certificates stay valid for that time."""
    if unit.lower().rstrip("s") not in DAYS:
        supported = "Supported units: days, weeks, months, years."
        raise ApiError(400, "bad_request", f"Time unit not recognised. {supported}")
    if not (within.isascii() and within.isdigit() and len(within) <= PERIODS_DIGITS_MAX):
        raise ApiError(400, "bad_request", "Invalid expiration period.")
    until_ms = node.broker.timers.wall_ms() + int(within) * DAYS[unit.lower().rstrip("s")] * DAY_MS
    expired = await asyncio.to_thread(_expiring, node, until_ms)
    return _failed("Certificates expiring", expired=expired) if expired else _ok()


def _expiring(node: ManagedNode, until_ms: int) -> list[dict[str, object]]:
    """Return certificate files that expire before a time, or that cannot be read."""
    configuration = node.configuration
    found: list[dict[str, object]] = []
    for kind, file in (
        ("certfile_expires_on", configuration.tls_certificate_file),
        ("cacertfile_expires_on", configuration.tls_ca_file),
    ):
        if file is None:
            continue
        try:
            certificates = x509.load_pem_x509_certificates(file.read_bytes())
        except (OSError, ValueError):
            found.append({"node": node.name, kind: None})
            continue
        ends = min(certificate.not_valid_after_utc for certificate in certificates)
        if ends.timestamp() * 1000 < until_ms:
            found.append({"node": node.name, kind: f"{ends:%Y-%m-%d %H:%M:%S}"})
    return found


# -- the checks of before: what asks them wants to hear yes or no, as RabbitMQ 4 answers them


deprecated = APIRouter(tags=["health"])


@deprecated.api_route("/api/aliveness-test/{vhost}", methods=READ)
async def aliveness_test(caller: CallerHere, vhost: Segment) -> Response:
    """Whether a virtual host exists and the caller may enter it."""
    caller.vhost(vhost)
    return _ok()


@deprecated.api_route("/api/healthchecks/node", methods=READ)
@deprecated.api_route("/api/healthchecks/node/{name}", methods=READ)
async def node_check(caller: CallerHere, name: Segment | None = None) -> Response:
    """Whether this node answers."""
    if name not in {None, caller.node.name}:
        raise not_found()
    return _ok()


router = APIRouter(routes=[*deprecated.routes, *public.routes, *guarded.routes])
