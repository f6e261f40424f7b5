"""The management port: open from the start, answered as soon as the web application is loaded.

    open ──► serve: load in a thread, then answer ──► close

A node is ready before its management is. Requests that come in between wait in the socket's backlog
for the second or two that the libraries and the routes take to load.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from typing import TYPE_CHECKING, Any

from leveret.errors import StorageError
from leveret.mgmt_ui.operations.runtime import Listener
from leveret.ports.callbacks import do_nothing

if TYPE_CHECKING:
    import ssl

    from starlette.types import ASGIApp

    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.mgmt_ui.web import WebServer

__all__ = ["ManagementServer", "MetricsServer", "SecureManagementServer", "load_forwarded"]

BACKLOG = 128  # connections that wait while the application is loaded


class ManagementServer:
    """Listens from `open` to `close`; `serve` runs as a task of the node."""

    _protocol = "http"
    _setting = "http_port"
    _maker = "management_server"  # of leveret.mgmt_ui.web

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._web: WebServer | None = None
        self._closing = False
        self._done = asyncio.Event()
        self._done.set()

    async def open(self, host: str, port: int) -> Listener:
        """Bind the port; 0 takes a free one. Raises StorageError if that fails."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in found:
                port = port or self._port
                listening = socket.create_server((address[0], port), family=family, backlog=BACKLOG)
                listening.setblocking(False)
                self._sockets.append(listening)
        except OSError as error:
            self._close_sockets()
            raise StorageError(
                f"cannot listen on {host}:{port} ({self._setting}): {error}"
            ) from error
        return Listener(self._protocol, self._sockets[0].getsockname()[0], self._port)

    @property
    def _port(self) -> int:
        """Port of the first socket, for the others; 0 before there is one."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    async def serve(self, node: ManagedNode) -> None:
        """Load the application, then answer requests until `close`. Call after `open`."""
        if self._closing:
            return
        self._done.clear()
        try:
            self._web = await asyncio.to_thread(_load, self._maker, node)
            self._web.should_exit = self._closing
            self._web.config.ssl = self._tls
            await self._web.serve(self._sockets)
        finally:
            self._close_sockets()
            self._done.set()

    async def close(self) -> None:
        """Finish the answers in progress, then close the connections."""
        self._closing = True
        if self._web is not None:
            await self._web.stop(self._done)
        await self._done.wait()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()


class SecureManagementServer(ManagementServer):
    """Management server over TLS."""

    _protocol = "https"
    _setting = "https_port"


class MetricsServer(ManagementServer):
    """Server of the metrics' own port, without authentication."""

    _protocol = "http/prometheus"
    _setting = "prometheus_port"
    _maker = "metrics_server"


def load_forwarded(node: ManagedNode) -> ASGIApp:
    """Build the application for requests that other nodes forward; it takes long, as a server's."""
    app: ASGIApp = _web().create_forwarded_app(node)
    return app


def _load(maker: str, node: ManagedNode) -> WebServer:
    """Import FastAPI, pydantic and uvicorn, and build the application."""
    server: WebServer = getattr(_web(), maker)(node)
    return server


def _web() -> Any:
    """Import the module of the web application."""
    web = importlib.import_module("leveret.mgmt_ui.web")
    # The first streamed answer makes anyio import its part for asyncio, 10 ms of the node's event
    # loop, unless another loop has made it do so before.
    asyncio.run(importlib.import_module("starlette.concurrency").run_in_threadpool(do_nothing))
    return web
