"""The servers: control socket, management, metrics, and AMQP."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from leveret.amqp.listener import AmqpListener
from leveret.amqp.sockets import committed
from leveret.config import VerifyPeer
from leveret.core.telemetry.log_exchange import LogExchange
from leveret.errors import ConnectionClosingError
from leveret.mgmt_ui.control import COMMAND_LINE, ControlServer
from leveret.mgmt_ui.log_handler import LogExchangeHandler
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.mgmt_ui.operations.runtime import Listener
from leveret.mgmt_ui.server import ManagementServer, MetricsServer, SecureManagementServer

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from leveret.amqp.sockets import ClientSockets
    from leveret.broker.broker import Broker
    from leveret.config import Configuration
    from leveret.core.clients import Endpoints
    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.node.process import Process

    # Listening sockets of ports that are bound already, by protocol.
    GivenSockets: TypeAlias = Mapping[str, Sequence[socket.socket]]

__all__ = [
    "HttpServers",
    "https_context",
    "open_amqp",
    "open_control",
    "open_http",
    "publishing_log",
]

# Longest time for clients to answer connection.close when the node stops.
STOP_GRACE_SECONDS = 2.0


@contextlib.asynccontextmanager
async def open_control(process: Process, context: AdminContext) -> AsyncIterator[None]:
    """Serve the control socket for the command line."""
    path = process.configuration.control_socket_path

    async def perform_here(request: object) -> dict[str, object]:
        return await perform(context, request, COMMAND_LINE)

    control = ControlServer(path, perform_here, process.spawn)
    await control.start()
    try:
        yield
    finally:
        await control.close()


class HttpServers:
    """Management over HTTP and TLS, and the metrics port, as far as configured.

    Their ports are bound by `open`, their applications built by `load`, and requests answered from
    `start` on.
    """

    def __init__(self, process: Process, given: GivenSockets) -> None:
        self._process = process
        self._given = given
        self._servers: list[ManagementServer] = []
        self.listeners: list[Listener] = []

    async def open(self) -> None:
        """Bind the ports. Raises LeveretError if one is not available."""
        configuration = self._process.configuration
        if configuration.http_port >= 0:
            host, port = configuration.http_host, configuration.http_port
            await self._open(ManagementServer(), host, port)
        if configuration.https_port >= 0:
            host, port = configuration.https_host or configuration.host, configuration.https_port
            context = https_context(configuration, self._process.loop.time)
            await self._open(SecureManagementServer(context), host, port)
        if configuration.prometheus_port >= 0:
            host, port = configuration.prometheus_host, configuration.prometheus_port
            await self._open(MetricsServer(), host, port)

    async def _open(self, server: ManagementServer, host: str, port: int) -> None:
        self._servers.append(server)
        given = self._given.get(server.protocol, ())
        self.listeners.append(await server.open(host, port, given))

    async def load(self, node: ManagedNode) -> None:
        """Build the applications, in a thread."""
        for server in self._servers:
            await server.load(node)

    async def start(self) -> None:
        """Serve; return once every port answers."""
        for server in self._servers:
            self._process.spawn(server.serve())
        for server in self._servers:
            await server.answering()

    def is_answering(self, protocol: str) -> bool:
        """Whether requests on the port of a protocol are answered."""
        return any(each.protocol == protocol and each.is_answering for each in self._servers)

    def take(self, protocol: str, accepted: socket.socket, there: Endpoints) -> None:
        """Answer a client that another node has accepted on its port of a protocol."""
        for server in self._servers:
            if server.protocol == protocol:
                self._process.spawn(server.take(accepted, there))
                return
        accepted.close()

    def cut(self) -> None:
        """End all connections at once, and answer nobody any more."""
        for server in self._servers:
            server.cut()

    async def close(self) -> None:
        """Finish the answers in progress, then close the connections."""
        for server in reversed(self._servers):
            await server.close()


def https_context(configuration: Configuration, clock: Callable[[], float]) -> ssl.SSLContext:
    """Return the TLS context of the management port, which asks for no client certificate.

    It is valid for good: each handshake uses the current content of the certificate files.
    """
    from leveret.amqp.tls import TlsContexts  # noqa: PLC0415  # imported only if needed

    own = configuration.https_certificate_file, configuration.https_key_file
    shared = configuration.tls_certificate_file, configuration.tls_key_file
    certificate, key = own if own[0] is not None else shared
    settings = {
        "tls_certificate_file": certificate,
        "tls_key_file": key,
        "tls_ca_file": None,
        "tls_verify_peer": VerifyPeer.NONE,
    }
    contexts = TlsContexts(configuration.model_copy(update=settings), clock)

    def renew(handshake: ssl.SSLObject, *_: object) -> None:
        handshake.context = contexts.current()

    first = contexts.current()
    first.sni_callback = renew
    return first


@contextlib.asynccontextmanager
async def open_http(process: Process, given: GivenSockets) -> AsyncIterator[HttpServers]:
    """Bind the HTTP ports that are not bound already."""
    servers = HttpServers(process, given)
    try:
        await servers.open()
        yield servers
    finally:
        await servers.close()


@contextlib.asynccontextmanager
async def open_amqp(
    sockets: ClientSockets, broker: Broker, given: GivenSockets
) -> AsyncIterator[tuple[AmqpListener, list[Listener]]]:
    """Serve AMQP; at the end, answer the confirms in flight, then close all clients."""
    listener = AmqpListener(sockets)
    opened = await listener.start(given)
    try:
        yield listener, [Listener(*each) for each in opened]
    finally:
        listener.stop_reading()
        await broker.caught_up(committed)
        await listener.stop(
            ConnectionClosingError(320, "broker forced connection closure with reason 'shutdown'"),
            STOP_GRACE_SECONDS,
        )


@contextlib.contextmanager
def publishing_log(process: Process, broker: Broker) -> Iterator[None]:
    """Publish log lines to their exchange within the context, if configured."""
    if not process.configuration.log_exchange:
        yield
        return
    exchange = LogExchange(broker.vhosts, broker.publisher, broker.node_name)
    handler = LogExchangeHandler(exchange, process.loop)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
