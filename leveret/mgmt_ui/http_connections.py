"""Connections of one HTTP server: their limit, and time limits for each.

`HttpConnections` is the ASGI application that the server runs around ours; `HttpConnection` is the
asyncio protocol of one connection, around the server's own. Both use only what asyncio and the ASGI
specification document; a request names its connection in the state that the server hands on.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from leveret.mgmt_ui.hosts import refuse
from leveret.ports.authentication import attempt_source

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from leveret.core.clients import Endpoints

__all__ = ["CONNECTION", "NOTE_LOGIN", "HttpConnection", "HttpConnections"]

logger = logging.getLogger(__name__)

REQUEST_SECONDS_MAX = 10.0  # to send a request, from the start or after the last answer
ANSWER_SECONDS_MAX = 60.0  # to make and to take an answer: some megabytes over a slow line
WARNED_SECONDS = 60.0
CONNECTION: Final = "leveret.connection"  # in the state of a request's scope
NOTE_LOGIN: Final = "leveret.note_login"  # in a request's scope: see HttpConnections


class HttpConnections:
    """Runs `app` for each request, and keeps the open connections.

    `connections_max` are answered. Until a request on it has logged in, a connection is a
    stranger's; the application says so by `scope[NOTE_LOGIN]()`. When all places are taken each new
    connection closes an idle stranger's: the oldest one of the address with the most of them. So
    who sends nothing keeps nobody out, wherever it comes from, and behind a proxy, where all have
    one address, nobody who has logged in is closed or counted. If there is none to close, the new
    one gets a 503, or is the next to be closed.
    """

    def __init__(self, app: ASGIApp, connections_max: int) -> None:
        self._app = app
        self._open: dict[HttpConnection, None] = {}
        self._strangers: dict[str, dict[HttpConnection, None]] = {}  # by address, the oldest first
        self._quiet_until = 0.0  # time of the loop until which no more closed ones are logged
        self._answers = 0  # in progress, some of them for clients that are gone
        self.connections_max = connections_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application within the connection's time limits (see the ASGI specification)."""
        connection: HttpConnection = scope["state"][CONNECTION]
        if connection not in self._open:
            return  # its client is gone
        if self._is_stranger(connection) and self._is_full:
            reason = "too many connections to this port are open; try again later"
            further = {"retry-after": "1", "connection": "close"}
            await refuse(send, 503, "service_unavailable", reason, further)
            return
        scope[NOTE_LOGIN] = partial(self._forget_stranger, connection)
        self._answers += 1
        try:
            await self._answer(connection, scope, receive, send)
        finally:
            self._answers -= 1

    async def _answer(
        self, connection: HttpConnection, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def send_noting_end(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.expect_request()

        connection.expect_answer()
        try:
            await self._app(scope, receive, send_noting_end)
        except asyncio.CancelledError:
            if not connection.is_cut:
                raise

    def cut(self) -> None:
        """Close every connection at once, and cancel the answers in progress."""
        for connection in list(self._open):
            connection.cut()

    @property
    def _is_full(self) -> bool:
        """Whether there is no place for another stranger."""
        return len(self._open) > self.connections_max or self._answers >= self.connections_max

    def add(self, connection: HttpConnection) -> None:
        """Add a new connection, closing another one if all places are taken."""
        self._open[connection] = None
        self._strangers.setdefault(connection.source, {})[connection] = None
        if len(self._open) > self.connections_max:
            self._make_room(connection)

    def remove(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self._open.pop(connection, None)
        self._forget_stranger(connection)

    def _is_stranger(self, connection: HttpConnection) -> bool:
        return connection in self._strangers.get(connection.source, ())

    def _forget_stranger(self, connection: HttpConnection) -> None:
        """Remove a connection from the strangers'; nothing happens if it is none of them."""
        group = self._strangers.get(connection.source, {})
        if connection in group:
            del group[connection]
            if not group:
                del self._strangers[connection.source]

    def _make_room(self, newcomer: HttpConnection) -> None:
        """Close a stranger's connection for a new one, if there is one that may be closed."""
        chosen = self._given_up_for(newcomer)
        if chosen is None:
            return
        self._warn(chosen)
        self.remove(chosen)
        chosen.cut()

    def _warn(self, chosen: HttpConnection) -> None:
        """Log that connections are closed, once a minute: there may be thousands a second."""
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            return
        self._quiet_until = now + WARNED_SECONDS
        logger.warning(
            "closed a connection from %s that has not logged in: all %d are taken; "
            "this is not logged again for a minute",
            chosen.source,
            self.connections_max,
            extra={"source": chosen.source},
        )

    def _given_up_for(self, newcomer: HttpConnection) -> HttpConnection | None:
        """Return the connection to close for a new one, or None.

        One that is being answered is closed only where its address has more than the new one's.
        """
        own_count = len(self._strangers[newcomer.source])
        for group in sorted(self._strangers.values(), key=len, reverse=True):
            others = (each for each in group if each is not newcomer and not each.is_answering)
            idle = next(others, None)
            if idle is not None:
                return idle
            if len(group) > own_count:
                return next(iter(group))
        return None


class PassedTransport:
    """Transport of a client that came to another node; its ends are those of the client there."""

    def __init__(self, transport: asyncio.Transport, there: Endpoints) -> None:
        self._transport = transport
        self._told = {
            "socket": None,  # or its own addresses would be looked at
            "peername": (there.peer_host, there.peer_port),
            "sockname": (there.host, there.port),
        }

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection (see asyncio)."""
        if name in self._told:
            return self._told[name]
        return self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        """Do all else as the transport itself."""
        return getattr(self._transport, name)


class HttpConnection(asyncio.Protocol):
    """One connection, closed if its client is too slow to send a request or read the answer.

    Of a client that another node has accepted, the ends are those `there`.
    """

    def __init__(
        self,
        connections: HttpConnections,
        inner: asyncio.Protocol,
        there: Endpoints | None = None,
    ) -> None:
        self._connections = connections
        self._inner = inner
        self._there = there
        self._deadline: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._answering: asyncio.Task[object] | None = None
        self.source = ""  # the client's address; for IPv6, its site
        self.is_cut = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of a request."""
        if self._there is not None:
            transport = cast("asyncio.Transport", PassedTransport(transport, self._there))
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.source = attempt_source(str(peer[0])) if peer else ""
        self._connections.add(self)
        self._inner.connection_made(transport)
        self.expect_request()

    def data_received(self, data: bytes) -> None:
        """Pass on data; only a complete request head restarts the time limit."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on the call (see asyncio.Protocol)."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pass on the call (see asyncio.Protocol)."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on the call (see asyncio.Protocol)."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit and remove the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._connections.remove(self)
        self._inner.connection_lost(exc)
        if self.is_cut and self._answering is not None:
            self._answering.cancel()  # not before the server knows that its client is gone

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self._answering is not None

    def expect_request(self) -> None:
        """Start the time limit for the next request to come."""
        self._answering = None
        self._allow(REQUEST_SECONDS_MAX)

    def expect_answer(self) -> None:
        """Start the time limit for the current task's answer to be made and sent."""
        self._answering = asyncio.current_task()
        self._allow(ANSWER_SECONDS_MAX)

    def cut(self) -> None:
        """Close the connection at once, and cancel its answer if one is in progress."""
        self.is_cut = True
        self._transport.abort()

    def _allow(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(seconds, self._transport.abort)
