"""GET /overview: the node at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from leveret.mgmt_ui.api.answers import message_counts
from leveret.mgmt_ui.api.overview import object_totals
from leveret.mgmt_ui.pages import formats
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = APIRouter()

BACKLOG = {
    "messages": "Messages",
    "messages_ready": "Ready",
    "messages_unacknowledged": "Unacknowledged",
}
THINGS = {
    "connections": "Connections",
    "channels": "Channels",
    "consumers": "Consumers",
    "exchanges": "Exchanges",
    "queues": "Queues",
}


@router.get("/overview")
async def overview(request: Request, viewer: ViewerHere) -> Response:
    """The page."""
    return page(
        request,
        viewer,
        "overview.html.j2",
        figures=await _figures(viewer),
        backlog=BACKLOG,
        things=THINGS,
        alarms=[low.value for low in viewer.broker.alarms.low],
    )


@router.get("/live/overview")
async def live(request: Request, viewer: ViewerHere) -> Response:
    """Its figures, as they change."""

    async def frame() -> Frame:
        return {"figures": await _figures(viewer), "points": {}}

    return live_stream(request, viewer, frame)


async def _figures(viewer: Viewer) -> dict[str, str]:
    counts = await message_counts(viewer.caller.visible_vhosts())
    counts |= await object_totals(viewer.caller)
    return {name: formats.count(number) for name, number in counts.items()}
