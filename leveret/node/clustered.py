"""A node as a member of a cluster: it follows and passes clients on, or leads and serves them.

Whoever has led does not follow in the same process: at the end of its reign the process begins
anew, so that nothing that it knew of its logs is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import platform
import resource
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from leveret import __version__
from leveret.amqp.refusing import refusal_of_clients
from leveret.cluster.client_proxy import ClientPort, ClientProxy
from leveret.cluster.coordination.settings import ZooKeeperSettings, ZooKeeperTls
from leveret.cluster.coordination.zookeeper import ZooKeeperCoordinator, boottime_ms
from leveret.cluster.member import ClusterMember, MemberParts
from leveret.cluster.member_facts import UnconnectedNode
from leveret.cluster.membership import NodeSettings
from leveret.cluster.passed_client import TAKEN, PassedClient
from leveret.config.cluster import parse_connect_string
from leveret.core.clients import Endpoints
from leveret.errors import ConnectionClosingError, DiskFullError
from leveret.mgmt_ui.control import ControlServer
from leveret.mgmt_ui.managed import FollowingNode
from leveret.mgmt_ui.operations.runtime import Listener
from leveret.mgmt_ui.readiness import tell_ready
from leveret.mgmt_ui.server import FollowingMetricsServer
from leveret.node.following import perform_following
from leveret.node.open_files import passed_clients_max
from leveret.node.serving import serve
from leveret.node.stores import LedShard, open_databases, open_stores
from leveret.ports.coordinator import CoordinatorUnavailableError
from leveret.ports.log_text import one_line
from leveret.storage.cluster_file import ClusterFile
from leveret.storage.files import RealFileSystem
from leveret.storage.led_logs import LedLogs
from leveret.storage.names import list_logs
from leveret.storage.replica_files import newest_epoch
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.snapshot import remove_snapshot
from leveret.storage.store import StorageLimits
from leveret.storage.threads import StorageThreads

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import Any, TypeAlias

    from leveret.amqp.listener import AmqpListener
    from leveret.cluster.replica_runner import ReplicaRunner
    from leveret.config import Configuration
    from leveret.node.process import Process
    from leveret.node.servers import HttpServers
    from leveret.node.stores import Databases
    from leveret.ports.cluster import ClusterView
    from leveret.ports.coordinator import Coordinator
    from leveret.storage.lock import DirectoryLock

    Connect: TypeAlias = Callable[[Process], Awaitable[Coordinator | None]]

__all__ = ["NodeReign", "serve_in_cluster"]

logger = logging.getLogger("leveret.cluster")

RETRY_SECONDS = 1.0  # before a node that could not register tries again
CLOSE_SECONDS = 10.0  # of a member whose disk may hang: longer than a flush of any that does not
RESIGN_SECONDS = 3.0  # to write that this node leads no more; others find out by themselves, later
MISSING_COPIES = ": queues that need more of them (min-isr) refuse what is published"
GOES_ON = "; this node follows again by itself once there is space"
NO_LEADER = "no node of the cluster leads: try again in some seconds"
NOT_TAKEN = "a node leads, but did not take this client in time: try again in some seconds"


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
        self._members = 0, 0

    # -- what replication asks for (see Reign)

    async def open(self) -> None:
        """Have the logs opened (see Reign)."""
        logger.warning("this node leads from now on, in epoch %d", self.led.epoch)
        self._node.reign = self
        self._node.elected.set()
        await self._opened

    def members(self, count: int, joined: int) -> None:
        """Have logs that need more in-sync members store nothing (see Reign)."""
        if (count, joined) == self._members:
            return
        self._members = count, joined
        logger.log(
            logging.INFO if count == joined else logging.WARNING,
            "%d of %d nodes are in sync%s",
            *(count, joined, "" if count == joined else MISSING_COPIES),
        )
        self.logs.members(count, joined)

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


class ClusteredNode:
    """This node as a member, in one session after the other, until it is elected.

    `proxy` has the ports of clients meanwhile.
    """

    def __init__(
        self, process: Process, databases: Databases, threads: StorageThreads, file: ClusterFile
    ) -> None:
        self.process = process
        self.threads = threads
        self.elected = asyncio.Event()
        self.reign: NodeReign | None = None
        self._databases = databases
        self._file = file
        self._member: ClusterMember | None = None
        configuration = process.configuration
        self.proxy = ClientProxy(
            lambda: None if self._member is None else self._member.leader,
            process.spawn,
            hold_seconds=configuration.cluster_hold_ms / 1000,
            clients_max=passed_clients_max(
                configuration, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            ),
        )
        assert configuration.node_id is not None, "it is given beside `cluster`"
        self._settings = NodeSettings(
            node=configuration.node_id,
            address=configuration.advertised,
            rack=configuration.rack or platform.node(),
            release=__version__,
            replaces=configuration.cluster_replace,
        )
        self.metrics = FollowingMetricsServer()
        self.control = ControlServer(configuration.control_socket_path, self._answer, process.spawn)

    @property
    def member(self) -> ClusterMember:
        """The member of the present session."""
        assert self._member is not None, "the node follows"
        return self._member

    @property
    def view(self) -> ClusterView:
        """Cluster, as far as this node knows it."""
        return self._member or UnconnectedNode(self._settings.node, self._settings.rack)

    async def open_ports(self) -> list[Listener]:
        """Open the ports of clients, who are passed on or held. Raises LeveretError."""
        configuration = self.process.configuration
        listeners = [
            Listener(port.protocol, *await self.proxy.open(port))
            for port in client_ports(configuration)
        ]
        if configuration.prometheus_port >= 0:
            host, port = configuration.prometheus_host, configuration.prometheus_port
            listeners.append(await self.metrics.open(host, port))
            self.process.spawn(self._serve_metrics(configuration.http_allowed_hosts))
        return listeners

    async def _serve_metrics(self, allowed_hosts: tuple[str, ...]) -> None:
        await self.metrics.load(FollowingNode(lambda: self.view, allowed_hosts))
        await self.metrics.serve()

    @contextlib.asynccontextmanager
    async def follow(
        self, coordinator: Coordinator, following: Callable[[], None]
    ) -> AsyncIterator[NodeReign | None]:
        """Follow, and yield the reign for which this node is elected, None if it is to stop.

        `following` is called once the node is a member. Where the coordinator cannot be reached, or
        the disk is full, it is tried again. Raises LeveretError if the node cannot be a member.
        """
        stopping, told = self.process.stopping, ""
        while not stopping.is_set():
            async with contextlib.AsyncExitStack() as parts:
                try:
                    member = self._member = await self._make_member(coordinator)
                    parts.push_async_callback(self._close, member)
                    await member.start()
                except (CoordinatorUnavailableError, DiskFullError) as error:
                    if str(error) != told:
                        is_full = isinstance(error, DiskFullError)
                        logger.warning("%s%s", error, GOES_ON if is_full else "")
                    told = str(error)
                else:
                    told = ""
                    following()
                    await _any_of(stopping, member.over, self.elected)
                    if stopping.is_set() or self.reign is not None:
                        yield self.reign
                        return
                    logger.warning("this node begins anew as a member: %s", member.reason)
            await _any_of(stopping, seconds=RETRY_SECONDS)
        yield None

    async def _close(self, member: ClusterMember) -> None:
        """Close a member. Where its disk hangs, a node that is to follow again begins anew.

        Its session ends with the process: as the controller it would keep others from electing.
        """
        follows_again = self.reign is None and not self.process.stopping.is_set()
        closing = self.process.loop.create_task(member.close())
        try:
            # Work in a thread cannot be cancelled, so what waits for it would go on.
            await asyncio.wait({closing}, timeout=CLOSE_SECONDS if follows_again else None)
            if not closing.done():
                self.process.begin_anew("its disk hangs")
            await closing
        finally:
            closing.cancel()

    async def _make_member(self, coordinator: Coordinator) -> ClusterMember:
        """Return a member for a session, which has not begun. Raises StorageError."""
        epoch = await asyncio.to_thread(self._logs_epoch)
        settings = replace(self._settings, has_data=epoch is not None, epoch=epoch or 0)
        return ClusterMember(await self._member_parts(coordinator), settings)

    async def _answer(self, request: object) -> dict[str, object]:
        """Answer a command of this machine: what a node can do that does not lead."""
        return await perform_following(request, self._member, self.view, self.process.stopping)

    def _logs_epoch(self) -> int | None:
        """Return the epoch of the logs that are here; None without any. Raises StorageError.

        Lists them all: for a thread.
        """
        files, topics = RealFileSystem(), self.process.configuration.data_dir / "topics"
        if not list_logs(files, topics):
            return None
        if self._file.state.cluster is not None:
            return 0  # it is one for a founder alone
        return newest_epoch(files, topics)

    async def _member_parts(self, coordinator: Coordinator) -> MemberParts:
        configuration = self.process.configuration
        data, files = configuration.data_dir, RealFileSystem()
        state, loop = self._databases.state, self.process.loop
        segments_max = configuration.open_segments_max
        store = partial(ReplicaStore, data, files, state, loop, self.threads)
        return MemberParts(
            coordinator=coordinator,
            file=self._file,
            # It reads the notes of all logs.
            files=await asyncio.to_thread(store, open_segments_max=segments_max),
            lead=partial(NodeReign, self),
            now_ms=boottime_ms,
            listen=configuration.cluster_address,
            replicas=configuration.cluster_replicas,
        )


async def serve_in_cluster(
    process: Process,
    lock: DirectoryLock,
    began: float,
    connect: Connect | None = None,
) -> float:
    """Follow, then lead and serve clients, until the node stops.

    Returns when that began, on the monotonic clock. `connect` is how the coordinator is reached if
    that is not ZooKeeper. Raises LeveretError.
    """
    configuration = process.configuration
    async with contextlib.AsyncExitStack() as parts:
        file = ClusterFile(RealFileSystem(), configuration.data_dir)
        is_member = file.state.cluster is not None
        databases = await parts.enter_async_context(open_databases(process, is_member=is_member))
        limits = StorageLimits()
        threads = StorageThreads.start(
            process.loop, commit_threads=limits.commit_threads, fetch_threads=limits.fetch_threads
        )
        parts.callback(threads.close)
        node = ClusteredNode(process, databases, threads, file)
        listeners = await node.open_ports()
        parts.push_async_callback(node.proxy.close)
        parts.push_async_callback(node.metrics.close)
        await node.control.start()
        parts.push_async_callback(node.control.close)
        # Of the last reign, or all that is removed of logs meanwhile would stay on the disk.
        await asyncio.to_thread(remove_snapshot, configuration.data_dir)
        coordinator = await (connect or connect_zookeeper)(process)
        if coordinator is None:
            return time.monotonic()
        parts.push_async_callback(coordinator.close)

        def following() -> None:
            tell_ready(
                listeners,
                configuration.data_dir,
                time.monotonic() - began,
                configuration.log_format,
            )

        reign = await parts.enter_async_context(node.follow(coordinator, following))
        if reign is None:
            return time.monotonic()
        began = time.monotonic()
        try:
            async with open_stores(process, lock, databases, reign.led) as stores:
                reign.opened()
                return await serve(process, stores, began, reign)
        finally:
            reign.closed()


async def connect_zookeeper(process: Process) -> ZooKeeperCoordinator | None:
    """Return a coordinator that is reached, as soon as it can be; None if the node is to stop."""
    settings = zookeeper_settings(process.configuration)
    logger.info("connecting to ZooKeeper at %s", ", ".join(settings.connect.servers))
    told = ""
    while not process.stopping.is_set():
        coordinator = ZooKeeperCoordinator(settings)
        try:
            if await _unless_stopping(process, coordinator.start()):
                return coordinator
        except CoordinatorUnavailableError as error:
            if str(error) != told and not process.stopping.is_set():
                logger.warning("%s. This node tries again", str(error).rstrip("."))
            told = str(error)
            await _any_of(process.stopping, seconds=RETRY_SECONDS)
    return None


async def _unless_stopping(process: Process, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, and return whether it is done: it is cancelled if the node is to stop."""
    working = process.loop.create_task(work)
    stopping = process.loop.create_task(process.stopping.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def _any_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of several events is set, or the time is over."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def zookeeper_settings(configuration: Configuration) -> ZooKeeperSettings:
    """Return how ZooKeeper is spoken to."""
    tls = ZooKeeperTls(
        configuration.zookeeper_ca_file,
        configuration.zookeeper_certificate_file,
        configuration.zookeeper_key_file,
    )
    return ZooKeeperSettings(
        parse_connect_string(configuration.cluster),
        session_ms=configuration.cluster_session_ms,
        user=configuration.zookeeper_user or None,
        password=configuration.zookeeper_password.get_secret_value(),
        tls=tls if configuration.zookeeper_tls else None,
    )


def client_ports(configuration: Configuration) -> list[ClientPort]:
    """Return the ports of clients, as a node that does not lead opens them."""
    amqp = [
        refusal_of_clients(configuration, ConnectionClosingError(320, reason))
        for reason in (NO_LEADER, NOT_TAKEN)
    ]
    web = [refusal_in_http(reason) for reason in (NO_LEADER, NOT_TAKEN)]
    ports = []
    if configuration.plain_listener:
        ports.append(ClientPort("amqp", configuration.host, configuration.port, *amqp))
    if configuration.tls_certificate_file is not None:
        ports.append(ClientPort("amqp/ssl", configuration.host, configuration.tls_port, b"", b""))
    if configuration.http_port >= 0:
        host, port = configuration.http_host, configuration.http_port
        ports.append(ClientPort("http", host, port, *web))
    if configuration.https_port >= 0:
        host, port = configuration.https_host or configuration.host, configuration.https_port
        ports.append(ClientPort("https", host, port, b"", b""))
    return ports


def refusal_in_http(reason: str) -> bytes:
    """Return the answer to a request of a client that cannot be served now."""
    body = json.dumps({"error": "service_unavailable", "reason": reason}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
