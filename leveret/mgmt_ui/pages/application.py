"""The web UI as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from leveret.mgmt_ui.pages import (
    alerts,
    audit,
    changing,
    connections,
    dead_letters,
    dedup,
    definitions,
    encryption,
    exchanges,
    limits,
    messages,
    overview,
    policies,
    problems,
    queues,
    resending,
    retries,
    schedules,
    signing_in,
    usage,
    users,
    vhosts,
)
from leveret.mgmt_ui.pages.assets import PREFIX, Assets
from leveret.mgmt_ui.pages.live import LiveStreams
from leveret.mgmt_ui.pages.rendering import Renderer
from leveret.mgmt_ui.pages.security import SecurityHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.mgmt_ui.sessions import WebSessions

__all__ = ["create_pages"]

ROUTERS = (
    signing_in.router,
    overview.router,
    connections.router,
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
    alerts.router,
    audit.router,
    usage.router,
    vhosts.router,
)


def create_pages(node: ManagedNode, sessions: WebSessions) -> ASGIApp:
    """Return the web UI of one node. Compiles templates, for some tenths of a second."""
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
