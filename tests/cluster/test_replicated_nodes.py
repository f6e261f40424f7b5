"""Members of a cluster over real sockets and real files: one leads, dies, and another goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from leveret.cluster.entries import CLUSTER, MalformedEntryError, shard_path
from leveret.cluster.links.link import LinkLimits
from leveret.cluster.member import ClusterMember, MemberParts
from leveret.cluster.membership import MembershipError, NodeSettings
from leveret.errors import StorageError
from leveret.ports import Durability, LogName
from leveret.replication.messages import Acknowledge, Attached
from leveret.replication.replica import Role
from leveret.storage.cluster_file import ClusterFile
from leveret.storage.files import RealFileSystem
from leveret.storage.led_logs import LedLogs
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore
from leveret.storage.threads import StorageThreads
from tests.storage.harness import FixedClock, NoLock, bodies, put
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

    def __init__(self, store: FileTopicStore, logs: LedLogs, log) -> None:
        self.store, self.logs, self.log = store, logs, log
        self.is_over = False

    def members(self, count: int) -> None:
        pass

    def end(self, reason: str) -> None:
        self.is_over = True


class ReplicatingNode:
    """A node from its start to its end, without a broker."""

    def __init__(self, cluster: Cluster, number: int, directory: int, **settings) -> None:
        self.cluster, self.number = cluster, number
        self.data = cluster.path / str(directory)
        self.data.mkdir(exist_ok=True)
        self.loop = asyncio.get_running_loop()
        self.threads = StorageThreads.start(self.loop, commit_threads=2, fetch_threads=2)
        self.state = LmdbStateStore(self.data / "state", logging.getLogger("test").warning)
        self.coordinator = cluster.ensemble.client()
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
        files = ReplicaStore(self.data, RealFileSystem(), self.state, self.loop, self.threads)
        parts = MemberParts(
            coordinator=self.coordinator,
            file=ClusterFile(RealFileSystem(), self.data),
            files=files,
            lead=self._lead,
            now_ms=cluster.ensemble.now_ms,
            listen=("127.0.0.1", cluster.ports[number]),
            replicas=COUNT,
            limits=LIMITS,
        )
        self.member = ClusterMember(parts, self.settings)

    async def _lead(self, epoch: int, events) -> LogReign:
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
            copies=logs,
        )
        await store.recover([LOG])
        self.reign = LogReign(store, logs, store.open(*LOG[:5]))
        return self.reign

    @property
    def links(self):
        """Present links: by direction and node."""
        return self.member.runner._links._present

    @property
    def serves(self) -> bool:
        if self.reign is None or self.reign.is_over or self.member.over.is_set():
            return False
        return self.member.role is Role.LEADING

    async def stop(self) -> None:
        """End, so that the disk is left as it is at this moment."""
        self.cluster.nodes.pop(self.number, None)
        await self.member.close()
        if self.reign is not None:
            await self.reign.store.close()
        await self.coordinator.close()
        self.threads.close()
        self.state.close()


class Cluster:
    def __init__(self, path, ports) -> None:
        self.path, self.ports = path, ports
        self.ensemble = FakeEnsemble(LoopTime(), session_ms=2 * NEVER_MS)
        self.nodes: dict[int, ReplicatingNode] = {}
        self.failures = []
        asyncio.get_running_loop().set_exception_handler(self._failed)

    def _failed(self, loop, context) -> None:
        self.failures.append(context)

    async def start(self, number: int, directory: int | None = None, **settings):
        directory = number if directory is None else directory
        node = ReplicatingNode(self, number, directory, **settings)
        try:
            await node.member.start()
        except BaseException:
            await node.stop()
            raise
        self.nodes[number] = node
        return node

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


@pytest.fixture
async def empty(tmp_path, unused_tcp_port_factory):
    cluster = Cluster(tmp_path, [unused_tcp_port_factory() for _ in range(COUNT + 1)])
    yield cluster
    for node in list(cluster.nodes.values()):
        await node.stop()
    assert cluster.failures == []


@pytest.fixture
async def cluster(empty):
    for number in range(COUNT):
        await empty.start(number)
    return empty


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
    await cluster.in_sync(3)
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
    link, encoder, _ = follower.links[True, leader.number]
    link.send(encoder.encode(Attached(1)))
    await eventually(lambda: not link.is_open)
    await eventually(lambda: (True, leader.number) in follower.links)
    link, encoder, _ = leader.links[False, follower.number]
    link.send(encoder.encode(Acknowledge(1, 1)))
    await eventually(lambda: not link.is_open)
    await publish(leader, 0, 10)


async def test_bytes_that_are_no_message_close_a_link(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    link, _, _ = follower.links[True, leader.number]
    link.send([(5).to_bytes(4, "little") + b"\x99" * 5])
    await eventually(lambda: not link.is_open)
    await publish(leader, 0, 10)


async def test_a_leader_whose_session_is_over_serves_nobody(cluster):
    first = await cluster.leader()
    await cluster.in_sync(3)
    await publish(first, 0, 10)
    cluster.ensemble.expire(first.coordinator.session)
    await eventually(first.member.over.is_set)
    assert first.reign.is_over
    assert "session" in first.member.reason
    second = await cluster.leader()
    await publish(second, 10, 10)


async def test_a_leader_without_a_lease_serves_nobody(cluster):
    first = await cluster.leader()
    first.coordinator._lease.until_ms = 0
    first.coordinator.is_reachable = False
    await eventually(first.member.over.is_set)
    assert first.reign.is_over
    assert "lease" in first.member.reason


async def test_the_first_nodes_logs_are_the_clusters(empty):
    first = await empty.start(0)
    await publish(await empty.leader(), 0, 20)
    await empty.start(1)
    await empty.in_sync(2)
    await first.stop()
    second = await empty.leader()
    assert second.reign.log.end == 20


@pytest.mark.parametrize(
    ("number", "directory", "problem"),
    [
        (0, 3, "is registered with a data directory, and this is another one"),
        (1, 0, "the data directory is that of node 0"),
        (3, 4, "holds queues, which would be lost"),
    ],
)
async def test_a_directory_that_is_not_the_nodes_is_refused(empty, number, directory, problem):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    (empty.path / "4" / "topics").mkdir(parents=True)
    with pytest.raises(MembershipError, match=problem):
        await empty.start(number, directory)
    await empty.start(0)
    await empty.leader()


async def test_a_directory_of_another_cluster_is_refused(empty):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    other = empty.ensemble.entries
    empty.ensemble.entries = {}
    with pytest.raises(MembershipError, match="the coordinator knows no cluster"):
        await empty.start(0)
    await (await empty.start(1)).stop()
    with pytest.raises(MembershipError, match="belongs to cluster"):
        await empty.start(0)
    empty.ensemble.entries = other
    await empty.start(0)


async def test_a_node_that_has_lost_its_disk_copies_everything_anew(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    await publish(leader, 0, 50)
    lost = next(node for node in cluster.nodes.values() if node is not leader)
    await lost.stop()
    with pytest.raises(MembershipError, match="or its disk was lost"):
        await cluster.start(lost.number, directory=7)
    node = await cluster.start(lost.number, directory=7, replaces=True)
    await cluster.in_sync(3)
    await eventually(lambda: cluster.content(7) == cluster.content(leader.number))
    assert node.member.role is Role.FOLLOWING


async def test_a_cluster_that_nobody_understands_is_told(empty):
    first = await empty.start(0)
    await first.stop()
    entries = empty.ensemble.entries
    entry = entries[CLUSTER]
    entries[CLUSTER] = entry._replace(value=b"{}")
    with pytest.raises(MalformedEntryError, match=r"entry /cluster is not .* \(id: Field required"):
        await empty.start(0)
    entries[CLUSTER] = entry._replace(value=entry.value.replace(b'"format":1', b'"format":2'))
    with pytest.raises(MalformedEntryError, match="upgrade this node"):
        await empty.start(0)


async def test_nobody_acts_on_a_shard_that_nobody_understands(empty, caplog):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    entries, path = empty.ensemble.entries, shard_path(0)
    entry = entries[path]
    entries[path] = entry._replace(value=b'{"leader": [0, 1]}')
    await empty.start(0)
    await eventually(lambda: "entry /shards/0 is not as this release writes it" in caplog.text)
    entries[path] = entry._replace(version=7)
    await empty.leader()


async def test_a_damaged_cluster_file_is_told(empty):
    first = await empty.start(0)
    await first.stop()
    (empty.path / "0" / "cluster.json").write_text('{"format": 1}')
    with pytest.raises(StorageError, match="is damaged"):
        ClusterFile(RealFileSystem(), empty.path / "0")
