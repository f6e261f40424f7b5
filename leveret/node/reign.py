"""A reign of this node: what the cluster asks of a node that leads, and what it tells clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from leveret.cluster.passed_client import TAKEN, PassedClient
from leveret.core.clients import Endpoints
from leveret.node.stores import LedShard
from leveret.ports.log_text import one_line
from leveret.storage.files import RealFileSystem
from leveret.storage.led_logs import LedLogs

if TYPE_CHECKING:
    import socket

    from leveret.amqp.listener import AmqpListener
    from leveret.cluster.replica_runner import ReplicaRunner
    from leveret.node.clustered import ClusteredNode
    from leveret.node.servers import HttpServers
    from leveret.ports.cluster import ClusterView

__all__ = ["NodeReign"]

logger = logging.getLogger("leveret.cluster")

RESIGN_SECONDS = 3.0  # to write that this node leads no more; others find out by themselves, later
MISSING_COPIES = ": queues that need more of them (min-isr) refuse what is published"


class NodeReign:
    """`Reign` of this node over the shard, from its election to the end of the process."""

    def __init__(self, node: ClusteredNode, epoch: int, runner: ReplicaRunner) -> None:
        process = node.process
        data, loop = process.configuration.data_dir, process.loop
        self._node = node
        self.logs = LedLogs(data, RealFileSystem(), loop, node.threads, runner)
        self.led = LedShard(epoch, self.logs, node.threads)
        self._opened: asyncio.Future[None] = loop.create_future()
        self._listener: AmqpListener | None = None
        self._http: HttpServers | None = None
        self._is_over = False
        self._in_sync_counts = 0, 0

    # -- what replication asks for (see Reign)

    async def open(self) -> None:
        """Have the logs opened (see Reign)."""
        logger.warning("this node leads from now on, in epoch %d", self.led.epoch)
        self._node.reign = self
        self._node.elected.set()
        await self._opened

    def set_in_sync_counts(self, in_sync: int, ever_in_sync: int) -> None:
        """Have logs that need more nodes in sync store nothing (see Reign)."""
        if (in_sync, ever_in_sync) == self._in_sync_counts:
            return
        self._in_sync_counts = in_sync, ever_in_sync
        are_all = in_sync == ever_in_sync
        logger.log(
            logging.INFO if are_all else logging.WARNING,
            "%d of %d nodes are in sync%s",
            *(in_sync, ever_in_sync, "" if are_all else MISSING_COPIES),
        )
        self.logs.set_in_sync_counts(in_sync, ever_in_sync)

    def end(self, reason: str) -> None:
        """Serve nobody any more, and have the process begin anew (see Reign)."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._cut()
        finally:
            self._node.process.spawn(self._begin_anew_when_over(reason))

    def _cut(self) -> None:
        """End all clients at once: their sockets are closed in the next turn of the loop."""
        if self._listener is not None and self._http is not None:
            self._listener.cut()
            self._http.cut()

    async def _begin_anew_when_over(self, reason: str) -> None:
        """Begin anew once others may know that this node leads no more, at the latest soon.

        Where that is known already, it is the next turn, after sockets of clients were closed: a
        thread that waits for the disk may keep the process, and with it what it has open.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESIGN_SECONDS):
                await self._node.member.over.wait()
        self._node.process.begin_anew(reason)

    # -- what the node tells

    @property
    def cluster(self) -> ClusterView:
        """The cluster, as this node sees it."""
        return self._node.member

    def opened(self) -> None:
        """Note that the logs are open."""
        self._opened.set_result(None)

    def closed(self) -> None:
        """Note that all stores are closed: nothing is left to be ended."""
        self._is_over = True

    async def take_ports(self) -> dict[str, list[socket.socket]] | None:
        """Return the listening sockets of clients' ports; what else there is, is closed.

        A reign that is over takes none, and waits for the end: None if the node is to stop.
        """
        node = self._node
        if self._is_over:
            await node.process.stopping.wait()
            return None
        node.metrics.cut()
        await node.metrics.close()
        await node.control.close()
        return await node.proxy.release_ports()

    def serve(self, listener: AmqpListener, http: HttpServers) -> None:
        """Serve clients that came to other nodes, and those that were held here.

        Those of HTTP wait until requests are answered. A reign that is over serves nobody.
        """
        self._listener, self._http = listener, http
        if self._is_over:
            self._cut()
            return
        self._node.proxy.serve_here(self._take)
        self._node.member.take_clients(self._take_passed)

    def _take_passed(self, connection: socket.socket, told: bytes) -> None:
        """Take a client of another node, which holds it if the connection is closed instead."""
        try:
            client = PassedClient.from_bytes(told)
            if self._may_take(client):
                connection.send(TAKEN)
                self._take(connection, client)
                return
        except (OSError, ValueError) as error:
            logger.warning("took no client of another node: %s", one_line(error))
        connection.close()

    def _may_take(self, client: PassedClient) -> bool:
        assert self._http is not None, "it serves"
        return client.protocol.startswith("amqp") or self._http.is_answering(client.protocol)

    def _take(self, connection: socket.socket, client: PassedClient) -> bool:
        """Take a client; False if it is to be held for a while."""
        assert self._listener is not None, "it serves"
        assert self._http is not None, "it serves"
        if not self._may_take(client):
            return False
        there = Endpoints(*client.peer, *client.here)
        if client.protocol.startswith("amqp"):
            self._listener.take(client.protocol, connection, there)
        else:
            self._http.take(client.protocol, connection, there)
        return True
