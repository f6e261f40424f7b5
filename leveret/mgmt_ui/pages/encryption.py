"""Encryption at rest: the keys of virtual hosts, for administrators.

No key is shown, only its id. The master key is changed on the node's machine, where its file is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.mgmt_ui.api.encryption import VERBS
from leveret.mgmt_ui.api.problems import ApiError, not_found
from leveret.mgmt_ui.operations.encryption import encryption_status
from leveret.mgmt_ui.pages.forms import FormHere, act
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import AdministratorHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

DONE = {
    "enable": "New messages in {} are encrypted from now on.",
    "disable": "New messages in {} are stored unencrypted from now on; older ones keep their keys.",
    "rotate": "New messages in {} are encrypted with a new data key from now on.",
}

router = LazyRouter(prefix="/encryption")


@router.get("")
async def list_keys(request: Request, viewer: AdministratorHere) -> Response:
    """Show the virtual hosts with their keys, and the number of segments that need each."""
    rows, failure = await _rows(viewer)
    vhosts = sorted({row["vhost"] for row in rows})
    return page(
        request,
        viewer,
        "encryption.html.j2",
        vhosts=[
            {"name": name, "keys": keys, "is_on": any(key["state"] == "active" for key in keys)}
            for name in vhosts
            for keys in [[row for row in rows if row["vhost"] == name]]
        ],
        failure=failure,
    )


async def _rows(viewer: Viewer) -> tuple[list[Row], str]:
    """Return the keys, or why they cannot be listed."""
    if viewer.node.context.encryption is None:  # of a node that stores nothing
        return [], ""
    try:
        return await viewer.caller.perform(encryption_status, vhost=None), ""
    except ApiError as error:
        return [], error.reason


@router.post("/{verb}")
async def change(viewer: AdministratorHere, form: FormHere, verb: str) -> Response:
    """Enable or disable encryption, or rotate the key."""
    if verb not in VERBS:
        raise not_found()
    vhost = form.text("vhost")
    done = DONE[verb].format(vhost)
    return await act(viewer, VERBS[verb], vhost=vhost, done=done, then="/encryption")
