"""/api/vhosts: virtual hosts, and the permissions in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bodies import flag, json_object, tags, text
from leveret.mgmt_ui.api.callers import AdministratorHere, CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    done,
    listed,
    select_columns,
    shown,
)
from leveret.mgmt_ui.api.permissions import PERMISSIONS, TOPIC_PERMISSIONS
from leveret.mgmt_ui.api.problems import bad_request
from leveret.mgmt_ui.objects import message_counts
from leveret.mgmt_ui.operations.access import (
    permission_set,
    vhost_add,
    vhost_create_queues,
    vhost_delete,
    vhost_protect,
    vhost_set,
    vhost_trace_off,
    vhost_trace_on,
)

if TYPE_CHECKING:
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.callers import Caller


__all__ = ["router"]

router = APIRouter(tags=["virtual hosts"])

EXAMPLE = {
    "description": "of the shop",
    "tags": ["production"],
    "default_queue_type": "quorum",
    "tracing": False,
    "protected_from_deletion": False,
    "creates_queues": False,
}


@router.api_route("/api/vhosts", methods=READ)
async def list_vhosts(caller: CallerHere, query: QueryHere) -> Response:
    """The virtual hosts that the caller may see."""
    visible = caller.visible_vhosts()
    await caller.node.context.queues.refresh()
    counts = {vhost.name: await message_counts([vhost]) for vhost in visible}
    kind: ObjectKind[Vhost] = ObjectKind(
        lambda vhost: (vhost.name,),
        lambda vhost: views.vhost_row(
            vhost, counts[vhost.name], caller.node.name, shown(caller, query)
        ),
        ("name",),
    )
    return await listed(visible, kind, query)


@router.api_route("/api/vhosts/{name}", methods=READ)
async def show_vhost(caller: CallerHere, query: QueryHere, name: Segment) -> Response:
    """One virtual host."""
    vhost = caller.visible_vhost(name)
    await caller.node.context.queues.refresh()
    counts = await message_counts([vhost])
    row = views.vhost_row(vhost, counts, caller.node.name, shown(caller, query))
    return answer(select_columns(row, query.columns))


@router.put("/api/vhosts/{name}", openapi_extra=body(EXAMPLE))
async def put_vhost(caller: AdministratorHere, request: Request, name: Segment) -> Response:
    """Add a virtual host, with all permissions for its creator, or change its description."""
    asked = _with_metadata(await json_object(request))
    described = {
        "description": text(asked, "description", None),
        "tags": tags(asked) if "tags" in asked else None,
        "default_queue_type": text(asked, "default_queue_type", None),
    }
    switches = {
        key: flag(asked, key)
        for key in ("tracing", "protected_from_deletion", "creates_queues")
        if key in asked
    }
    held = caller.node.broker.vhosts.get(name)
    if held is None:
        await caller.perform(vhost_add, name=name, **_filled(described, "", ()))
        await _let_in(caller, name)
    else:
        definition = held.definition
        filled = _filled(described, definition.description, definition.tags)
        await caller.perform(vhost_set, name=name, **filled)
    if "tracing" in switches:
        await caller.perform(vhost_trace_on if switches["tracing"] else vhost_trace_off, name=name)
    if "protected_from_deletion" in switches:
        protected = switches["protected_from_deletion"]
        await caller.perform(vhost_protect, name=name, protected=protected)
    if "creates_queues" in switches:
        await caller.perform(vhost_create_queues, name=name, on=switches["creates_queues"])
    return done(is_new=held is None)


def _with_metadata(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a body with the fields in `metadata`, as in definitions, merged into it."""
    metadata = asked.get("metadata")
    return {**metadata, **asked} if isinstance(metadata, dict) else asked


def _filled(
    described: dict[str, Any], description: str, known_tags: tuple[str, ...]
) -> dict[str, Any]:
    """Return a description with defaults for all missing fields but the queue type."""
    queue_type = described["default_queue_type"]
    return {
        "description": description
        if described["description"] is None
        else described["description"],
        "tags": list(known_tags) if described["tags"] is None else described["tags"],
        "default_queue_type": None if queue_type in {"", "undefined"} else queue_type,
    }


async def _let_in(caller: Caller, vhost: str) -> None:
    """Give the creator of a virtual host all permissions in it, as RabbitMQ does."""
    if caller.node.broker.access.user(caller.name) is not None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await caller.perform(permission_set, vhost=vhost, user=caller.name, **everything)


@router.delete("/api/vhosts/{name}")
async def delete_vhost(caller: AdministratorHere, name: Segment) -> Response:
    """Delete a virtual host with everything in it, unless it is protected."""
    caller.vhost(name)
    await caller.perform(vhost_delete, name=name)
    return done()


@router.api_route("/api/vhosts/{name}/permissions", methods=READ)
async def list_permissions_in_vhost(
    caller: AdministratorHere, query: QueryHere, name: Segment
) -> Response:
    """The permissions of all users in one virtual host."""
    caller.vhost(name)
    return await listed(caller.node.broker.access.permissions(vhost=name), PERMISSIONS, query)


@router.api_route("/api/vhosts/{name}/topic-permissions", methods=READ)
async def list_topic_permissions_in_vhost(
    caller: AdministratorHere, query: QueryHere, name: Segment
) -> Response:
    """The topic permissions of all users in one virtual host."""
    caller.vhost(name)
    held = caller.node.broker.access.topic_permissions(vhost=name)
    return await listed(held, TOPIC_PERMISSIONS, query)


@router.post("/api/vhosts/{name}/deletion/protection")
async def protect_vhost(caller: CallerHere, name: Segment) -> Response:
    """Protect a virtual host from deletion."""
    return await _protect(caller, name, protected=True)


@router.delete("/api/vhosts/{name}/deletion/protection")
async def unprotect_vhost(caller: CallerHere, name: Segment) -> Response:
    """Allow a virtual host to be deleted again."""
    return await _protect(caller, name, protected=False)


async def _protect(caller: Caller, name: str, *, protected: bool) -> Response:
    caller.require_administrator()
    caller.vhost(name)
    await caller.perform(vhost_protect, name=name, protected=protected)
    return done()


@router.post("/api/vhosts/{name}/start/{node}")
async def start_vhost(caller: AdministratorHere, name: Segment, node: Segment) -> Response:
    """Start a virtual host that is down: none is while the node runs."""
    if node != caller.node.name:
        raise bad_request(f"Request to node {node} failed with nodedown")
    if name not in caller.node.broker.vhosts:
        raise bad_request(f"Request to node {node} failed with no_such_vhost {name}")
    return done()
