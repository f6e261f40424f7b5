"""Connections as a node gets them that has accepted none itself."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import ssl

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def accepted_client(
    tls: ssl.SSLContext | None = None,
) -> tuple[socket.socket, asyncio.Task[Streams]]:
    """Return an accepted socket, and its client, who begins a TLS handshake if there is one."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        connecting = loop.create_task(
            asyncio.open_connection(
                *listening.getsockname(),
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else LIMIT_SECONDS,
            )
        )
        accepted, _ = await loop.sock_accept(listening)
    return accepted, connecting
