"""A node as a member of a cluster: it follows and passes clients on, or leads and serves them.

Whoever has led does not follow in the same process: at the end of its reign the process begins
anew, so that nothing that it knew of its logs is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import resource
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from leveret import __version__
from leveret.cluster.client_proxy import ClientProxy
from leveret.cluster.coordination.zookeeper import boottime_ms
from leveret.cluster.member import ClusterMember, MemberParts
from leveret.cluster.member_facts import UnconnectedNode
from leveret.cluster.membership import NodeSettings
from leveret.errors import DiskFullError
from leveret.mgmt_ui.control import ControlServer
from leveret.mgmt_ui.managed import FollowingNode
from leveret.mgmt_ui.operations.runtime import Listener
from leveret.mgmt_ui.readiness import tell_ready
from leveret.mgmt_ui.server import FollowingMetricsServer
from leveret.node.client_ports import client_ports
from leveret.node.following import perform_following
from leveret.node.open_files import passed_clients_max
from leveret.node.reign import NodeReign
from leveret.node.serving import serve
from leveret.node.stores import open_databases, open_stores
from leveret.node.zookeeper import connect_zookeeper
from leveret.ports.coordinator import CoordinatorUnavailableError
from leveret.storage.cluster_file import ClusterFile
from leveret.storage.files import RealFileSystem
from leveret.storage.names import list_logs
from leveret.storage.replica_files import newest_epoch
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.snapshot import remove_snapshot
from leveret.storage.store import StorageLimits
from leveret.storage.threads import StorageThreads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeAlias

    from leveret.node.process import Process
    from leveret.node.stores import Databases
    from leveret.ports.cluster import ClusterView
    from leveret.ports.coordinator import Coordinator
    from leveret.storage.lock import DirectoryLock

    Connect: TypeAlias = Callable[[Process], Awaitable[Coordinator | None]]

__all__ = ["ClusteredNode", "serve_in_cluster"]

logger = logging.getLogger("leveret.cluster")

RETRY_SECONDS = 1.0  # before a node that could not register tries again
CLOSE_SECONDS = 10.0  # of a member whose disk may hang: longer than a flush of any that does not
GOES_ON = "; this node follows again by itself once there is space"


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


async def _any_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of several events is set, or the time is over."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
