"""Listener of the AMQP side: opens its addresses, and at the end closes all clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from leveret.amqp.acceptor import BACKLOG, Acceptor
from leveret.amqp.sockets import AmqpProtocol
from leveret.ports.listening import listening_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from leveret.amqp.sockets import ClientSockets
    from leveret.amqp.tls import TlsContexts
    from leveret.core.clients import Endpoints
    from leveret.errors import AmqpError


class Listening(NamedTuple):
    """Address that accepts connections; the port is the real one where 0 was configured."""

    protocol: str  # as RabbitMQ calls it: "amqp", "amqp/ssl"
    host: str
    port: int


class AmqpListener:
    """Accepts AMQP connections, in the clear, over TLS or both."""

    def __init__(self, sockets: ClientSockets) -> None:
        self._sockets = sockets
        self._servers: list[asyncio.Server | Acceptor] = []
        self._takers: dict[str, Acceptor] = {}  # by protocol

    async def start(
        self, given: Mapping[str, Sequence[socket.socket]] | None = None
    ) -> list[Listening]:
        """Start listening. Raises LeveretError if an address or a certificate cannot be used.

        `given` are the listening sockets of ports that are bound already, by protocol.
        """
        configuration = self._sockets.configuration
        listening, given = [], given or {}
        if configuration.plain_listener:
            sockets = given.get("amqp", ())
            listening.append(await self._open("amqp", configuration.port, None, sockets))
        if configuration.tls_certificate_file is not None:
            from leveret.amqp.tls import TlsContexts  # noqa: PLC0415  # imported only if needed

            tls = TlsContexts(configuration, self._sockets.loop.time)
            sockets = given.get("amqp/ssl", ())
            listening.append(await self._open("amqp/ssl", configuration.tls_port, tls, sockets))
        return listening

    async def _open(
        self, protocol: str, port: int, tls: TlsContexts | None, given: Sequence[socket.socket]
    ) -> Listening:
        host = self._sockets.configuration.host
        try:
            arrivals = self._takers[protocol] = Acceptor(self._sockets, tls)
            if tls is None and not self._sockets.configuration.proxy_protocol:
                return Listening(protocol, *await self._open_server(host, port, given))
            self._servers.append(arrivals)
            return Listening(protocol, *await arrivals.open(host, port, given))
        except OSError as error:
            raise listening_error(protocol, host, port, error) from None

    async def _open_server(
        self, host: str, port: int, given: Sequence[socket.socket]
    ) -> tuple[str, int]:
        loop = self._sockets.loop
        for each in given:
            made = await loop.create_server(self._accept, sock=each, backlog=BACKLOG)
            self._servers.append(made)
        if given:
            address = given[0].getsockname()
            return address[0], address[1]
        server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        return address[0], address[1]

    def _accept(self) -> asyncio.BaseProtocol:
        return AmqpProtocol(self._sockets) if self._sockets.has_room() else RefusingProtocol()

    def take(self, protocol: str, accepted: socket.socket, peer: Endpoints) -> None:
        """Take a client that another node has accepted on its port of a protocol."""
        if protocol in self._takers:
            self._takers[protocol].take(accepted, peer)
        else:
            accepted.close()

    def stop_reading(self) -> None:
        """Stop accepting and reading; what was read is still answered."""
        for server in (*self._servers, *self._takers.values()):
            server.close()
        self._takers.clear()
        for protocol in self._sockets.protocols:
            protocol.stop_reading()

    async def stop(self, reason: AmqpError, grace_seconds: float) -> None:
        """Close every client with a reason, await close-ok briefly. Call after `stop_reading`."""
        loop, protocols = self._sockets.loop, self._sockets.protocols
        for protocol in list(protocols):
            protocol.shut(reason)
        deadline = loop.time() + grace_seconds
        while protocols and loop.time() < deadline:  # noqa: ASYNC110  # once, at the end
            await asyncio.sleep(0.01)
        for protocol in list(protocols):
            protocol.close()

    def cut(self) -> None:
        """End all clients at once, without a word, and accept no other."""
        self.stop_reading()
        for protocol in list(self._sockets.protocols):
            protocol.turn_away()


class RefusingProtocol(asyncio.Protocol):
    """Protocol of connections beyond the limit: closes at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close without a word: the peer has not spoken AMQP yet."""
        transport.close()
