"""Page of shovels: their states, and a form to add one. Policymakers add, restart and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from leveret.features.shovels.commands import shovel_delete, shovel_restart, shovel_status
from leveret.features.shovels.parameters import COMPONENT, AckMode
from leveret.mgmt_ui.api.parameters import require_direct_vhosts
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.operations.rules import parameter_set
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, open_names, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

TEXTS = ("src-queue", "src-exchange", "src-exchange-key")
TEXTS_OF_DESTINATION = ("dest-queue", "dest-exchange", "dest-exchange-key")
NUMBERS = ("src-prefetch-count", "reconnect-delay")

router = APIRouter(prefix="/shovels")


@router.get("")
async def list_shovels(request: Request, viewer: ViewerHere) -> Response:
    """Show the shovels of the virtual hosts that the user may list."""
    return await _list(request, viewer, Form({}), "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    names = open_names(viewer)
    rows: list[Row] = []
    if viewer.node.context.shovels is not None:  # of a running node
        rows = [row for row in await viewer.caller.perform(shovel_status) if row["vhost"] in names]
    return page(
        request,
        viewer,
        "shovels.html.j2",
        status=status,
        shovels=rows,
        vhosts=names,
        ack_modes=list(AckMode),
        may_set=viewer.caller.is_policymaker,
        form=form,
        failure=failure,
    )


@router.post("")
async def set_shovel(request: Request, viewer: ViewerHere, form: FormHere) -> Response:
    """Add or replace a shovel; an invalid form is shown again."""
    vhost, name = form.text("vhost", "/"), form.text("name")
    _require(viewer, vhost)
    value = _value(form)
    try:
        require_direct_vhosts(viewer.caller, value)
        await viewer.caller.perform(
            parameter_set, vhost=vhost, component=COMPONENT, name=name, value=value
        )
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"Shovel {name} in {vhost} was saved.")
    return seeing("/shovels")


def _value(form: Form) -> dict[str, Any]:
    """Return the shovel of a form; what is no number there is refused as it is."""
    value: dict[str, Any] = {
        key: form.text(key) for key in (*TEXTS, *TEXTS_OF_DESTINATION) if form.text(key)
    }
    for key in ("src-uri", "dest-uri"):
        uris = form.word(key).split()
        value[key] = uris[0] if len(uris) == 1 else uris
    for key in (*NUMBERS, "src-delete-after"):
        word = form.word(key)
        if word:
            value[key] = int(word) if word.isascii() and word.isdigit() else word
    value["ack-mode"] = form.word("ack-mode", AckMode.ON_CONFIRM)
    if form.flag("dest-add-forward-headers"):
        value["dest-add-forward-headers"] = True
    return value


@router.post("/restart")
async def restart_shovel(viewer: ViewerHere, form: FormHere) -> Response:
    """Have a shovel connect anew."""
    vhost, name = form.text("vhost"), form.text("name")
    _require(viewer, vhost)
    done = f"Shovel {name} in {vhost} was restarted."
    return await act(viewer, shovel_restart, vhost=vhost, name=name, done=done, then="/shovels")


@router.post("/delete")
async def delete_shovel(viewer: ViewerHere, form: FormHere) -> Response:
    """Delete a shovel."""
    vhost, name = form.text("vhost"), form.text("name")
    _require(viewer, vhost)
    done = f"Shovel {name} in {vhost} was deleted."
    return await act(viewer, shovel_delete, vhost=vhost, name=name, done=done, then="/shovels")


def _require(viewer: Viewer, vhost: str) -> None:
    """Raise ApiError 401 or 404 unless the user may set shovels there."""
    viewer.caller.require_policymaker(vhost)
    viewer.caller.vhost(vhost)
