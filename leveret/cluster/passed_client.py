"""How the connection of a client gets from the node that it came to to the one that leads.

    link for the purpose CLIENT (see handshake), up to READY; then

    1 CLIENT    JSON: {"protocol": "amqp", "peer": ["10.1.2.3", 5000], "here": ["10.0.0.1", 5672]}
    opener      in a frame: the protocol of the port that it came to, and both ends of it there

    2 TAKEN     one byte, 1, without a length
    acceptor

Behind that the bytes of the client and of the node that leads follow as they are, TLS too. Whoever
takes the connection treats it as one that was accepted on the port itself.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.cluster.links.handshake import (
    HANDSHAKE_FRAME_BYTES_MAX,
    NONCE_BYTES,
    LinkPurpose,
    LinkRefusedError,
    OpenerHandshake,
    RefusalCode,
)
from leveret.cluster.links.link import KEEPALIVE
from leveret.errors import LeveretError
from leveret.replication.codec import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.cluster.links.handshake import LinkIdentity

__all__ = ["TAKEN", "LeaderAddress", "PassedClient", "pass_client"]

TAKEN = b"\x01"
PROTOCOLS = frozenset({"amqp", "amqp/ssl", "http", "https"})
HOST_CHARACTERS_MAX = 255
PORT_MAX = 0xFFFF
CONNECT_SECONDS = 1.0  # for a machine to answer at all: one without power does not


class LeaderAddress(NamedTuple):
    """The node that leads, and where other nodes reach it."""

    node: int
    host: str
    port: int


class PassedClient(NamedTuple):
    """A client's connection: the protocol of the port that it came to, and its ends there."""

    protocol: str  # as RabbitMQ calls listeners: "amqp", "amqp/ssl", "http", "https"
    peer: tuple[str, int]
    here: tuple[str, int]

    def to_bytes(self) -> bytes:
        """Return what CLIENT has."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PassedClient:
        """Return what `to_bytes` has made. Raises ValueError."""
        try:
            found = json.loads(data)
            client = cls(found["protocol"], _end(found["peer"]), _end(found["here"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"no client: {error!r}") from error
        if type(client.protocol) is not str or client.protocol not in PROTOCOLS:
            raise ValueError(f"no protocol of clients: {client.protocol!r}")
        return client


def _end(found: Any) -> tuple[str, int]:
    host, port = found
    is_host = type(host) is str and len(host) <= HOST_CHARACTERS_MAX and host.isprintable()
    if not is_host or type(port) is not int or not 0 <= port <= PORT_MAX:
        raise ValueError("no end of a connection")
    return host, port


async def pass_client(
    identity: LinkIdentity,
    leader: LeaderAddress,
    client: PassedClient,
    draw: Callable[[int], bytes],
) -> socket.socket:
    """Return a connection to the leader that has taken the client. Raises OSError, LeveretError.

    The caller limits the time.
    """
    connection = await _connect(leader.host, leader.port)
    try:
        handshake = OpenerHandshake(identity, leader.node, draw(NONCE_BYTES), LinkPurpose.CLIENT)
        await _send(connection, handshake.first)
        while handshake.peer is None:
            await _send(connection, handshake.receive(await _receive(connection)))
        await _send(connection, client.to_bytes())
        await _await_taken(connection)
    except LinkRefusedError as error:
        with suppress(OSError):
            await _send(connection, error.answer)
        connection.close()
        raise
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that accepts one. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure = OSError("the host has no address")
    for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


async def _await_taken(connection: socket.socket) -> None:
    """Wait for TAKEN; keepalives that the link sent before it had CLIENT are zeros."""
    while (received := await _receive_exactly(connection, len(TAKEN))) != TAKEN:
        if received != KEEPALIVE[: len(TAKEN)]:
            raise LeveretError("the node that leads answers something else than that it takes it")


async def _send(connection: socket.socket, frame: bytes) -> None:
    if frame:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, LENGTH.pack(len(frame)) + frame)


async def _receive(connection: socket.socket) -> bytes:
    """Return the next frame of a handshake."""
    while True:
        (length,) = LENGTH.unpack(await _receive_exactly(connection, LENGTH.size))
        if length > HANDSHAKE_FRAME_BYTES_MAX:
            raise LinkRefusedError(RefusalCode.MALFORMED)
        if length:  # else it is a keepalive
            return await _receive_exactly(connection, length)


async def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = await asyncio.get_running_loop().sock_recv(connection, count - len(received))
        if not data:
            raise LeveretError("the node that leads takes no clients now")
        received += data
    return received
