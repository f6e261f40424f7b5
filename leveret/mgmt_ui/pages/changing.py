"""Altering a queue in use: its arguments, its name, and its aliases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Response

from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.live import (
    require_to_change,
    require_to_configure,
    require_to_rename,
)
from leveret.mgmt_ui.api.problems import ApiError, not_found, queue_not_found
from leveret.mgmt_ui.operations.topology import queue_alias_remove, queue_change, queue_rename
from leveret.mgmt_ui.pages.formats import as_json, path
from leveret.mgmt_ui.pages.forms import FormHere, act, arguments_of, json_object_of, seeing
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.forms import Form
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = LazyRouter(prefix="/queues/{vhost}/{name}")


@router.post("/rename")
async def rename(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Rename the queue; the old name becomes an alias."""
    await _require(viewer, vhost, name)
    new_name = form.text("new_name")
    await require_to_rename(viewer.caller, vhost, name, new_name)
    return await act(
        viewer,
        queue_rename,
        vhost=vhost,
        name=name,
        new_name=new_name,
        done=f"Queue {name} in {vhost} was renamed to {new_name}.",
        then=path("queues", vhost, new_name),
        otherwise=path("queues", vhost, name),
    )


@router.post("/aliases/delete")
async def forget_name(
    viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment
) -> Response:
    """Remove an alias."""
    await _require(viewer, vhost, name)
    alias = form.text("alias")
    if alias not in viewer.caller.vhost(vhost).queues[name].definition.aliases:
        raise not_found("alias_not_found")
    return await act(
        viewer,
        queue_alias_remove,
        vhost=vhost,
        alias=alias,
        done=f"The alias {alias} of queue {name} was removed.",
        then=path("queues", vhost, name),
    )


@router.post("/arguments")
async def change(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Change the arguments that the form has changed."""
    await _require(viewer, vhost, name)
    here = path("queues", vhost, name)
    try:
        changes = _changes(form)
    except ApiError as error:
        viewer.session.tell(error.reason, failed=True)
        return seeing(here)
    await require_to_change(viewer.caller, vhost, name, changes)
    return await act(
        viewer,
        queue_change,
        vhost=vhost,
        name=name,
        arguments=changes,
        done=f"The arguments of queue {name} were changed.",
        then=here,
    )


def _changes(form: Form) -> dict[str, Any]:
    """Return the changed arguments, null for removed ones; concurrent changes are kept."""
    shown, wanted = json_object_of(form, "shown"), arguments_of(form)
    changes: dict[str, Any] = {
        name: value
        for name, value in wanted.items()
        if name not in shown or as_json(shown[name]) != as_json(value)
    }
    return changes | dict.fromkeys(shown.keys() - wanted.keys())


async def _require(viewer: Viewer, vhost: str, name: str) -> None:
    """Raise ApiError 401 or 404 unless the user may configure the queue."""
    await require_to_configure(viewer.caller, vhost, name)
    host = viewer.caller.vhost(vhost)
    if name not in host.queues:
        raise queue_not_found(host, name)
