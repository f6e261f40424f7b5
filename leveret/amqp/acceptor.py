"""Sockets before their first byte of AMQP: PROXY header, TLS handshake, time limit.

The listener opens an `Acceptor` for each address that needs one of the two. A peer that sends
neither a header nor a handshake costs one socket until the time limit and delays no other peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING

from leveret.amqp.proxy_protocol import MalformedProxyHeaderError, ProxyHeader
from leveret.core.clients import Endpoints
from leveret.ports.authentication import attempt_source
from leveret.ports.listening import listen
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leveret.amqp.sockets import AmqpProtocol, ClientSockets
    from leveret.amqp.tls import TlsContexts

logger = logging.getLogger("leveret.connection")

BACKLOG = 1024
ACCEPT_RETRY_SECONDS = 1.0  # without file descriptors left: some will be closed meanwhile


def _tell(level: int, peer: Endpoints, text: str) -> None:
    """Log a line about a peer; the peer's source address has a share of the log's rate limit."""
    source = {"source": attempt_source(peer.peer_host)}
    name = f"{peer.peer_host}:{peer.peer_port}"
    logger.log(level, "connection from %s %s", name, text, extra=source)


class Acceptor:
    """Server of one address: takes each socket through the PROXY header and the TLS handshake."""

    def __init__(self, sockets: ClientSockets, tls: TlsContexts | None) -> None:
        self._sockets = sockets
        self._tls = tls
        self._time_limit = sockets.configuration.handshake_timeout_seconds
        self._tasks: set[asyncio.Task[object]] = set()
        self._listening: list[socket.socket] = []
        self._one_a_turn = asyncio.Lock()

    async def open(
        self, host: str, port: int, given: Sequence[socket.socket] = ()
    ) -> tuple[str, int]:
        """Listen on every address of `host`. Returns the first (host, port). Raises OSError.

        `given` are the listening sockets, if there are some already.
        """
        self._listening += given or await listen(host, port, BACKLOG)
        for listening in self._listening:
            self._sockets.spawn(self._accept(listening))
        name = self._listening[0].getsockname()
        return name[0], name[1]

    def close(self) -> None:
        """Stop accepting, and abandon the sockets whose AMQP protocol has not begun."""
        for task in list(self._tasks):
            task.cancel()
        for listening in self._listening:
            listening.close()

    @contextlib.asynccontextmanager
    async def _closable(self) -> AsyncIterator[None]:
        """Register the current task, so that `close` cancels it."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def _accept(self, listening: socket.socket) -> None:
        async with self._closable():
            while True:
                try:
                    accepted, address = await self._sockets.loop.sock_accept(listening)
                except OSError as error:
                    logger.error("cannot accept a connection: %s", error.strerror)  # noqa: TRY400
                    await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                    continue
                if self._sockets.has_room():
                    self._sockets.spawn(self._bring_in(accepted, Endpoints(*address[:2])))
                else:
                    accepted.close()

    def take(self, accepted: socket.socket, peer: Endpoints) -> None:
        """Take a socket that another node has accepted for a client, whose ends there are given."""
        if self._sockets.has_room():
            self._sockets.spawn(self._bring_in(accepted, peer, peer))
        else:
            accepted.close()

    async def _bring_in(
        self, accepted: socket.socket, peer: Endpoints, there: Endpoints | None = None
    ) -> None:
        """Read the PROXY header, await admission, do the TLS handshake, start the AMQP protocol.

        Without a header the ends are those `there`, if any, and else the socket's own.
        """
        sockets = self._sockets
        sockets.arriving += 1
        protocol: AmqpProtocol | None = None
        arrived = False
        try:
            async with self._closable():
                told = await self._endpoints(accepted) or there
                protocol = sockets.protocol(told, self._tls)
                await protocol.admission((told or peer).peer_host)
                if self._tls is not None:
                    await self._spoken(accepted)
                await sockets.loop.connect_accepted_socket(
                    partial(_same, protocol),
                    accepted,
                    ssl=self._tls.current() if self._tls else None,
                    ssl_handshake_timeout=self._time_limit if self._tls else None,
                )
                arrived = True
        except MalformedProxyHeaderError as error:
            _tell(logging.WARNING, peer, f"closed: {error}")
        except OSError as error:  # of a time limit, of TLS, and of sockets
            reason = "it was too late" if isinstance(error, TimeoutError) else one_line(error)
            # A socket that just closes is a load balancer's probe; a TLS error is worth a warning.
            level = logging.WARNING if isinstance(error, ssl.SSLError) else logging.INFO
            _tell(level, peer, f"ended before AMQP, while it brought a header or TLS: {reason}")
        finally:
            sockets.arriving -= 1
            if not arrived:
                accepted.close()
                if protocol is not None:
                    sockets.handshakes.end(protocol)

    async def _spoken(self, accepted: socket.socket) -> None:
        """Wait until the client has begun its TLS handshake, and start at most one per turn.

        A handshake costs a signature, about a millisecond of the event loop; a silent client costs
        none.
        """
        loop = self._sockets.loop
        readable = loop.create_future()
        loop.add_reader(accepted, _resolve, readable)
        try:
            async with asyncio.timeout(self._time_limit):
                await readable
        finally:
            loop.remove_reader(accepted)
        async with self._one_a_turn:
            await asyncio.sleep(0)

    async def _endpoints(self, accepted: socket.socket) -> Endpoints | None:
        """Read the PROXY header; return its endpoints, or None for the socket's own addresses."""
        if not self._sockets.configuration.proxy_protocol:
            return None
        header = ProxyHeader()
        async with asyncio.timeout(self._time_limit):
            while wanted := header.wanted:
                data = await self._sockets.loop.sock_recv(accepted, wanted)
                if not data:
                    raise MalformedProxyHeaderError("no more than the beginning of a PROXY header")
                header.receive(data)
        return header.endpoints


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _same(protocol: AmqpProtocol) -> AmqpProtocol:
    return protocol
