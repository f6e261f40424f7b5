"""Operations on the node as a whole (see leveret.mgmt_ui.operations.performing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret import __version__
from leveret.core.definitions.administration import AdministrationError
from leveret.mgmt_ui.operations.inventory import object_totals
from leveret.mgmt_ui.operations.topology import broker_of

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.administered import Administered, Operations, Parameters
    from leveret.mgmt_ui.operations.runtime import Runtime

__all__ = ["NODE", "runtime_of"]


def runtime_of(node: Administered) -> Runtime:
    """The process of a running node. Raises AdministrationError for a stopped one."""
    if node.runtime is None:
        raise AdministrationError("invalid", "this needs a running node: start it first")
    return node.runtime


async def _status(node: Administered, _: Parameters) -> dict[str, Any]:
    broker, runtime = broker_of(node), runtime_of(node)
    return {
        "name": broker.node_name,
        "version": __version__,
        "platform": broker.platform,
        "cluster_name": runtime.configuration.cluster_name,
        "alarms": [resource.value for resource in broker.alarms.low],
        **await runtime.facts(),
        **await object_totals(node),
    }


NODE: Final[Operations] = {
    "node.status": (_status, {}),
}
