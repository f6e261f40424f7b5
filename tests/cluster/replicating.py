"""Nodes of a cluster without a broker: members with real links and stores, and one log."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from leveret.cluster.links.link import LinkLimits
from leveret.cluster.member import ClusterMember, MemberParts
from leveret.cluster.membership import NodeSettings
from leveret.ports import Durability, LogName
from leveret.replication.replica import Role
from leveret.storage.cluster_file import ClusterFile
from leveret.storage.files import RealFileSystem
from leveret.storage.led_logs import LedLogs
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore
from leveret.storage.threads import StorageThreads
from tests.storage.harness import FixedClock, NoLock, put
from tests.support.coordinator import FakeEnsemble
from tests.support.waiting import eventually

COUNT = 3
LOG = LogName("/", "orders", "i1", 0, Durability.FSYNC)
NEVER_MS = 3_600_000
# Nothing ends a link or a session but what the test does, however slow the machine is.
LIMITS = LinkLimits(silence_ms=NEVER_MS, handshake_ms=NEVER_MS, pause_ms_min=10, pause_ms_max=100)


class LoopTime:
    """The time of the loop, for a coordinator that needs some."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def seconds(self) -> float:
        return self.loop.time()

    def call_later(self, seconds, callback):
        return self.loop.call_later(seconds, callback)


class LogReign:
    """`Reign` with one log."""

    def __init__(self, store: FileTopicStore, logs: LedLogs) -> None:
        self.store, self.logs = store, logs
        self.is_over = False

    async def open(self) -> None:
        await self.store.recover([LOG])
        self.log = self.store.open(*LOG[:5])

    def set_in_sync_counts(self, in_sync: int, ever_in_sync: int) -> None:
        self.logs.set_in_sync_counts(in_sync, ever_in_sync)

    def end(self, reason: str) -> None:
        self.is_over = True


class ReplicatingNode:
    """A node from its start to its end, without a broker."""

    def __init__(
        self, cluster: Cluster, coordinator, number: int, directory: int, **settings
    ) -> None:
        self.cluster, self.number = cluster, number
        self.data = cluster.path / str(directory)
        self.data.mkdir(exist_ok=True)
        self.loop = asyncio.get_running_loop()
        self.threads = StorageThreads.start(self.loop, commit_threads=2, fetch_threads=2)
        self.state = LmdbStateStore(self.data / "state", logging.getLogger("test").warning)
        self.coordinator = coordinator
        self.reign: LogReign | None = None
        self.settings = NodeSettings(
            **{
                "node": number,
                "address": ("127.0.0.1", cluster.ports[number]),
                "rack": "",
                "release": "0.1.0",
                "has_data": (self.data / "topics").exists(),
                **settings,
            }
        )
        self.file = ClusterFile(RealFileSystem(), self.data)
        files = ReplicaStore(self.data, RealFileSystem(), self.state, self.loop, self.threads)
        parts = MemberParts(
            coordinator=self.coordinator,
            file=self.file,
            files=files,
            lead=self._lead,
            now_ms=cluster.now_ms,
            listen=("127.0.0.1", cluster.ports[number]),
            replicas=COUNT,
            limits=LIMITS,
        )
        self.member = ClusterMember(parts, self.settings)

    def _lead(self, epoch: int, events) -> LogReign:
        logs = LedLogs(self.data, RealFileSystem(), self.loop, self.threads, events)
        store = FileTopicStore(
            self.data,
            RealFileSystem(),
            self.state,
            self.loop,
            clock=FixedClock(),
            lock=NoLock(),
            threads=self.threads,
            epoch=epoch,
            led_logs=logs,
        )
        self.reign = LogReign(store, logs)
        return self.reign

    @property
    def links(self):
        """Present links: by direction and node."""
        return self.member.runner._links._present

    @property
    def serves(self) -> bool:
        if self.reign is None or self.reign.is_over or self.member.over.is_set():
            return False
        return self.member.runner.replica.role is Role.LEADING

    async def stop(self) -> None:
        """End, so that the disk is left as it is at this moment."""
        self.cluster.nodes.pop(self.number, None)
        await self.member.close()
        if self.reign is not None:
            await self.reign.store.close()
        await self.coordinator.close()
        self.threads.close()
        self.state.close()


class Cluster(ABC):
    """Nodes, and how they connect to their coordinator."""

    def __init__(self, path, ports) -> None:
        self.path, self.ports = path, ports
        self.nodes: dict[int, ReplicatingNode] = {}
        self.failures = []
        asyncio.get_running_loop().set_exception_handler(self._failed)

    def _failed(self, loop, context) -> None:
        self.failures.append(context)

    async def start(self, number: int, directory: int | None = None, **settings):
        directory = number if directory is None else directory
        coordinator = await self.connect(number)
        node = ReplicatingNode(self, coordinator, number, directory, **settings)
        try:
            await node.member.start()
        except BaseException:
            await node.stop()
            raise
        self.nodes[number] = node
        return node

    @abstractmethod
    def now_ms(self) -> int: ...

    @abstractmethod
    async def connect(self, number: int):
        """Return a node's coordinator, which is started."""

    async def leader(self) -> ReplicatingNode:
        await eventually(lambda: any(node.serves for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.serves)

    @property
    def isr(self) -> set[int]:
        node = next(iter(self.nodes.values()))
        entry = node.member.runner.replica.entry
        return set() if entry is None else set(entry.isr)

    async def in_sync(self, count: int) -> None:
        await eventually(lambda: len(self.isr) == count)

    def content(self, number: int) -> dict[str, bytes]:
        directory = self.path / str(number) / "topics"
        return {
            str(path.relative_to(directory)): path.read_bytes().rstrip(b"\0")
            for path in directory.rglob("*.log")
        }


class FakeCluster(Cluster):
    """Nodes with a coordinator of which nothing ends by itself."""

    def __init__(self, path, ports) -> None:
        super().__init__(path, ports)
        self.ensemble = FakeEnsemble(LoopTime(), session_ms=2 * NEVER_MS)

    def now_ms(self) -> int:
        return self.ensemble.now_ms()

    async def connect(self, number: int):
        return self.ensemble.client()


async def publish(leader, first, count):
    """Publish and wait until all is committed."""
    log = leader.reign.log
    for number in range(first, first + count):
        put(log, b"%d" % number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: log.committed == log.end)
