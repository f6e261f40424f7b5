"""/api/feature-flags, and other requests about versions and replicas.

The answers are those of a single node, so that tools which check first can go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Response

from leveret.core.settings.arguments import type_of
from leveret.mgmt_ui.api.callers import AdministratorHere, CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.problems import bad_request, not_found, queue_not_found
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row

__all__ = ["router"]

# RabbitMQ's names for what Leveret always has.
FLAGS = {
    "direct_exchange_routing_v2": "Routes of direct exchanges are looked up, not searched",
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "implicit_default_bindings": "Default bindings are implicit",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_filtering": "Support for stream filtering",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}
MEMBER = body({"node": "leveret@host"}, "node")

router = LazyRouter(tags=["features"])

KIND: ObjectKind[Row] = ObjectKind(lambda flag: (flag["name"],), lambda flag: flag, ("name",))


@router.api_route("/api/feature-flags", methods=READ)
async def list_feature_flags(_: AdministratorHere, query: QueryHere) -> Response:
    """RabbitMQ's feature flags that have a meaning here; all are enabled."""
    flags = [
        {
            "name": name,
            "desc": description,
            "doc_url": "",
            "state": "enabled",
            "stability": "required",
            "provided_by": "leveret",
        }
        for name, description in FLAGS.items()
    ]
    return await listed(flags, KIND, query)


@router.put("/api/feature-flags/{name}/enable")
async def enable_feature_flag(_: AdministratorHere, name: Segment) -> Response:
    """Enable a feature flag; all that exist are enabled."""
    if name not in FLAGS:
        raise bad_request("unsupported")
    return done()


@router.api_route("/api/deprecated-features", methods=READ)
@router.api_route("/api/deprecated-features/used", methods=READ)
async def list_deprecated_features(caller: CallerHere) -> Response:  # noqa: ARG001
    """Deprecated features: none."""
    return answer([])


# -- replicas of quorum queues


@router.api_route("/api/queues/quorum/{vhost}/{name}/status", methods=READ)
async def show_replicas(caller: CallerHere, vhost: Segment, name: Segment) -> Response:
    """The replicas of a quorum queue: one, the leader on this node."""
    _quorum_queue(caller, vhost, name)
    return answer([{"Node Name": caller.node.name, "Raft State": "leader", "Membership": "voter"}])


@router.post("/api/queues/quorum/{vhost}/{name}/replicas/add", openapi_extra=MEMBER)
async def add_replica(caller: AdministratorHere, vhost: Segment, name: Segment) -> Response:
    """Refused: this node has the replica already."""
    _quorum_queue(caller, vhost, name)
    raise bad_request("already_a_member: this node is the only one")


@router.delete("/api/queues/quorum/{vhost}/{name}/replicas/delete", openapi_extra=MEMBER)
async def delete_replica(caller: AdministratorHere, vhost: Segment, name: Segment) -> Response:
    """Refused: the queue's only replica cannot be deleted."""
    _quorum_queue(caller, vhost, name)
    raise bad_request("last_node: this replica is the only one")


@router.post("/api/queues/quorum/replicas/on/{node}/grow")
async def grow_replicas(caller: CallerHere, node: Segment) -> Response:
    """Add replicas on a node: this node has all of them."""
    return _on_node(caller, node)


@router.delete("/api/queues/quorum/replicas/on/{node}/shrink")
async def shrink_replicas(caller: CallerHere, node: Segment) -> Response:
    """Refused: the queues' only replicas cannot be deleted."""
    _on_node(caller, node)
    raise bad_request("last_node: these replicas are the only ones")


def _on_node(caller: Caller, node: str) -> Response:
    caller.require_administrator()
    if node != caller.node.name:
        raise not_found()
    return done()


def _quorum_queue(caller: Caller, vhost: str, name: str) -> QueueLike:
    host = caller.vhost(vhost)
    queue = host.queues.get(name)
    if queue is None:
        raise queue_not_found(host, name)
    if type_of(queue.definition.arguments) != "quorum":
        raise bad_request("not_quorum_queue")
    return queue
