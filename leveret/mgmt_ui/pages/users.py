"""Pages of users, for administrators: list, and details with permissions and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.access.limits import USER_LIMITS
from leveret.core.admin.commands import AnyCommand
from leveret.mgmt_ui.api.listing import ObjectKind, Segment
from leveret.mgmt_ui.api.problems import ApiError, not_found
from leveret.mgmt_ui.operations.access import (
    permission_clear,
    permission_list,
    permission_set,
    user_add,
    user_delete,
    user_list,
    user_set_password,
    user_set_tags,
)
from leveret.mgmt_ui.operations.rules import (
    topic_permission_clear,
    topic_permission_list,
    topic_permission_set,
)
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, open_names, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows
from leveret.mgmt_ui.pages.viewing import AdministratorHere, ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

COLUMNS = (
    Column("Name", "name"),
    Column("Tags"),
    Column("Virtual hosts", minor=True),
    Column("Connections", "connections", numeric=True),
    Column("Limits", minor=True),
)
TAGS = ("administrator", "monitoring", "policymaker", "management")

router = LazyRouter(prefix="/users")


@router.get("")
async def list_users(request: Request, viewer: AdministratorHere) -> Response:
    """Show all users."""
    return await _list(request, viewer, Form({}), "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    """Return the list page; after an invalid form with its fields, without the password."""
    users = await viewer.caller.perform(user_list)
    permissions = await viewer.caller.perform(permission_list, user=None, vhost=None)
    entered: dict[str, list[str]] = {}
    for permission in permissions:
        entered.setdefault(permission["user"], []).append(permission["vhost"])
    clients = [client.user for client in viewer.broker.connections]
    kind: ObjectKind[Row] = ObjectKind(
        lambda user: (user["name"],),
        lambda user: {
            **user,
            "vhosts": sorted(entered.get(user["name"], [])),
            "connections": clients.count(user["name"]),
        },
        ("name",),
    )
    return page(
        request,
        viewer,
        "users.html.j2",
        status=status,
        listing=await list_rows(request, users, kind, COLUMNS),
        tags=TAGS,
        form=form,
        failure=failure,
    )


@router.get("/{name}")
async def show_user(request: Request, viewer: AdministratorHere, name: Segment) -> Response:
    """Show one user: tags, permissions, limits."""
    user = await _existing(viewer, name)
    return page(
        request,
        viewer,
        "user.html.j2",
        user=user,
        tags=TAGS,
        vhosts=open_names(viewer),
        limits=USER_LIMITS,
        permissions=await viewer.caller.perform(permission_list, user=name, vhost=None),
        topics=await viewer.caller.perform(topic_permission_list, user=name, vhost=None),
    )


async def _existing(viewer: Viewer, name: str) -> Row:
    """Return a user. Raises ApiError 404."""
    users: list[Row] = await viewer.caller.perform(user_list)
    for user in users:
        if user["name"] == name:
            return user
    raise not_found()


# -- what administrators do


@router.post("")
async def add_user(request: Request, viewer: AdministratorHere, form: FormHere) -> Response:
    """Add a user, whose permissions are set on the user's page."""
    name = form.text("name")
    try:
        await viewer.caller.perform(
            user_add,
            name=name,
            password=form.text("password"),
            password_hash=None,
            hashing_algorithm=None,
            tags=_tags(form),
        )
    except ApiError as error:
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"User {name} was added. Set permissions to give access to a virtual host.")
    return seeing(path("users", name))


def _tags(form: Form) -> list[str]:
    return [tag.strip() for tag in form.text("tags").split(",") if tag.strip()]


@router.post("/{name}/password")
async def set_password(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Set a user's password; the user's sessions end."""
    return await _act(
        viewer,
        user_set_password,
        name,
        f"The password of user {name} was changed.",
        name=name,
        password=form.text("password"),
        password_hash=None,
        hashing_algorithm=None,
    )


@router.post("/{name}/tags")
async def set_tags(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Set a user's tags."""
    done = f"The tags of user {name} were changed."
    return await _act(viewer, user_set_tags, name, done, name=name, tags=_tags(form))


@router.post("/{name}/delete")
async def delete_user(viewer: AdministratorHere, _: FormHere, name: Segment) -> Response:
    """Delete a user with permissions; the user's connections are closed."""
    done, back = f"User {name} was deleted.", path("users", name)
    return await act(viewer, user_delete, name=name, done=done, then="/users", otherwise=back)


@router.post("/{name}/permissions")
async def set_permission(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Set a user's permissions in a virtual host."""
    vhost = form.text("vhost", "/")
    patterns = {kind: form.text(kind) for kind in ("configure", "write", "read")}
    done = f"The permissions of user {name} in {vhost} were set."
    return await _act(viewer, permission_set, name, done, user=name, vhost=vhost, **patterns)


@router.post("/{name}/permissions/clear")
async def clear_permission(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Remove a user's permissions in a virtual host."""
    vhost = form.text("vhost")
    done = f"The permissions of user {name} in {vhost} were cleared."
    return await _act(viewer, permission_clear, name, done, user=name, vhost=vhost)


@router.post("/{name}/topic-permissions")
async def set_topic_permission(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Restrict a user to some routing keys of a topic exchange."""
    vhost, exchange = form.text("vhost", "/"), form.text("exchange")
    patterns = {kind: form.text(kind) for kind in ("write", "read")}
    return await _act(
        viewer,
        topic_permission_set,
        name,
        f"User {name} has topic permissions for {exchange} in {vhost}.",
        user=name,
        vhost=vhost,
        exchange=exchange,
        **patterns,
    )


@router.post("/{name}/topic-permissions/clear")
async def clear_topic_permission(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Remove a user's restriction to routing keys."""
    vhost, exchange = form.text("vhost"), form.text("exchange")
    return await _act(
        viewer,
        topic_permission_clear,
        name,
        f"User {name} has no topic permissions for {exchange} in {vhost}.",
        user=name,
        vhost=vhost,
        exchange=exchange,
    )


async def _act(
    viewer: Viewer, operation: AnyCommand, shown: str, done: str, **parameters: Any
) -> Response:
    """Perform an operation for administrators, and redirect to a user's page."""
    return await act(viewer, operation, done=done, then=path("users", shown), **parameters)
