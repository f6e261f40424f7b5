"""Connections of one HTTP server: their limit, and time limits for each.

`HttpConnections` is the ASGI application that the server runs around ours; `HttpConnection` is the
asyncio protocol of one connection, around the server's own. Both use only what asyncio and the ASGI
specification document, and find each other by the connection's two addresses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Ends: TypeAlias = tuple[object, object]  # (host, port) of the client, and of the server

__all__ = ["AnswerCutError", "HttpConnection", "HttpConnections"]

# Connections beyond those that are answered which get a 503; each takes a file until then.
REFUSED_MAX = 16
REQUEST_SECONDS_MAX = 10.0  # to send a request, from the start or after the last answer
ANSWER_SECONDS_MAX = 60.0  # to make and to take an answer: some megabytes over a slow line


class AnswerCutError(LeveretError):
    """Raised for an answer that was begun and cannot be ended: its client must see that."""


class HttpConnections:
    """Runs `app` for each request, and keeps the open connections.

    `connections_max` are answered. Unauthenticated peers must not be able to keep them, nor to open
    more and more, which would take the node's files.
    """

    def __init__(self, app: ASGIApp, connections_max: int) -> None:
        self._app = app
        self._open: dict[Ends, HttpConnection] = {}
        self.connections_max = connections_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application within the connection's time limits (see the ASGI specification)."""
        connection = self._open.get((_end(scope["client"]), _end(scope["server"])))
        if connection is None:
            return  # its client is gone

        async def send_noting_end(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.expect_request()

        connection.expect_answer()
        try:
            try:
                await self._app(scope, receive, send_noting_end)
            except AnswerCutError:
                connection.cut()
                if not connection.is_lost:  # then this is cancelled, once the server knows of it
                    await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not connection.is_cut:
                raise

    def cut(self) -> None:
        """Close every connection at once, and cancel the answers in progress."""
        for connection in list(self._open.values()):
            connection.cut()

    def add(self, ends: Ends, connection: HttpConnection) -> bool:
        """Add a new connection; return False if there are too many to answer even with 503."""
        self._open[ends] = connection
        return len(self._open) <= self.connections_max + REFUSED_MAX

    def remove(self, ends: Ends, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        if self._open.get(ends) is connection:
            del self._open[ends]


class HttpConnection(asyncio.Protocol):
    """One connection, closed if its client is too slow to send a request or read the answer."""

    def __init__(self, connections: HttpConnections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._deadline: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._ends: Ends
        self._answering: asyncio.Task[object] | None = None
        self.is_cut = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of a request; abort if too many connections are open."""
        self._transport = transport
        ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        self._ends = (_end(ends[0]), _end(ends[1]))
        is_admitted = self._connections.add(self._ends, self)
        self._inner.connection_made(transport)
        if is_admitted:
            self.expect_request()
        else:
            transport.abort()

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
        self.is_lost = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._connections.remove(self._ends, self)
        self._inner.connection_lost(exc)
        if self.is_cut and self._answering is not None:
            self._answering.cancel()  # not before the server knows that its client is gone

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


def _end(address: object) -> object:
    """Return (host, port) of an address from a socket or an ASGI scope."""
    return tuple(address[:2]) if isinstance(address, (tuple, list)) else address
