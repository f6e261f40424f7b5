"""The web UI as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import MutableHeaders

from leveret.mgmt_ui.pages import (
    alerts,
    audit,
    changing,
    connections,
    consumer_groups,
    dead_letters,
    dedup,
    definitions,
    encryption,
    exchanges,
    limits,
    messages,
    nodes,
    overview,
    policies,
    problems,
    queues,
    resending,
    retries,
    schedules,
    signing_in,
    topics,
    usage,
    users,
    vhosts,
)
from leveret.mgmt_ui.pages.assets import PREFIX, Assets
from leveret.mgmt_ui.pages.live import LiveStreams
from leveret.mgmt_ui.pages.rendering import Renderer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.mgmt_ui.sessions import WebSessions

__all__ = ["SecurityHeaders", "create_pages"]

ROUTERS = (
    signing_in.router,
    overview.router,
    connections.router,
    consumer_groups.router,
    topics.router,
    exchanges.router,
    messages.router,
    resending.router,
    queues.router,
    changing.router,
    schedules.router,
    retries.router,
    dead_letters.router,
    dedup.router,
    users.router,
    limits.router,
    policies.router,
    definitions.router,
    encryption.router,
    nodes.router,
    alerts.router,
    audit.router,
    usage.router,
    vhosts.router,
)


def create_pages(node: ManagedNode, sessions: WebSessions) -> ASGIApp:
    """Return the web UI of one node."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.node = node
    app.state.sessions = sessions
    app.state.live = LiveStreams()
    assets = Assets()
    app.state.renderer = Renderer(assets)

    @app.get("/")
    async def start() -> Response:
        """Redirect to the first page."""
        return RedirectResponse("/overview", 303)

    @app.api_route(PREFIX + "{digest}/{name:path}", methods=["GET", "HEAD"])
    async def asset(request: Request, digest: str, name: str) -> Response:
        """Serve a file that pages need."""
        return assets.answer(request, digest, name)

    for router in ROUTERS:
        app.router.routes += router.routes  # see `leveret.mgmt_ui.web`
    problems.add_handlers(app)
    return SecurityHeaders(app)


HEADERS = {
    # No inline script or style, nothing of another host, no frame: what a stranger's text could
    # smuggle into a page does nothing.
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with less, forms would not say where they come from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds security headers to every answer of an application, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with the added headers (see the ASGI specification)."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                # Pages hold what only their viewer may see; files say for themselves.
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)
