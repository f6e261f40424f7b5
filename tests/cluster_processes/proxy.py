"""A load balancer for the machine at home: a TCP proxy that takes the live nodes in turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_SECONDS_MAX = 2.0
READ_BYTES = 65_536

Target = tuple[str, int]


class RoundRobinProxy:
    """Passes each connection on to the next of the targets that are there at that moment."""

    def __init__(self, targets: Callable[[], list[Target]]) -> None:
        self._targets = targets
        self._turns = count()
        self._tasks: set[asyncio.Task] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> Target:
        """Listen; port 0 is a free one. Returns host and port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=READ_BYTES)
        return self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        """Accept no more, and cut all connections."""
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            found = await self._connect()
            if found is not None:
                await self._carry_both((reader, writer), found)
        except asyncio.CancelledError:
            pass  # the proxy is closing, and nobody waits for this task
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect with the target whose turn it is, or with one of the others."""
        targets = self._targets()
        first = next(self._turns)
        for each in range(len(targets)):
            with suppress(OSError):  # a time-out, too
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    target = targets[(first + each) % len(targets)]
                    return await asyncio.open_connection(*target, limit=READ_BYTES)
        return None

    async def _carry_both(self, client, target) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(client[0], target[1]))
                group.create_task(_carry(target[0], client[1]))
        except* OSError:
            pass  # one side has cut its connection: both end
        finally:
            target[1].transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes until the end of them, which is passed on."""
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
