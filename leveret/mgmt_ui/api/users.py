"""/api/users and /api/whoami."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bodies import json_object, require_fields, tags, text
from leveret.mgmt_ui.api.callers import AdministratorHere, CallerHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.permissions import PERMISSIONS, TOPIC_PERMISSIONS
from leveret.mgmt_ui.api.problems import bad_request, not_found
from leveret.mgmt_ui.operations.access import user_delete, user_put
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.ports.definitions import UserDefinition


__all__ = ["router"]

router = LazyRouter(tags=["users"])

USERS: ObjectKind[UserDefinition] = ObjectKind(lambda user: (user.name,), views.user_row, ("name",))
USER_BODY = body({"password": "a long one", "tags": "monitoring"}, "tags")


@router.api_route("/api/whoami", methods=READ)
async def whoami(caller: CallerHere) -> Response:
    """The caller."""
    is_internal = caller.node.broker.access.user(caller.name) is not None
    return answer({"name": caller.name, "tags": list(caller.tags), "is_internal_user": is_internal})


@router.api_route("/api/users", methods=READ)
async def list_users(caller: AdministratorHere, query: QueryHere) -> Response:
    """Users, for administrators."""
    return await listed(caller.node.broker.access.users(), USERS, query)


@router.api_route("/api/users/without-permissions", methods=READ)
@router.api_route("/api/users/without-permissions/", methods=READ, include_in_schema=False)
async def list_users_without_permissions(caller: AdministratorHere, query: QueryHere) -> Response:
    """Users without permissions in any virtual host."""
    access = caller.node.broker.access
    permitted = {permission.user for permission in access.permissions()}
    found = [user for user in access.users() if user.name not in permitted]
    return await listed(found, USERS, query)


@router.post("/api/users/bulk-delete", openapi_extra=body({"users": ["one", "another"]}, "users"))
async def delete_users(caller: AdministratorHere, request: Request) -> Response:
    """Delete several users."""
    asked = await json_object(request)
    require_fields(asked, "users")
    names = asked["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users is a list of names")
    for name in names:
        if caller.node.broker.access.user(name) is None:
            raise bad_request(f"no_such_user {name}")
    for name in dict.fromkeys(names):
        await caller.perform(user_delete, name=name)
    return done()


@router.api_route("/api/users/{name}", methods=READ)
async def show_user(caller: AdministratorHere, name: Segment) -> Response:
    """One user, with the hash of the password."""
    return answer(views.user_row(_existing(caller, name)))


@router.put("/api/users/{name}", openapi_extra=USER_BODY)
async def put_user(caller: AdministratorHere, request: Request, name: Segment) -> Response:
    """Add a user, or set another's password and tags.

    With neither `password` nor `password_hash` the user cannot log in by password.
    """
    asked = await json_object(request)
    if "tags" not in asked and "administrator" not in asked:
        raise bad_request("tags_not_present")
    if "password" in asked and "password_hash" in asked:
        raise bad_request("both_password_and_password_hash_are_provided")
    is_new = caller.node.broker.access.user(name) is None
    await caller.perform(
        user_put,
        name=name,
        password=text(asked, "password", None),
        password_hash=text(asked, "password_hash", None),
        hashing_algorithm=text(asked, "hashing_algorithm", None),
        tags=tags(asked)
        if "tags" in asked
        else ["administrator"] * (asked["administrator"] is True),
    )
    return done(is_new=is_new)


@router.delete("/api/users/{name}")
async def delete_user(caller: AdministratorHere, name: Segment) -> Response:
    """Delete a user and the user's permissions, and close the user's connections."""
    _existing(caller, name)
    await caller.perform(user_delete, name=name)
    return done()


@router.api_route("/api/users/{name}/permissions", methods=READ)
async def list_permissions_of_user(
    caller: AdministratorHere, query: QueryHere, name: Segment
) -> Response:
    """The permissions of one user, by virtual host."""
    _existing(caller, name)
    return await listed(caller.node.broker.access.permissions(user=name), PERMISSIONS, query)


@router.api_route("/api/users/{name}/topic-permissions", methods=READ)
async def list_topic_permissions_of_user(
    caller: AdministratorHere, query: QueryHere, name: Segment
) -> Response:
    """The topic permissions of one user."""
    _existing(caller, name)
    held = caller.node.broker.access.topic_permissions(user=name)
    return await listed(held, TOPIC_PERMISSIONS, query)


def _existing(caller: Caller, name: str) -> UserDefinition:
    user = caller.node.broker.access.user(name)
    if user is None:
        raise not_found()
    return user
