"""Nodes that replicate over real sockets and real files: one leads, dies, and another goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from leveret.cluster.links.connector import LinkDialing
from leveret.cluster.links.handshake import LinkIdentity
from leveret.cluster.links.link import LinkLimits
from leveret.cluster.links.links import Links
from leveret.cluster.plan import next_entry
from leveret.cluster.replica_runner import ReplicaRunner
from leveret.cluster.shard_links import ShardLinks
from leveret.ports import Durability, LogName
from leveret.ports.coordinator import WriteOutcome
from leveret.replication.messages import Acknowledge, Attached
from leveret.replication.replica import Replica, Role
from leveret.replication.shard import ShardEntry
from leveret.storage.files import RealFileSystem
from leveret.storage.led_logs import LedLogs
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore
from leveret.storage.threads import StorageThreads
from tests.storage.harness import FixedClock, NoLock, bodies, put
from tests.support.waiting import eventually

COUNT = 3
LOG = LogName("/", "orders", "i1", 0, Durability.FSYNC)
# Nothing ends a link but what the test does, however slow the machine is.
LIMITS = LinkLimits(silence_ms=3_600_000, handshake_ms=3_600_000, pause_ms_min=10, pause_ms_max=100)


class Entries:
    """The coordinator: an entry, and who is live. Everybody has the same."""

    def __init__(self) -> None:
        everybody = tuple(range(COUNT))
        self.entry = ShardEntry(None, 0, 0, frozenset(everybody), everybody, 1)
        self.live: dict[int, int] = {}
        self.incarnations = dict.fromkeys(everybody, 0)

    async def read(self) -> ShardEntry:
        return self.entry

    async def write(self, entry, members) -> WriteOutcome:
        await asyncio.sleep(0)
        current = all(self.incarnations[node] == incarnation for node, incarnation in members)
        if not current or entry.change != self.entry.change + 1:
            return WriteOutcome.CONFLICT
        self.entry = entry
        return WriteOutcome.DONE

    def control(self) -> None:
        planned = next_entry(self.entry, self.live, range(COUNT), COUNT)
        self.entry = planned or self.entry


class LogReign:
    """`Reign` with one log."""

    def __init__(self, store: FileTopicStore, logs: LedLogs, log) -> None:
        self.store, self.logs, self.log = store, logs, log
        self.is_over = False

    def members(self, count: int) -> None:
        pass

    def end(self, reason: str) -> None:
        self.is_over = True


class ReplicatingNode:
    """A node from its start to its end, without a broker."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number = cluster, number
        self.data = cluster.path / str(number)
        self.data.mkdir(exist_ok=True)
        entries = cluster.entries
        entries.incarnations[number] += 1
        self.incarnation = entries.live[number] = entries.incarnations[number]
        self.loop = asyncio.get_running_loop()
        self.threads = StorageThreads.start(self.loop, commit_threads=2, fetch_threads=2)
        self.state = LmdbStateStore(self.data / "state", logging.getLogger("test").warning)
        self.files = ReplicaStore(self.data, RealFileSystem(), self.state, self.loop, self.threads)
        self.shard = ShardLinks(0)
        self.tasks: set[asyncio.Task] = set()
        self.links = Links(
            LinkIdentity(b"c" * 16, number, self.incarnation, b"s" * 32),
            self.shard,
            LinkDialing(cluster.addresses.get, self.spawn),
            LIMITS,
        )
        self.runner = ReplicaRunner(
            Replica(number, self.incarnation, cluster.epochs[number]),
            self.files,
            self.shard,
            entries,
            keep_epoch=self._keep_epoch,
            lead=self._lead,
            now_ms=lambda: int(self.loop.time() * 1000),
            live=lambda: dict(entries.live),
        )
        self.shard.links, self.shard.runner = self.links, self.runner
        self.reign: LogReign | None = None

    def spawn(self, work):
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _keep_epoch(self, epoch: int) -> None:
        self.cluster.epochs[self.number] = max(epoch, self.cluster.epochs[self.number])

    async def listen(self) -> None:
        self.cluster.addresses[self.number] = await self.links.listen("127.0.0.1", 0)

    async def _lead(self, epoch: int) -> LogReign:
        logs = LedLogs(self.data, RealFileSystem(), self.loop, self.threads, self.runner)
        store = FileTopicStore(
            self.data,
            RealFileSystem(),
            self.state,
            self.loop,
            clock=FixedClock(),
            lock=NoLock(),
            threads=self.threads,
            epoch=epoch,
            copies=logs,
        )
        await store.recover([LOG])
        self.reign = LogReign(store, logs, store.open(*LOG[:5]))
        return self.reign

    @property
    def serves(self) -> bool:
        return (
            self.runner.replica.role is Role.LEADING
            and self.reign is not None
            and not self.reign.is_over
        )

    async def stop(self) -> None:
        """End, so that the disk is left as it is at this moment."""
        del self.cluster.nodes[self.number]
        self.links.close()
        await self.runner.close()
        if self.reign is not None:
            await self.reign.store.close()
        for task in list(self.tasks):
            task.cancel()
        self.threads.close()
        self.state.close()
        if self.cluster.entries.live.get(self.number) == self.incarnation:
            del self.cluster.entries.live[self.number]


class Cluster:
    def __init__(self, path) -> None:
        self.path = path
        self.entries = Entries()
        self.addresses: dict[int, tuple[str, int]] = {}
        self.epochs = [0] * COUNT
        self.nodes: dict[int, ReplicatingNode] = {}
        self.is_controlled = True
        self.failures = []
        asyncio.get_running_loop().set_exception_handler(self._failed)

    def _failed(self, loop, context) -> None:
        self.failures.append(context)

    async def start(self, number: int) -> ReplicatingNode:
        node = self.nodes[number] = ReplicatingNode(self, number)
        await node.listen()
        return node

    async def control(self) -> None:
        while True:
            self.entries.control()
            for node in list(self.nodes.values()):
                node.runner.learned(self.entries.entry)
                node.runner.tick()
            await asyncio.sleep(0.02)

    async def leader(self) -> ReplicatingNode:
        await eventually(lambda: any(node.serves for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.serves)

    async def in_sync(self, count: int) -> None:
        await eventually(lambda: len(self.entries.entry.isr) == count)

    def content(self, number: int) -> dict[str, bytes]:
        directory = self.path / str(number) / "topics"
        return {
            str(path.relative_to(directory)): path.read_bytes().rstrip(b"\0")
            for path in directory.rglob("*.log")
        }


@pytest.fixture
async def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    for number in range(COUNT):
        await cluster.start(number)
    control = asyncio.get_running_loop().create_task(cluster.control())
    yield cluster
    control.cancel()
    for node in list(cluster.nodes.values()):
        await node.stop()
    assert cluster.failures == []


async def publish(leader, first, count):
    """Publish and wait until all is committed."""
    log = leader.reign.log
    for number in range(first, first + count):
        put(log, b"%d" % number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: log.committed == log.end)


async def test_another_node_goes_on_with_all_that_was_committed(cluster):
    first = await cluster.leader()
    await publish(first, 0, 500)
    await first.stop()
    second = await cluster.leader()
    assert second is not first
    await cluster.in_sync(2)
    await publish(second, 500, 500)
    await cluster.start(first.number)
    await cluster.in_sync(3)
    await second.stop()
    third = await cluster.leader()
    log = third.reign.log
    assert log.end == 1000
    assert list((await bodies(log)).values()) == [b"%d" % number for number in range(1000)]
    await publish(third, 1000, 10)
    await cluster.start(second.number)
    await cluster.in_sync(3)
    await publish(third, 1010, 10)
    wanted = cluster.content(third.number)
    assert len(wanted) == 3  # one for each reign that has written
    for number in range(COUNT):
        await eventually(lambda number=number: cluster.content(number) == wanted)


async def test_messages_from_the_wrong_end_close_a_link(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    link, encoder, _ = follower.shard._present[True, leader.number]
    link.send(encoder.encode(Attached(1)))
    await eventually(lambda: not link.is_open)
    await eventually(lambda: (True, leader.number) in follower.shard._present)
    link, encoder, _ = leader.shard._present[False, follower.number]
    link.send(encoder.encode(Acknowledge(1, 1)))
    await eventually(lambda: not link.is_open)
    await publish(leader, 0, 10)


async def test_bytes_that_are_no_message_close_a_link(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    link, _, _ = follower.shard._present[True, leader.number]
    link.send([(5).to_bytes(4, "little") + b"\x99" * 5])
    await eventually(lambda: not link.is_open)
    await publish(leader, 0, 10)
