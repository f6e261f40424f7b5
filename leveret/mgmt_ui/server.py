"""The management port: bound when the node opens it, answered once its application is loaded.

    open ──► load ──► serve: answer requests ──► close

The node serves AMQP while the application loads. Requests that come in before `serve` wait in the
socket's backlog.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.mgmt_ui.operations.runtime import Listener
from leveret.ports.callbacks import do_nothing
from leveret.ports.listening import listen, listening_error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from leveret.core.clients import Endpoints
    from leveret.mgmt_ui.managed import FollowingNode, ManagedNode
    from leveret.mgmt_ui.web import WebServer

__all__ = [
    "FollowingMetricsServer",
    "ManagementServer",
    "MetricsServer",
    "SecureManagementServer",
]

logger = logging.getLogger(__name__)

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

    async def open(self, host: str, port: int, given: Sequence[socket.socket] = ()) -> Listener:
        """Bind the port; 0 takes a free one. Raises LeveretError if that fails.

        `given` are the listening sockets of the port, if it is bound already.
        """
        try:
            self._sockets += given or await listen(host, port, BACKLOG)
        except OSError as error:
            raise listening_error(self._protocol, host, port, error) from None
        return Listener(self._protocol, *self._sockets[0].getsockname()[:2])

    async def load(self, node: ManagedNode | FollowingNode) -> None:
        """Import and build the web application, in a thread: some tenths of a second of CPU."""
        self._web = await asyncio.to_thread(_load, self._maker, node)
        self._web.config.ssl = self._tls

    async def serve(self) -> None:
        """Answer requests until `close`. Call after `open` and `load`."""
        assert self._web is not None, "loaded"
        if self._closing:
            self._web.answering.set()  # whoever waits for it need not go on
            return
        self._done.clear()
        try:
            await self._web.serve(self._sockets)
        finally:
            self._close_sockets()
            self._web.answering.set()
            self._done.set()

    async def answering(self) -> None:
        """Wait until `serve` answers requests. Raises StorageError if it has failed."""
        assert self._web is not None, "loaded"
        await self._web.answering.wait()
        if self._done.is_set() and not self._closing:
            raise StorageError(f"the port of {self._setting} does not answer: the log says why")

    @property
    def protocol(self) -> str:
        """Protocol of the port, as RabbitMQ calls it."""
        return self._protocol

    @property
    def is_answering(self) -> bool:
        """Whether requests are answered."""
        return self._web is not None and not self._closing and self._web.answering.is_set()

    async def take(self, accepted: socket.socket, there: Endpoints) -> None:
        """Answer a client that another node has accepted, whose ends there are given."""
        try:
            if self._web is None or not self.is_answering:
                raise ConnectionAbortedError("nothing is answered now")
            await self._web.take(accepted, there)
        except OSError as error:
            logger.info("the connection of %s has ended: %s", there.peer_host, error)
            accepted.close()

    def cut(self) -> None:
        """End all connections at once, and soon accept no other; `close` is still to be called."""
        self._closing = True
        if self._web is not None:
            self._web.cut()

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


class FollowingMetricsServer(MetricsServer):
    """Server of the metrics' own port on a node of a cluster that does not lead."""

    _maker = "following_server"


def _load(maker: str, node: ManagedNode | FollowingNode) -> WebServer:
    """Import FastAPI, pydantic and uvicorn, and build the application."""
    web = importlib.import_module("leveret.mgmt_ui.web")
    # The first streamed answer makes anyio import its part for asyncio, 10 ms of the node's event
    # loop, unless another loop has made it do so before.
    asyncio.run(importlib.import_module("starlette.concurrency").run_in_threadpool(do_nothing))
    server: WebServer = getattr(web, maker)(node)
    return server
