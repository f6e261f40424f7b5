"""/api/users, /api/permissions and /api/whoami: who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.answers import READ, QueryHere, answer, listed
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import Kind

if TYPE_CHECKING:
    from leveret.ports.definitions import PermissionDefinition, UserDefinition


__all__ = ["router"]

router = APIRouter()

users: Kind[UserDefinition] = Kind(lambda user: (user.name,), views.user_row, ("name",))
permissions: Kind[PermissionDefinition] = Kind(
    lambda permission: (permission.vhost, permission.user),
    views.permission_row,
    ("vhost", "user"),
)


@router.api_route("/api/whoami", methods=READ)
async def whoami(caller: CallerHere) -> Response:
    """The caller."""
    return answer({"name": caller.name, "tags": list(caller.tags), "is_internal_user": True})


@router.api_route("/api/users", methods=READ)
async def list_users(caller: CallerHere, query: QueryHere) -> Response:
    """Users, for administrators."""
    caller.require_administrator()
    return await listed(caller.node.broker.access.users(), users, query)


@router.api_route("/api/permissions", methods=READ)
async def list_permissions(caller: CallerHere, query: QueryHere) -> Response:
    """Permissions of all users in all virtual hosts, for administrators."""
    caller.require_administrator()
    return await listed(caller.node.broker.access.permissions(), permissions, query)
