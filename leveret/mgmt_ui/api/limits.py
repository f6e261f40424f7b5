"""/api/user-limits and /api/vhost-limits: limits of users and virtual hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.mgmt_ui.api.bodies import json_object, require_fields
from leveret.mgmt_ui.api.callers import AdministratorHere, CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, done, listed
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.rules import limits_clear, limits_set
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.ports.definitions import UserDefinition, VhostDefinition


__all__ = ["router"]

router = LazyRouter(tags=["limits"])

OF_USERS: ObjectKind[UserDefinition] = ObjectKind(
    lambda user: (user.name,), lambda user: {"user": user.name, "value": user.limits}, ("user",)
)
OF_VHOSTS: ObjectKind[VhostDefinition] = ObjectKind(
    lambda vhost: (vhost.name,),
    lambda vhost: {"vhost": vhost.name, "value": vhost.limits},
    ("vhost",),
)
VALUE = body({"value": 100}, "value")


# -- of users


@router.api_route("/api/user-limits", methods=READ)
@router.api_route("/api/user-limits/{user}", methods=READ)
async def list_user_limits(
    caller: AdministratorHere, query: QueryHere, user: Segment | None = None
) -> Response:
    """Limits of all users that have any, or of one."""
    users = caller.node.broker.access.users()
    if user is not None:
        users = [held for held in users if held.name == user]
        if not users:
            raise not_found()
    return await listed([held for held in users if held.limits], OF_USERS, query)


@router.put("/api/user-limits/{user}/{limit}", openapi_extra=VALUE)
async def put_user_limit(
    caller: AdministratorHere, request: Request, user: Segment, limit: Segment
) -> Response:
    """Set a limit of a user: `max-connections`, `max-channels`, or a rate."""
    asked = await json_object(request)
    require_fields(asked, "value")
    if caller.node.broker.access.user(user) is None:
        raise bad_request(f"no_such_user {user}")
    limits = {limit: asked["value"]}
    await caller.perform(limits_set, kind="user", name=user, limits=limits)
    return done()


@router.delete("/api/user-limits/{user}/{limit}")
async def delete_user_limit(caller: AdministratorHere, user: Segment, limit: Segment) -> Response:
    """Remove a limit of a user."""
    if caller.node.broker.access.user(user) is None:
        raise not_found()
    await caller.perform(limits_clear, kind="user", name=user, limit=limit)
    return done()


# -- of virtual hosts


@router.api_route("/api/vhost-limits", methods=READ)
@router.api_route("/api/vhost-limits/{vhost}", methods=READ)
async def list_vhost_limits(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Limits of virtual hosts that the caller may see and that have any, or of one."""
    hosts = caller.visible_vhosts() if vhost is None else [caller.visible_vhost(vhost)]
    found = [host.definition for host in hosts if host.definition.limits]
    return await listed(found, OF_VHOSTS, query)


@router.put("/api/vhost-limits/{vhost}/{limit}", openapi_extra=VALUE)
async def put_vhost_limit(
    caller: AdministratorHere, request: Request, vhost: Segment, limit: Segment
) -> Response:
    """Set a limit of a virtual host: `max-connections`, `max-queues`, or a rate."""
    caller.vhost(vhost)
    asked = await json_object(request)
    require_fields(asked, "value")
    limits = {limit: asked["value"]}
    await caller.perform(limits_set, kind="vhost", name=vhost, limits=limits)
    return done()


@router.delete("/api/vhost-limits/{vhost}/{limit}")
async def delete_vhost_limit(caller: AdministratorHere, vhost: Segment, limit: Segment) -> Response:
    """Remove a limit of a virtual host."""
    caller.vhost(vhost)
    await caller.perform(limits_clear, kind="vhost", name=vhost, limit=limit)
    return done()
