"""Live figures of a page, as server-sent events.

    event: figures
    data: {"figures": {"messages_ready": "1 234"}, "points": {"rates": [1700000000.0, 5, 4.8]}}

The script puts each figure into the elements with that `data-figure`, and appends each point to the
chart of that name. One stream belongs to one open page. It ends before the server would cut it off,
and the browser reconnects by itself, with its session.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypedDict

from fastapi import Response
from fastapi.responses import StreamingResponse

from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from fastapi import Request

    from leveret.mgmt_ui.pages.viewing import Viewer
    from leveret.mgmt_ui.sessions import WebSession

__all__ = ["Frame", "LiveStreams", "live_stream"]

INTERVAL_SECONDS = 5.0  # the statistics' own
STREAM_SECONDS_MAX = 45.0  # below web.ANSWER_SECONDS_MAX
CHECK_SECONDS = 0.5  # until a stopping node is noticed; a fraction of its patience
STREAMS_MAX = 100  # of the server's connections; the rest are for pages and the API
STREAMS_PER_SESSION_MAX = 8  # tabs of one browser


class Frame(TypedDict):
    """New values: texts by figure, and points (seconds since 1970, then values) by chart."""

    figures: dict[str, str]
    points: dict[str, list[float | None]]


class LiveStreams:
    """Open streams of a node."""

    def __init__(self) -> None:
        self._open: list[WebSession] = []

    def admits(self, session: WebSession) -> bool:
        """Whether one more stream may be opened."""
        own = sum(held is session for held in self._open)
        return len(self._open) < STREAMS_MAX and own < STREAMS_PER_SESSION_MAX

    def opened(self, session: WebSession) -> None:
        """Add an open stream of a session."""
        self._open.append(session)

    def closed(self, session: WebSession) -> None:
        """Remove a stream of a session."""
        self._open.remove(session)


def live_stream(
    request: Request, viewer: Viewer, frame: Callable[[], Awaitable[Frame]]
) -> Response:
    """Return the stream of a page: the results of `frame`, now and every few seconds.

    An ApiError of `frame` ends the stream; the browser reconnects, and gets the error.
    """
    streams: LiveStreams = request.app.state.live
    if not streams.admits(viewer.session):
        return Response(status_code=204)  # a browser does not reconnect then
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    events = _events(streams, viewer, frame)
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


async def _events(
    streams: LiveStreams, viewer: Viewer, frame: Callable[[], Awaitable[Frame]]
) -> AsyncIterator[str]:
    streams.opened(viewer.session)
    try:
        ends = time.monotonic() + STREAM_SECONDS_MAX
        yield "retry: 1000\n\n"
        while time.monotonic() < ends:
            try:
                figures = await frame()
            except ApiError:  # the object of the page is gone
                return
            yield f"event: figures\ndata: {json.dumps(figures)}\n\n"
            if not await _pause(viewer):
                return
    finally:
        streams.closed(viewer.session)


async def _pause(viewer: Viewer) -> bool:
    """Wait for the next figures; return False if the node stops."""
    for _ in range(round(INTERVAL_SECONDS / CHECK_SECONDS)):
        await asyncio.sleep(CHECK_SECONDS)
        if not viewer.node.is_serving():
            return False
    return True
