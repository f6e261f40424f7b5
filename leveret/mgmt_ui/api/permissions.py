"""/api/permissions and /api/topic-permissions: permissions of users in virtual hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bodies import json_object, require_fields
from leveret.mgmt_ui.api.callers import AdministratorHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.access import permission_clear, permission_set
from leveret.mgmt_ui.operations.rules import topic_permission_clear, topic_permission_set
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.ports.definitions import PermissionDefinition, TopicPermissionDefinition


__all__ = ["PERMISSIONS", "TOPIC_PERMISSIONS", "router"]

router = LazyRouter(tags=["permissions"])

PERMISSIONS: ObjectKind[PermissionDefinition] = ObjectKind(
    lambda permission: (permission.vhost, permission.user), views.permission_row, ("vhost", "user")
)
TOPIC_PERMISSIONS: ObjectKind[TopicPermissionDefinition] = ObjectKind(
    lambda permission: (permission.vhost, permission.user, permission.exchange),
    views.topic_permission_row,
    ("vhost", "user", "exchange"),
)
PATTERNS = {"configure": "^orders-", "write": ".*", "read": ".*"}
TOPIC_PATTERNS = {"exchange": "amq.topic", "write": r"^{username}\.", "read": ".*"}


# -- permissions


@router.api_route("/api/permissions", methods=READ)
async def list_permissions(caller: AdministratorHere, query: QueryHere) -> Response:
    """Permissions of all users in all virtual hosts, for administrators."""
    return await listed(caller.node.broker.access.permissions(), PERMISSIONS, query)


@router.api_route("/api/permissions/{vhost}/{user}", methods=READ)
async def show_permission(caller: AdministratorHere, vhost: Segment, user: Segment) -> Response:
    """The permissions of one user in one virtual host."""
    return answer(views.permission_row(_held(caller, vhost, user)[0]))


@router.put("/api/permissions/{vhost}/{user}", openapi_extra=body(PATTERNS, *PATTERNS))
async def put_permission(
    caller: AdministratorHere, request: Request, vhost: Segment, user: Segment
) -> Response:
    """Set a user's permissions in a virtual host: patterns of names for three rights."""
    asked = await json_object(request)
    require_fields(asked, *PATTERNS)
    _require_both(caller, vhost, user)
    is_new = not caller.node.broker.access.permissions(user=user, vhost=vhost)
    patterns = {name: asked[name] for name in PATTERNS}
    await caller.perform(permission_set, vhost=vhost, user=user, **patterns)
    return done(is_new=is_new)


@router.delete("/api/permissions/{vhost}/{user}")
async def delete_permission(caller: AdministratorHere, vhost: Segment, user: Segment) -> Response:
    """Remove a user's permissions in a virtual host."""
    _held(caller, vhost, user)
    await caller.perform(permission_clear, vhost=vhost, user=user)
    return done()


# -- topic permissions


@router.api_route("/api/topic-permissions", methods=READ)
async def list_topic_permissions(caller: AdministratorHere, query: QueryHere) -> Response:
    """Topic permissions of all users in all virtual hosts, for administrators."""
    return await listed(caller.node.broker.access.topic_permissions(), TOPIC_PERMISSIONS, query)


@router.api_route("/api/topic-permissions/{vhost}/{user}", methods=READ)
async def show_topic_permissions(
    caller: AdministratorHere, query: QueryHere, vhost: Segment, user: Segment
) -> Response:
    """The topic permissions of one user in one virtual host."""
    return await listed(_held_topics(caller, vhost, user), TOPIC_PERMISSIONS, query)


@router.put(
    "/api/topic-permissions/{vhost}/{user}", openapi_extra=body(TOPIC_PATTERNS, *TOPIC_PATTERNS)
)
async def put_topic_permission(
    caller: AdministratorHere, request: Request, vhost: Segment, user: Segment
) -> Response:
    """Restrict a user to some routing keys of a topic exchange."""
    asked = await json_object(request)
    require_fields(asked, *TOPIC_PATTERNS)
    _require_both(caller, vhost, user)
    held = caller.node.broker.access.topic_permissions(user=user, vhost=vhost)
    is_new = asked["exchange"] not in [one.exchange for one in held]
    said = {name: asked[name] for name in TOPIC_PATTERNS}
    await caller.perform(topic_permission_set, vhost=vhost, user=user, **said)
    return done(is_new=is_new)


@router.delete("/api/topic-permissions/{vhost}/{user}")
@router.delete("/api/topic-permissions/{vhost}/{user}/{exchange}")
async def delete_topic_permissions(
    caller: AdministratorHere, vhost: Segment, user: Segment, exchange: Segment | None = None
) -> Response:
    """Remove the restrictions on one topic exchange, or on all."""
    held = _held_topics(caller, vhost, user)
    if exchange is not None and exchange not in [one.exchange for one in held]:
        raise not_found()
    await caller.perform(topic_permission_clear, vhost=vhost, user=user, exchange=exchange)
    return done()


def _held(caller: Caller, vhost: str, user: str) -> list[PermissionDefinition]:
    """Return the permission of a path, as a list of one. Raises ApiError 404."""
    held = caller.node.broker.access.permissions(user=user, vhost=vhost)
    if not held:
        raise not_found()
    return held


def _held_topics(caller: Caller, vhost: str, user: str) -> list[Any]:
    """Return the topic permissions of a path, at least one. Raises ApiError 404."""
    held = caller.node.broker.access.topic_permissions(user=user, vhost=vhost)
    if not held:
        raise not_found()
    return held


def _require_both(caller: Caller, vhost: str, user: str) -> None:
    """Raise ApiError 400, as RabbitMQ does, if the virtual host or the user does not exist."""
    if vhost not in caller.node.broker.vhosts or caller.node.broker.access.user(user) is None:
        raise bad_request("vhost_or_user_not_found")
