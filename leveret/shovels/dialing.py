"""Connections to the brokers at both ends of a shovel: to other hosts, or to this broker itself.

A URI without a host means this broker: its connection is a pair of sockets within the process, so
that permissions, limits and flow control are as for any client, whatever addresses it listens on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.amqp.client import AmqpClient, ClientClosedError, ClientError, ClientLogin
from leveret.core.clients import Endpoints
from leveret.ports.authentication import TooManyGuessesError

if TYPE_CHECKING:
    from leveret.amqp.client import ClientEvents
    from leveret.amqp.sockets import AmqpProtocol, ClientSockets
    from leveret.features.shovels.uris import AmqpUri
    from leveret.ports.authentication import Rights

__all__ = ["ShovelDialer"]

NOT_ALLOWED: Final = 530
# RabbitMQ's texts for the errors of sockets.
REASONS: Final = {
    errno.ECONNREFUSED: "connection to target host was refused (ECONNREFUSED)",
    errno.ECONNRESET: "connection to target host was reset by peer (ECONNRESET)",
    errno.ETIMEDOUT: "connection to target host timed out (ETIMEDOUT)",
    errno.EHOSTUNREACH: "target host is unreachable (EHOSTUNREACH)",
}


class DirectRights:
    """Rights of a shovel's connection to its own broker without a user: all, as in RabbitMQ.

    Who sets such a shovel must be allowed to enter the virtual host; see the API's parameters.
    """

    user = "none"
    tags: tuple[str, ...] = ("impersonator",)  # messages keep the user-id that they have
    generation = 0
    expires_at_ms: int | None = None

    def may_enter(self, vhost: str) -> bool:  # noqa: ARG002  # as for all
        """Allow it."""
        return True

    def allows(self, *_: object) -> bool:
        """Allow it."""
        return True

    def restricts_topics(self, *_: object) -> bool:
        """Restrict none."""
        return False

    def allows_topic(self, *_: object) -> bool:
        """Allow it."""
        return True

    async def renewed(self, secret: str) -> Rights:  # noqa: ARG002  # it has none
        """Return the same rights."""
        return self


class ShovelDialer:
    """Connects to brokers; `sockets` are those of this one."""

    def __init__(self, sockets: ClientSockets) -> None:
        self._sockets = sockets
        self._numbers = itertools.count(1)

    async def connect(self, uri: AmqpUri, name: str, events: ClientEvents) -> AmqpClient:
        """Return a client that has logged in. Raises ClientError, with RabbitMQ's texts.

        `name` is what the broker shows of the connection.
        """
        client = AmqpClient(events)
        try:
            async with asyncio.timeout(uri.connect_ms_max / 1000 or None):
                heartbeat = 0 if uri.is_direct else uri.heartbeat_seconds
                await (self._join(client, uri) if uri.is_direct else _dial(client, uri))
                await client.open(
                    ClientLogin(uri.vhost, uri.user, uri.password, uri.mechanism, heartbeat, name)
                )
        except TimeoutError:
            client.abort()
            raise ClientError(REASONS[errno.ETIMEDOUT]) from None
        except OSError as error:
            client.abort()
            raise ClientError(_explained(error)) from None
        except ValueError as error:  # a host that is no name, or what no frame can hold
            client.abort()
            raise ClientError(f"the URI cannot be used: {error}") from None
        except ClientClosedError as error:
            client.abort()
            if error.code == NOT_ALLOWED:
                raise ClientError("access to target virtual host was refused") from None
            raise
        except BaseException:
            client.abort()
            raise
        return client

    async def _join(self, client: AmqpClient, uri: AmqpUri) -> None:
        """Connect a client to this broker. Raises ClientError."""
        rights: Rights | None = None if uri.has_user else DirectRights()
        if uri.has_user:
            broker = self._sockets.broker
            with contextlib.suppress(TooManyGuessesError):
                rights = await broker.authenticate(uri.user, uri.password, "127.0.0.1")
        if rights is None:
            raise ClientError("ACCESS_REFUSED - Login was refused")
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        endpoints = Endpoints("127.0.0.1", next(self._numbers), "(shovel)", 0)
        protocol = self._sockets.protocol(endpoints, None)
        protocol.rights = rights
        for end in (near, far):
            end.setblocking(False)
        await loop.connect_accepted_socket(partial(_same, protocol), far)
        await loop.create_unix_connection(lambda: client, sock=near)


def _same(protocol: AmqpProtocol) -> AmqpProtocol:
    return protocol


async def _dial(client: AmqpClient, uri: AmqpUri) -> None:
    """Connect a client to another host. Raises OSError, ClientError."""
    context = await asyncio.to_thread(_context, uri) if uri.is_secure else None
    server_name = None
    if context is not None:
        server_name = uri.host
        if uri.server_name and uri.server_name != "disable":
            server_name = uri.server_name
    await asyncio.get_running_loop().create_connection(
        lambda: client, uri.host, uri.port, ssl=context, server_hostname=server_name
    )


def _context(uri: AmqpUri) -> ssl.SSLContext:
    """Return the TLS context of a URI; its files are read. Raises ClientError."""
    try:
        context = ssl.create_default_context(cafile=uri.ca_file or None)
        if uri.certificate_file:
            context.load_cert_chain(
                uri.certificate_file, uri.key_file or None, password=uri.key_password
            )
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ClientError(f"the TLS files of the URI cannot be used: {error}") from None
    if not uri.verifies_peer:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif uri.server_name == "disable":
        context.check_hostname = False
    return context


def _explained(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "unknown host (failed to resolve hostname)"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    number = error.errno or 0
    return REASONS.get(number) or (os.strerror(number) if number > 0 else str(error))
