"""/api/vhosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.answers import READ, QueryHere, listed, message_counts
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import Kind

if TYPE_CHECKING:
    from leveret.core.vhost import Vhost


__all__ = ["router"]

router = APIRouter()


@router.api_route("/api/vhosts", methods=READ)
async def listvhosts_of(caller: CallerHere, query: QueryHere) -> Response:
    """The virtual hosts that the caller may know of."""
    visible = caller.visible_vhosts()
    counts = {vhost.name: await message_counts([vhost]) for vhost in visible}
    kind: Kind[Vhost] = Kind(
        lambda vhost: (vhost.name,),
        lambda vhost: views.vhost_row(vhost, counts[vhost.name], caller.node.name),
        ("name",),
    )
    return await listed(visible, kind, query)
