"""A network between the nodes of a cluster and ZooKeeper that can be cut: relays on loopback.

Each node dials ZooKeeper by a relay of its own, and is dialled by the others through one. Who dials
a node is found by the process that has the connection's other end.
"""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.cluster_processes.launcher import LocalCluster

HOST: Final = "127.0.0.1"
ZOOKEEPER: Final = 0  # where the number of a node may stand
READ_BYTES: Final = 65_536
START_SECONDS_MAX: Final = 10
LOOPBACK: Final = "0100007F"  # as /proc/net/tcp writes it

Pair = frozenset[int]


class Connection:
    """One connection through a relay, of a pair of nodes or of a node and ZooKeeper."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.flows = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    def abort(self) -> None:
        """Reset both ends."""
        for writer in self.writers:
            writer.transport.abort()


class ClusterNetwork:
    """Relays in a thread of their own.

    A pair may be cut, so that its connections are reset and new ones as well, or be silent: nothing
    is lost for those who wait, and nobody notices but by waiting.
    """

    def __init__(self) -> None:
        self._cluster: LocalCluster
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task] = set()
        self._connections: set[Connection] = set()
        self._cut: set[Pair] = set()
        self._silent: set[Pair] = set()
        self._zookeeper_ports: dict[int, int] = {}
        self._link_ports: dict[int, int] = {}

    def start(self, cluster: LocalCluster) -> None:
        """Open the relays of a cluster; done once."""
        if self._thread is not None:
            return
        self._cluster = cluster
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._open())

    def close(self) -> None:
        """End all connections."""
        if self._thread is None:
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = None

    def _call(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS_MAX)

    def zookeeper_address(self, node: int) -> str:
        """Return where a node reaches ZooKeeper."""
        return f"{HOST}:{self._zookeeper_ports[node]}"

    def link_address(self, node: int) -> str:
        """Return where others reach a node."""
        return f"{HOST}:{self._link_ports[node]}"

    # -- what may be cut

    def cut(self, pairs: Iterable[Pair], *, silent: bool) -> None:
        """Cut pairs, or let them be silent."""
        self._call(self._block(set(pairs), silent=silent))

    def heal(self) -> None:
        """Let everything pass again: what was held back arrives now."""
        self._call(self._unblock())

    async def _block(self, pairs: set[Pair], *, silent: bool) -> None:
        if silent:
            self._silent |= pairs
        else:
            self._cut |= pairs
        for connection in list(self._connections):
            if connection.pair in pairs:
                connection.flows.clear()
                if not silent:
                    connection.abort()

    async def _unblock(self) -> None:
        self._cut.clear()
        self._silent.clear()
        for connection in self._connections:
            connection.flows.set()

    # -- the relays

    async def _open(self) -> None:
        for node in self._cluster.nodes:
            self._zookeeper_ports[node] = await self._relay(
                self._cluster.zookeeper.port, lambda _port, node=node: frozenset((node, ZOOKEEPER))
            )
            self._link_ports[node] = await self._relay(
                self._cluster.nodes[node].ports.links,
                lambda port, node=node: frozenset((node, self._node_at(port))),
            )

    async def _relay(self, target: int, pair_of) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            self._tasks.add(task)
            try:
                await self._serve(
                    pair_of(writer.get_extra_info("peername")[1]), target, reader, writer
                )
            except (OSError, asyncio.CancelledError):
                pass
            finally:
                writer.transport.abort()
                self._tasks.discard(task)

        server = await asyncio.start_server(serve, HOST, 0, limit=READ_BYTES)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, pair: Pair, target: int, reader, writer) -> None:
        if pair in self._cut:
            return
        connection = Connection(pair)
        connection.writers.append(writer)
        self._connections.add(connection)
        if pair not in self._silent:
            connection.flows.set()
        try:
            await connection.flows.wait()
            there, back = await asyncio.open_connection(HOST, target, limit=READ_BYTES)
            connection.writers.append(back)
            if pair in self._cut:
                return
            async with asyncio.TaskGroup() as group:
                both = [
                    group.create_task(_carry(connection, reader, back)),
                    group.create_task(_carry(connection, there, writer)),
                ]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in both:
                    task.cancel()
        finally:
            connection.abort()
            self._connections.discard(connection)

    def _node_at(self, port: int) -> int:
        """Return the node whose process has a connection from a port of loopback; -1: none."""
        own = f"{LOOPBACK}:{port:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines():
            words = line.split()
            if words[1] == own:
                wanted = f"socket:[{words[9]}]"
                for number, node in self._cluster.nodes.items():
                    if wanted in _sockets_of(node.process):
                        return number
        return -1


def _sockets_of(process) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        if process is not None:
            for each in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):  # it was closed meanwhile
                    name = str(each.readlink())
                    if re.fullmatch(r"socket:\[\d+\]", name):
                        found.add(name)
    return found


async def _carry(connection: Connection, reader, writer) -> None:
    """Carry bytes, which wait while the pair is silent, until one end is closed."""
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            await connection.flows.wait()
            writer.write(data)
            await writer.drain()
    await connection.flows.wait()
