"""Listener of the AMQP side: opens its addresses, and at the end closes all clients."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, NamedTuple

from leveret.amqp.acceptor import BACKLOG, Acceptor
from leveret.amqp.sockets import AmqpProtocol
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from leveret.amqp.sockets import ClientSockets
    from leveret.amqp.tls import TlsContexts
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

    async def start(self) -> list[Listening]:
        """Start listening. Raises LeveretError if an address or a certificate cannot be used."""
        configuration = self._sockets.configuration
        listening = []
        if configuration.plain_listener:
            listening.append(await self._open("amqp", configuration.port, None))
        if configuration.tls_certificate_file is not None:
            from leveret.amqp.tls import TlsContexts  # noqa: PLC0415  # imported only if needed

            tls = TlsContexts(configuration, self._sockets.loop.time)
            listening.append(await self._open("amqp/ssl", configuration.tls_port, tls))
        return listening

    async def _open(self, protocol: str, port: int, tls: TlsContexts | None) -> Listening:
        host = self._sockets.configuration.host
        try:
            if tls is None and not self._sockets.configuration.proxy_protocol:
                return Listening(protocol, *await self._open_server(host, port))
            arrivals = Acceptor(self._sockets, tls)
            self._servers.append(arrivals)
            return Listening(protocol, *await arrivals.open(host, port))
        except OSError as error:
            setting = "port" if tls is None else "tls_port"
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror  # of a host's name
            raise LeveretError(
                f"cannot listen for {protocol} on {host}:{port}: {reason}; "
                f"free the address or choose another one (host, {setting})"
            ) from None

    async def _open_server(self, host: str, port: int) -> tuple[str, int]:
        server = await self._sockets.loop.create_server(self._accept, host, port, backlog=BACKLOG)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        return address[0], address[1]

    def _accept(self) -> asyncio.BaseProtocol:
        return AmqpProtocol(self._sockets) if self._sockets.has_room() else RefusingProtocol()

    def stop_reading(self) -> None:
        """Stop accepting and reading; what was read is still answered."""
        for server in self._servers:
            server.close()
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


class RefusingProtocol(asyncio.Protocol):
    """Protocol of connections beyond the limit: closes at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close without a word: the peer has not spoken AMQP yet."""
        transport.close()
