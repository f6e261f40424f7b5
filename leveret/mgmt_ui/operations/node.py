"""Operations on the node as a whole (see leveret.mgmt_ui.operations.dispatcher)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leveret import __version__
from leveret.core.admin.commands import command, query
from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.parameters import CLUSTER_NAME
from leveret.core.definitions.validation import check_name
from leveret.mgmt_ui import log_output
from leveret.mgmt_ui.operations.context import runtime_of
from leveret.mgmt_ui.operations.inventory import object_totals
from leveret.mgmt_ui.operations.node_health import diagnose
from leveret.mgmt_ui.operations.overview import measure
from leveret.mgmt_ui.operations.topology import broker_of
from leveret.ports.definitions import GlobalParameterDefinition

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.cluster import ClusterView


@query("node.status")
async def node_status(node: AdminContext) -> dict[str, Any]:
    """Return version, uptime, alarms, use of resources and counts of objects."""
    broker, runtime = broker_of(node), runtime_of(node)
    return {
        "name": broker.node_name,
        "version": __version__,
        "platform": broker.platform,
        "cluster_name": broker.parameters.cluster_name or runtime.configuration.cluster_name,
        "alarms": [resource.value for resource in broker.alarms.low],
        **await runtime.facts(),
        **await object_totals(node),
    }


@query("node.health")
async def node_health(node: AdminContext) -> dict[str, Any]:
    """Return whether clients are served, and resource alarms; cheap, for frequent probes."""
    alarms = [resource.value for resource in broker_of(node).alarms.low]
    return {"serving": runtime_of(node).is_serving, "alarms": alarms}


@command("node.stop")
async def node_stop(node: AdminContext) -> None:
    """Begin to stop, as at SIGTERM; the process ends once all is written."""
    runtime_of(node).stopping.set()


@query("node.overview")
async def node_overview(
    node: AdminContext, *, window_ms: int, limit: int, sort: str
) -> dict[str, Any]:
    """Return the status, and rates measured over a window."""
    measured = await measure(broker_of(node), window_ms, limit, sort)
    return {**await node_status(node), **measured}


@query("node.diagnose")
async def node_diagnose(node: AdminContext) -> list[dict[str, str]]:
    """Return the results of all health checks."""
    users = node.administration.users()
    losses = () if node.losses is None else node.losses.unacknowledged
    found = await diagnose(broker_of(node), runtime_of(node), users, losses)
    return [result.as_json() for result in found]


@query("cluster.nodes")
async def cluster_nodes(node: AdminContext) -> list[dict[str, Any]]:
    """Return the nodes of the cluster: who leads, who follows, and how far behind; see ports."""
    if node.cluster is None:
        raise AdministrationError("invalid", "this is a single node, of no cluster")
    return await described_members(node.cluster)


async def described_members(cluster: ClusterView) -> list[dict[str, Any]]:
    """Return what is known of the nodes of a cluster, with `is_this` for the one that is asked."""
    members = await cluster.members()
    return [{**asdict(each), "is_this": each.node == cluster.node} for each in members]


@query("cluster.show")
async def cluster_show(node: AdminContext) -> dict[str, str | None]:
    """Return the cluster's name; None if unnamed and no node runs."""
    configured = None if node.runtime is None else node.runtime.configuration.cluster_name
    return {"name": node.administration.parameters.cluster_name or configured}


@command("cluster.set_name")
async def cluster_set_name(node: AdminContext, *, name: str) -> None:
    """Set the cluster's name as RabbitMQ does, in a global parameter, which is exported."""
    check_name("cluster", name)
    node.administration.set_global_parameter(GlobalParameterDefinition(CLUSTER_NAME, name))


@query("log.show")
async def log_show(node: AdminContext) -> dict[str, str]:
    """Return the log level of each category."""
    runtime_of(node)
    return log_output.levels()


@command("log.set_level")
async def log_set_level(node: AdminContext, *, category: str, level: str) -> dict[str, str]:
    """Set the log level of a category until the node stops."""
    runtime_of(node)
    for name, value, known in (
        ("category", category, log_output.CATEGORIES),
        ("level", level, log_output.LEVELS),
    ):
        if value not in known:
            choices = ", ".join(known)
            raise AdministrationError("invalid", f"no {name} '{value}': there are {choices}")
    log_output.set_level(category, level)
    return log_output.levels()
