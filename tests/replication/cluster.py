"""Nodes of a cluster in one process: real logs, real links on loopback, a coordinator in memory."""

from __future__ import annotations

import asyncio
import errno
import os
from functools import partial

from leveret.cluster.partition_state import Member, PartitionState
from leveret.cluster.replication.leader import ReplicationLimits
from leveret.links.accepted import Handlers
from leveret.links.handshake import HandshakeTerms
from leveret.links.identity import NodeIdentity
from leveret.links.links import Links
from leveret.node.process import SystemClock
from leveret.ports import Durability
from leveret.ports.coordination import KeyChange, NodeRegistration
from leveret.ports.link_kinds import REPLICATE
from leveret.replication.controlling import ControllerDuty
from leveret.replication.partition_table import PartitionTable
from leveret.replication.replica import PartitionReplica
from leveret.replication.replicator import PARTITIONS_PREFIX, Replicator
from leveret.storage.files import RealFileSystem
from leveret.zookeeper import ZooKeeperCoordinator, ZooKeeperSettings
from tests.links.nodes import QUICK, SECRET
from tests.memory_coordinator import MemoryEnsemble
from tests.storage.harness import PERSISTENT, abandon, bodies, make_store
from tests.support.waiting import eventually

KEYS = ("orders/0", "orders/1")
LIMITS = ReplicationLimits(lag_ms_max=1500, in_sync_min=2)


class FailingFiles(RealFileSystem):
    """Files on disk; the next `failing` calls that have directories or data flushed fail.

    While the disk `is_full`, nothing is written.
    """

    failing = 0
    is_full = False

    def pwrite(self, handle, data, position, /) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(handle, data, position)

    def _fail(self) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync_directory(self, path) -> None:
        self._fail()
        super().sync_directory(path)

    def fdatasync(self, handle) -> None:
        self._fail()
        super().fdatasync(handle)


class ReplicaNode:
    """One node. It may be killed, and started again with the same directory."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.data = cluster.directory / f"node-{number}"
        self.tasks: set[asyncio.Task] = set()
        self.is_up = False
        self.files = FailingFiles()
        self.reopening = asyncio.Event()  # cleared while a log that has failed cannot be opened
        self.reopening.set()
        self.told: list[tuple[str, bool | None]] = []  # partitions that changed, and `is_ready`

    def spawn(self, work) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.cluster.failures.append(task.exception())

    async def start(self) -> None:
        self.store = make_store(
            self.data,
            self.files,
            durability=self.cluster.durability,
            segment_bytes_max=20_000,
            settle_flush_interval_ms=20,
            settle_sync_interval_ms=50,
        )
        registration = NodeRegistration(self.number, "", "", directory=f"data-{self.number}")
        self.coordinator = await self.cluster.coordinators.open(registration, self.spawn)
        session = self.coordinator.session
        identity = NodeIdentity("c", self.number, session, "test", frozenset())
        handlers = Handlers({}, {}, {REPLICATE: self._serve})
        terms = HandshakeTerms(identity, SECRET, QUICK.limits)
        self.links = Links(terms, QUICK, handlers, self.spawn)
        self.address = await self.links.listen("localhost", 0)
        self.cluster.meet(self)
        self.replicator = Replicator(
            Member(self.number, 0),
            self.coordinator,
            self.links,
            SystemClock(),
            self.spawn,
            changed=self._changed,
        )
        self.logs = {key: self._open(key) for key in KEYS}
        self.replicator.start()
        for key, log in self.logs.items():
            self.replicator.add(self.replica(key, log))
        duty = ControllerDuty(self.coordinator, PartitionTable(self.coordinator), lambda _key: True)
        self.duty = self.spawn(duty.run())
        self.is_up = True

    def replica(self, key: str, log) -> PartitionReplica:
        return PartitionReplica(key, key, log, self.cluster.limits, partial(self._reopen, key))

    async def _reopen(self, key: str):
        await self.logs[key].close()
        await self.reopening.wait()
        self.logs[key] = self._open(key)
        return self.logs[key]

    def _open(self, key: str):
        topic, _, partition = key.partition("/")
        return self.store.open(
            "/", topic, "i1", int(partition), self.cluster.durability, has_replicas=True
        )

    def _changed(self, key: str) -> None:
        led = self.replicator.led(key)
        self.told.append((key, None if led is None else led.is_ready))

    def told_of(self, key: str) -> list[bool | None]:
        """Return what was told of a partition: whether it was ready, None if it is not led."""
        return [is_ready for told, is_ready in self.told if told == key]

    async def _serve(self, stream) -> None:
        await self.replicator.serve(stream)

    async def stop(self) -> None:
        """End as `kill -9` does; the coordinator notes it as soon as the session expires."""
        self.is_up = False
        abandon(self.store)
        await self.cluster.coordinators.lose(self.coordinator)
        for task in list(self.tasks):
            task.cancel()
        await self.links.close()
        await eventually(lambda: not self.tasks)


class MemoryCoordinators:
    """Coordinators in memory; a session that is lost expires at once."""

    def __init__(self) -> None:
        self._ensemble = MemoryEnsemble()

    async def open(self, registration, _spawn):
        return self._ensemble.open(registration)

    async def lose(self, coordinator) -> None:
        coordinator.lose_connection()
        coordinator.expire()


class ZooKeeperCoordinators:
    """Coordinators on a real ZooKeeper. A node gives up its session when it ends."""

    def __init__(self, address: str) -> None:
        self._settings = ZooKeeperSettings(address, session_timeout_ms=2000)

    async def open(self, registration, spawn):
        return await ZooKeeperCoordinator.open(self._settings, registration, spawn)

    async def lose(self, coordinator) -> None:
        await coordinator.close()


class Cluster:
    """Three nodes, two partitions on all of them."""

    def __init__(
        self, directory, durability=Durability.FSYNC, coordinators=None, *, limits=LIMITS
    ) -> None:
        self.directory = directory
        self.durability = durability
        self.limits = limits
        self.coordinators = coordinators or MemoryCoordinators()
        self.failures: list[BaseException] = []
        self.nodes = [ReplicaNode(self, number) for number in range(3)]

    async def __aenter__(self):
        for node in self.nodes:
            await node.start()
        members = frozenset(Member(number, 0) for number in range(3))
        changes = [
            KeyChange(PARTITIONS_PREFIX + key, PartitionState((0, 1, 2), members).to_bytes())
            for key in KEYS
        ]
        await self.nodes[0].coordinator.write(changes)
        return self

    async def __aexit__(self, *_):
        for node in self.nodes:
            if node.is_up:
                await node.stop()
        assert not self.failures

    def meet(self, node: ReplicaNode) -> None:
        """Tell all nodes the address of one, and it those of all."""
        for other in self.nodes:
            if other is not node and other.is_up:
                other.links.set_address(node.number, *node.address)
                node.links.set_address(other.number, *other.address)

    def state(self, key: str) -> PartitionState:
        """Return the state that a node which is there knows."""
        entries = next(node for node in self.nodes if node.is_up).coordinator.entries
        return PartitionState.from_bytes(entries[PARTITIONS_PREFIX + key].value)

    def leader(self, key: str) -> ReplicaNode | None:
        """Return who leads a partition and may deliver."""
        for node in self.nodes:
            if node.is_up:
                led = node.replicator.led(key)
                if led is not None and led.is_ready and led.machine.epoch == self.state(key).epoch:
                    return node
        return None

    async def led(self, key: str) -> ReplicaNode:
        await eventually(lambda: self.leader(key) is not None)
        return self.leader(key)

    async def publish(self, key: str, *sent: bytes) -> int:
        """Append at the leader. Returns the offset behind."""
        log = (await self.led(key)).logs[key]
        for body in sent:
            log.builder.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", b"header", body)
        return log.append() + len(sent)

    async def committed(self, key: str, offset: int) -> None:
        await eventually(
            lambda: all(n.logs[key].committed >= offset for n in self.nodes if n.is_up)
        )

    async def in_sync(self, key: str, *nodes: int) -> None:
        await eventually(partial(self._is_in_sync, key, set(nodes)))

    def _is_in_sync(self, key: str, nodes: set[int]) -> bool:
        return self.state(key).in_sync_nodes == nodes

    async def contents(self, key: str) -> list[dict[int, bytes]]:
        """Return what each node has that is committed there and not settled."""
        found = []
        for log in [node.logs[key] for node in self.nodes if node.is_up]:
            found.append({})
            for first, stop in log.settled.gaps(0, log.committed):
                found[-1] |= await bodies(log, first, stop)
        return found
