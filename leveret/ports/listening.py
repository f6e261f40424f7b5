"""Listening on every address that the name of a host has."""

from __future__ import annotations

import asyncio
import os
import socket

from leveret.errors import LeveretError

__all__ = ["LINKS", "listen", "listening_error"]

LINKS = "links"  # between the nodes of a cluster
SETTINGS = {
    "amqp": "host, port",
    "amqp/ssl": "host, tls_port",
    "http": "http_host, http_port",
    "https": "https_host, https_port",
    "http/prometheus": "prometheus_host, prometheus_port",
    LINKS: "advertise, cluster_host, cluster_port",
}


async def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return listening sockets that do not block; port 0 takes one free port for all of them.

    Raises OSError, and leaves none open then.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in infos:
            listening = socket.create_server((address[0], port), family=family, backlog=backlog)
            listening.setblocking(False)
            made.append(listening)
            port = port or listening.getsockname()[1]
    except OSError:
        for listening in made:
            listening.close()
        raise
    return made


def listening_error(protocol: str, host: str, port: int, error: OSError) -> LeveretError:
    """Return the error that names the address of a protocol, why it cannot be used, and a remedy.

    The reason is in the system's words; protocols are called as RabbitMQ does it, and LINKS.
    """
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror  # else of a host's name
    return LeveretError(
        f"cannot listen for {protocol} on {host}:{port}: {reason}; free the address or choose "
        f"another one ({SETTINGS[protocol]})"
    )
