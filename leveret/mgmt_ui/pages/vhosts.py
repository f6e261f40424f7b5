"""Pages of virtual hosts: list, details, and changes by administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.core.settings.arguments import TYPES
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.listing import ObjectKind, Segment
from leveret.mgmt_ui.api.problems import ApiError, not_found
from leveret.mgmt_ui.objects import message_counts
from leveret.mgmt_ui.operations.access import (
    permission_set,
    vhost_add,
    vhost_delete,
    vhost_protect,
    vhost_set,
    vhost_trace_off,
    vhost_trace_on,
)
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows
from leveret.mgmt_ui.pages.viewing import AdministratorHere, ViewerHere

if TYPE_CHECKING:
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = APIRouter()

COLUMNS = (
    Column("Name", "name"),
    Column("Description", "description"),
    Column("Tags"),
    Column("Default type", "default_queue_type"),
    Column("State"),
    Column("Queues", "queues", numeric=True),
    Column("Connections", "connections", numeric=True),
    Column("Ready", "messages_ready", numeric=True),
    Column("Unacknowledged", "messages_unacknowledged", numeric=True),
    Column("Messages", "messages", numeric=True),
)


@router.get("/vhosts")
async def list_vhosts(request: Request, viewer: ViewerHere) -> Response:
    """Show the virtual hosts that the user may see."""
    return await _list(request, viewer, Form({}), "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    """Return the list page; after an invalid form with its fields and the error."""
    visible = viewer.caller.visible_vhosts()
    rows = {vhost.name: await _row(viewer, vhost) for vhost in visible}
    kind: ObjectKind[Vhost] = ObjectKind(
        lambda vhost: (vhost.name,), lambda vhost: rows[vhost.name], ("name",)
    )
    return page(
        request,
        viewer,
        "vhosts.html.j2",
        status=status,
        listing=await list_rows(request, visible, kind, COLUMNS),
        types=TYPES,
        form=form,
        failure=failure,
    )


async def _row(viewer: Viewer, vhost: Vhost) -> Row:
    clients = viewer.caller.visible_clients()
    await viewer.node.context.queues.refresh()
    return {
        **views.vhost_row(vhost, await message_counts([vhost]), viewer.node.name),
        "queues": len(vhost.queues),
        "exchanges": len(vhost.exchanges),
        "connections": sum(client.vhost is vhost for client in clients),
        "is_protected": vhost.definition.protected_from_deletion,
        "limits": vhost.definition.limits,
    }


@router.get("/vhosts/{name}")
async def show_vhost(request: Request, viewer: ViewerHere, name: Segment) -> Response:
    """Show one virtual host, and the permissions in it."""
    vhost = _visible(viewer, name)
    held = viewer.broker.access.permissions(vhost=name) if viewer.caller.is_administrator else []
    return page(
        request,
        viewer,
        "vhost.html.j2",
        vhost=await _row(viewer, vhost),
        permissions=[views.permission_row(permission) for permission in held],
        types=TYPES,
    )


@router.post("/vhosts")
async def add_vhost(request: Request, viewer: AdministratorHere, form: FormHere) -> Response:
    """Add a virtual host, with all permissions for its creator."""
    name = form.text("name")
    try:
        await viewer.caller.perform(vhost_add, name=name, **_described(form))
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        user = viewer.caller.name
        if viewer.broker.access.user(user) is not None:
            await viewer.caller.perform(permission_set, vhost=name, user=user, **everything)
    except ApiError as error:
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"Virtual host {name} was added.")
    return seeing(path("vhosts", name))


def _described(form: Form) -> dict[str, Any]:
    tags = (tag.strip() for tag in form.text("tags").split(","))
    return {
        "description": form.word("description"),
        "tags": [tag for tag in tags if tag],
        "default_queue_type": form.word("default_queue_type") or None,
    }


@router.post("/vhosts/{name}/describe")
async def describe_vhost(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Change the description, tags and queue type."""
    done = f"The settings of virtual host {name} were saved."
    return await _act(viewer, vhost_set, name, done, **_described(form))


@router.post("/vhosts/{name}/trace")
async def trace_vhost(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Turn the firehose on or off."""
    is_on = form.flag("on")
    done = f"Tracing in {name} is {'on' if is_on else 'off'}."
    return await _act(viewer, vhost_trace_on if is_on else vhost_trace_off, name, done)


@router.post("/vhosts/{name}/protect")
async def protect_vhost(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Turn deletion protection on or off."""
    is_on = form.flag("on")
    done = f"Virtual host {name} is {'now' if is_on else 'no longer'} protected from deletion."
    return await _act(viewer, vhost_protect, name, done, protected=is_on)


@router.post("/vhosts/{name}/delete")
async def delete_vhost(viewer: AdministratorHere, _: FormHere, name: Segment) -> Response:
    """Delete a virtual host with its contents."""
    done = f"Virtual host {name} was deleted."
    back = path("vhosts", name)
    return await act(viewer, vhost_delete, name=name, done=done, then="/vhosts", otherwise=back)


async def _act(
    viewer: Viewer, operation: AnyCommand, name: str, done: str, **more: Any
) -> Response:
    then = path("vhosts", name)
    return await act(viewer, operation, name=name, done=done, then=then, **more)


def _visible(viewer: Viewer, name: str) -> Vhost:
    """Return a virtual host that the user may see. Raises ApiError 404."""
    for vhost in viewer.caller.visible_vhosts():
        if vhost.name == name:
            return vhost
    raise not_found("vhost_not_found")
