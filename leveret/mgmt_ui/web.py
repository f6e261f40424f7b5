"""The web application and its server: the only module that knows uvicorn.

Importing this costs some hundred milliseconds. `leveret.mgmt_ui.server` does it in a worker thread
while the node already serves AMQP.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from leveret.mgmt_ui.api import (
    alerts,
    audit,
    batches,
    bindings,
    channels,
    cluster,
    connections,
    consumer_groups,
    dead_letters,
    definitions,
    documents,
    encryption,
    exchanges,
    features,
    health,
    leases,
    limits,
    live,
    message_trace,
    messages,
    once,
    overview,
    parameters,
    permissions,
    policies,
    publish_get,
    pull,
    queues,
    retries,
    schedules,
    sign_in,
    topic_objects,
    topics,
    usage,
    users,
    vhosts,
)
from leveret.mgmt_ui.api.listing import PRIVATE
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.hosts import BodyBudget, KnownHosts
from leveret.mgmt_ui.http_connections import CONNECTION, HttpConnection, HttpConnections
from leveret.mgmt_ui.metrics import endpoints
from leveret.mgmt_ui.metrics.following import FollowingNodeMetrics
from leveret.mgmt_ui.pages.application import create_pages
from leveret.mgmt_ui.sessions import WebSessions

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

    from fastapi import APIRouter
    from starlette.types import ASGIApp, Receive, Scope, Send

    from leveret.core.clients import Endpoints
    from leveret.mgmt_ui.managed import FollowingNode, ManagedNode

__all__ = [
    "WebServer",
    "create_app",
    "create_metrics_app",
    "following_server",
    "management_server",
    "metrics_server",
]

HTTP_CONNECTIONS_MAX = 256  # dashboards, scrapers and people; the rest of the files are AMQP's
SCRAPERS_MAX = 16  # on their port without authentication: each scrape scans all objects
STOP_SECONDS_MAX = 1  # for answers under way when the node stops
API = (
    topics,  # routes are tried in turn: those that read as fast as they can ask most often
    batches,
    leases,
    documents,
    overview,
    cluster,
    sign_in,
    definitions,
    features,
    channels,
    vhosts,
    queues,
    exchanges,
    bindings,
    connections,
    consumer_groups,
    topic_objects,
    users,
    permissions,
    limits,
    policies,
    parameters,
    health,
    live,
    messages,
    message_trace,
    publish_get,
    pull,
    schedules,
    retries,
    dead_letters,
    once,
    encryption,
    alerts,
    audit,
    usage,
)
STATUS_ERRORS = {404: "not_found", 405: "method_not_allowed"}
API_ROOMS = (["api"], ["metrics"])  # first segments of paths that are for machines


def create_app(node: ManagedNode) -> ASGIApp:
    """Return the ASGI application of one node: HTTP API, metrics and web UI."""
    sessions = _sessions(node)
    # Scrapers' first, for the same reason.
    routers = [endpoints.guarded, *(part.router for part in API)]
    api = _application(node, sessions, routers)
    app = BodyBudget(EncodedPaths(Parted(api, create_pages(node, sessions))))
    return KnownHosts(app, node.configuration.http_allowed_hosts)


def create_metrics_app(node: ManagedNode) -> ASGIApp:
    """Return the ASGI application of the metrics' own port."""
    app = _application(node, _sessions(node), (endpoints.public,))
    return KnownHosts(app, node.configuration.http_allowed_hosts)


def _sessions(node: ManagedNode) -> WebSessions:
    return WebSessions(node.broker.access, node.broker.timers.wall_ms)


def _application(node: ManagedNode, sessions: WebSessions, routers: Iterable[APIRouter]) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.node = node
    app.state.sessions = sessions
    app.state.range_slices = asyncio.Lock()  # of all who read by ranges, one works at a time
    for router in routers:
        # Not `include_router`: what that makes of each route, it makes at the first request, and
        # holds the event loop for a tenth of a second.
        app.router.routes += router.routes
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _unroutable)
    app.add_exception_handler(Exception, _broken)
    return app


class Parted:
    """Routes requests to the API and metrics or to the web UI, which also answer errors."""

    def __init__(self, api: ASGIApp, pages: ASGIApp) -> None:
        self._api = api
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the API or the web UI (see the ASGI specification)."""
        room = scope.get("path", "").split("/")[1:2]
        await (self._api if room in API_ROOMS else self._pages)(scope, receive, send)


def management_server(node: ManagedNode) -> WebServer:
    """Return the server of the management port."""
    return WebServer(create_app(node), HTTP_CONNECTIONS_MAX)


def metrics_server(node: ManagedNode) -> WebServer:
    """Return the server of the metrics' own port."""
    return WebServer(create_metrics_app(node), SCRAPERS_MAX)


def following_server(node: FollowingNode) -> WebServer:
    """Return the server of the metrics' own port on a node that does not lead."""
    app = KnownHosts(FollowingNodeMetrics(node), node.allowed_hosts)
    return WebServer(app, SCRAPERS_MAX)


class EncodedPaths:
    """Lets routes match the path as sent: `/api/queues/%2F` names the virtual host `/`.

    One slash at the end is ignored, as in RabbitMQ.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with the raw path (see the ASGI specification)."""
        if scope["type"] == "http":
            path = scope["raw_path"].decode("latin-1")
            scope = {**scope, "path": path.removesuffix("/") or "/"}
        await self._app(scope, receive, send)


def _error(status: int, error: str, reason: str, headers: dict[str, str] | None) -> Response:
    told = {**PRIVATE, **(headers or {})}
    return JSONResponse({"error": error, "reason": reason}, status, told)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(error.status, error.error, error.reason, error.headers)


async def _unroutable(_: Request, error: Exception) -> Response:
    """Answer an unknown path (404) or method (405)."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    reason = "Object Not Found" if status == 404 else error.detail
    headers = dict(error.headers) if error.headers else None
    return _error(status, STATUS_ERRORS.get(status, "bad_request"), reason, headers)


async def _broken(_: Request, error: Exception) -> Response:  # noqa: ARG001  # the server logs it
    return _error(500, "internal_server_error", "a mistake of the node's; its log has it", None)


class UvicornConnection(HttpConnection):
    """Connection around uvicorn's protocol; it takes the arguments that uvicorn passes."""

    def __init__(self, config: uvicorn.Config, there: Endpoints | None = None, **rest: Any) -> None:
        assert isinstance(config.app, HttpConnections)
        rest["app_state"] = {**rest["app_state"], CONNECTION: self}
        super().__init__(config.app, H11Protocol(config=config, **rest), there)


class WebServer(uvicorn.Server):
    """Uvicorn server that leaves signals, logging and the event loop to the node.

    `answering` is set once it accepts connections.
    """

    def __init__(self, app: ASGIApp, connections_max: int) -> None:
        """Takes tens of milliseconds and needs nothing of the node, so it runs in a thread."""
        self._connections = HttpConnections(app, connections_max)
        configuration = uvicorn.Config(
            self._connections,
            loop="none",
            http=UvicornConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # or any client could pretend to come from loopback
        )
        configuration.load()
        super().__init__(configuration)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections (see uvicorn)."""
        await super().startup(sockets)
        self.answering.set()

    async def take(self, accepted: socket.socket, there: Endpoints) -> None:
        """Answer a client that another node has accepted. Raises OSError, of TLS, too."""
        configuration = self.config
        await asyncio.get_running_loop().connect_accepted_socket(
            partial(
                UvicornConnection,
                configuration,
                there,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            ),
            accepted,
            ssl=configuration.ssl,
        )

    def cut(self) -> None:
        """Close every connection at once, and soon accept no other."""
        self.should_exit = True
        self._connections.cut()

    async def stop(self, served: asyncio.Event) -> None:
        """Stop accepting and await the answers in progress, for a while.

        `served` is set when `serve` has returned.
        """
        self.should_exit = True
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await served.wait()
        except TimeoutError:
            self._connections.cut()
            await served.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the node handles signals."""
        yield
