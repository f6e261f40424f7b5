"""Listening on every address that the name of a host has."""

from __future__ import annotations

import asyncio
import os
import socket

__all__ = ["listen", "listening_problem"]


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


def listening_problem(error: OSError) -> str | None:
    """Return in the system's words why an address cannot be listened on."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror  # else of a host's name
