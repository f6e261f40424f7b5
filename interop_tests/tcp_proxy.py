"""A TCP proxy between a client and a broker that can cut, stall and refuse connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from interop_tests.brokers import Address

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

CHUNK_BYTES = 65536


class TcpProxy:
    """Listens on a free port and forwards to `target` while it is told nothing else."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.address = Address("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: set[StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def listen(self) -> None:
        """Accept connections, on the same port every time."""
        self._server = await asyncio.start_server(self._serve, self.address.host, self.address.port)
        port: int = self._server.sockets[0].getsockname()[1]
        self.address = Address(self.address.host, port)

    async def refuse(self) -> None:
        """Cut what there is and accept nothing until `listen`."""
        self._flowing.set()
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Drop every connection without a goodbye, on both sides."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Keep the connections and forward nothing, like a network that lost its route."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, beginning with what was held back."""
        self._flowing.set()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(
                self.target.host, self.target.port
            )
        except OSError:  # the broker is down: the client must see its connection end
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _pump(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
