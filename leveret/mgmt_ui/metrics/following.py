"""Metrics of a node of a cluster that does not lead: it has none but those of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from leveret.mgmt_ui.metrics.exposition import negotiated
from leveret.mgmt_ui.metrics.groups import samples_of
from leveret.mgmt_ui.metrics.own import MEMBERS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from leveret.mgmt_ui.managed import FollowingNode

__all__ = ["FollowingNodeMetrics"]


class FollowingNodeMetrics:
    """ASGI application that answers `/metrics`."""

    def __init__(self, node: FollowingNode) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (see the ASGI specification)."""
        if scope["type"] == "http":
            await (await self._answer(Request(scope)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.url.path != "/metrics":
            return PlainTextResponse("this node follows: it has /metrics only", 404)
        if request.method not in {"GET", "HEAD"}:
            return PlainTextResponse("only GET and HEAD", 405)
        exposition = negotiated(request.headers.get("accept", ""))
        members = await self._node.cluster().members()
        text = "".join(samples_of(MEMBERS, members, exposition)) + exposition.end()
        headers = {"cache-control": "no-cache", "content-type": exposition.media_type}
        return Response(text, headers=headers)
