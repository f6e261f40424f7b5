"""Nodes with real stores on faulty files that replicate them, in one thread and from one seed.

Everything is the product's own but time, threads, disks, the network and the coordinator. Messages
travel as the bytes of their codec. The node that leads publishes, settles, compacts and deletes as
clients would have it do. `check` says whether something is lost that was confirmed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from leveret.cluster.entries import SHARD
from leveret.cluster.plan import next_entry
from leveret.cluster.replica_runner import ReplicaRunner
from leveret.errors import CorruptBatchError, LeveretError, StorageError
from leveret.ports import Compaction, Durability, LogName, Retention
from leveret.ports.coordinator import WriteOutcome
from leveret.replication.codec import LENGTH, LinkDecoder, LinkEncoder
from leveret.replication.replica import Replica, Role
from leveret.replication.shard import ShardEntry
from leveret.storage.led_logs import LedLogs
from leveret.storage.names import log_key
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from tests.cluster.simulated_time import SimulatedCommitter, SimulatedLoop, simulated_threads
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import PERSISTENT, FixedClock, NoLock, bodies, keyed

DATA = Path("/data")
TICK_SECONDS = 0.2
EXPIRES_SECONDS = 4.0
COMPACTS = Retention(compaction=Compaction(3_600_000))
WAIT_SECONDS = 60  # until something must have happened


class LostError(AssertionError):
    """Something that was confirmed is not there any more, or replicas differ."""


class Disk:
    """Everything of a node that outlives its processes."""

    def __init__(self) -> None:
        self.files = FaultyFileSystem()
        self.state = MemoryStateStore()
        self.epoch = 0
        self.incarnation = 0


class SimulatedLink:
    """A connection between two processes: frames arrive in their order, after a while."""

    def __init__(self, loop: SimulatedLoop, follower: NodeProcess, leader: NodeProcess) -> None:
        self._loop = loop
        self.ends = (follower, leader)
        self.is_open = True
        self._codecs = {end.node: (LinkEncoder(SHARD), LinkDecoder(SHARD)) for end in self.ends}
        self._arrives_at = {end.node: 0.0 for end in self.ends}

    def other(self, process: NodeProcess) -> NodeProcess:
        follower, leader = self.ends
        return leader if process is follower else follower

    def send(self, process: NodeProcess, message: object) -> None:
        pieces = self._codecs[process.node][0].encode(message)  # type: ignore[arg-type]
        frame = b"".join(pieces)[LENGTH.size :]
        self._arrive(self.other(process), partial(self._received, process, frame))

    def _arrive(self, at: NodeProcess, act: Callable[[], None]) -> None:
        due = max(self._arrives_at[at.node], self._loop.time()) + self._loop.delay()
        self._arrives_at[at.node] = due
        self._loop.call_at(due, act)

    def _received(self, sender: NodeProcess, frame: bytes) -> None:
        receiver = self.other(sender)
        if self.is_open and receiver.is_alive:
            message = self._codecs[receiver.node][1].decode(frame)
            receiver.runner.received(sender.node, message)

    def close(self) -> None:
        """End the link, which both ends are told, one after the other."""
        if not self.is_open:
            return
        self.is_open = False
        for process in self.ends:
            process.links.ended(self)


class SteadyDisk:
    """FlushFigures of a disk that is always quick, or never, however busy this machine is."""

    def __init__(self, *, quick: bool) -> None:
        self._is_quick = quick

    def are_quick(self) -> bool:
        return self._is_quick

    def ended(self, took_us: int, batches: int, *, failed: bool) -> None:
        """Change nothing."""


class SimulatedLinks:
    """`RunnerLinks` of a process."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._wanted: int | None = None
        self.open: dict[int, SimulatedLink] = {}

    def send(self, node: int, message: object) -> None:
        if node in self.open:
            self.open[node].send(self._process, message)

    def connect(self, node: int | None) -> None:
        self._wanted = node
        self._later()

    def _later(self) -> None:
        if self._wanted is not None and self._process.is_alive:
            delay = self._process.cluster.chance.uniform(0.01, 0.3)
            self._process.cluster.loop.call_later(delay, self._connect)

    def _connect(self) -> None:
        wanted, cluster = self._wanted, self._process.cluster
        if wanted is None or not self._process.is_alive or wanted in self.open:
            return
        leader = cluster.processes.get(wanted)
        if leader is None or cluster.is_cut(self._process.node, wanted):
            self._later()
            return
        if self._process.node in leader.links.open:
            leader.links.open[self._process.node].close()
        link = SimulatedLink(cluster.loop, self._process, leader)
        self.open[wanted] = leader.links.open[self._process.node] = link
        self._process.runner.connected(wanted)

    def disconnect(self, node: int) -> None:
        if node in self.open:
            self.open[node].close()

    def ended(self, link: SimulatedLink) -> None:
        node = link.other(self._process).node
        if self.open.get(node) is link:
            del self.open[node]
            if self._process.is_alive:
                self._process.runner.disconnected(node)
            self._later()


class SimulatedEntries:
    """`ShardEntries` of a process: reads and writes take a while, and answers get lost."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    async def read(self) -> ShardEntry | None:
        cluster = self._process.cluster
        await asyncio.sleep(cluster.loop.delay())
        return cluster.entry

    async def write(self, entry, members) -> WriteOutcome:
        cluster = self._process.cluster
        if cluster.chance.random() < cluster.loses_answers:
            cluster.loop.call_later(cluster.chance.uniform(0, 2), cluster.write, entry, members)
            await asyncio.sleep(0.05)
            return WriteOutcome.UNKNOWN
        await asyncio.sleep(cluster.loop.delay())
        done = cluster.write(entry, members)
        await asyncio.sleep(cluster.loop.delay())
        return WriteOutcome.DONE if done else WriteOutcome.CONFLICT


class SimulatedReign:
    """`Reign` of a process, with the logs of a few queues that it publishes to."""

    def __init__(self, process: NodeProcess, store: FileTopicStore, logs: LedLogs) -> None:
        self.process = process
        self.store = store
        self.logs = logs
        self.queues: dict[str, object] = {}
        self.is_over = False

    async def open(self) -> None:
        """Recover and open all logs, of which nothing confirmed may be missing."""
        cluster = self.process.cluster
        for topic in cluster.topics:
            await self.store.recover([LogName("/", topic, "i1", 0, Durability.FSYNC)])
            log = self.open_log(topic)
            await self.process.check(topic, log)
            cluster.forget_above(topic, log.end)
            self.note_committed(topic)

    def set_in_sync_counts(self, in_sync: int, ever_in_sync: int) -> None:
        pass

    def end(self, reason: str) -> None:
        self.is_over = True

    def open_log(self, topic: str) -> object:
        """Open a log that was recovered, or has no files yet."""
        retention = COMPACTS if topic.startswith("keyed") else None
        name = LogName("/", topic, "i1", 0, Durability.FSYNC)
        log = self.store.open(*name[:4], Durability.FSYNC, retention=retention)
        log.on_commit(partial(self.note_committed, topic))
        self.queues[topic] = log
        return log

    async def replace(self, topic: str) -> None:
        """Delete a log, of which nothing is to be found any more, and make another one."""
        cluster = self.process.cluster
        cluster.topics.remove(topic)
        cluster.number += 1
        other = f"{topic.partition('-')[0]}-{cluster.number}"
        cluster.declare(other)
        self.open_log(other)
        with suppress(StorageError):  # it comes back as one that nobody knows
            await self.queues.pop(topic).delete()

    def publish(self, topic: str, count: int, size: int) -> None:
        log, cluster = self.queues[topic], self.process.cluster
        first, sent = log.end, []
        for _ in range(count):
            cluster.number += 1
            sent.append(b"%d " % cluster.number + b"x" * size)
            key = b"%d" % cluster.chance.randrange(4)
            log.builder.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", keyed(key), sent[-1])
        try:
            log.append()
        except LeveretError:
            log.builder.clear()
            return
        cluster.written[topic] |= {first + at: body for at, body in enumerate(sent)}

    def note_committed(self, topic: str) -> None:
        """Note what is confirmed from now on: it must never get lost."""
        log, cluster = self.queues[topic], self.process.cluster
        if self.is_over or not self.process.is_alive:
            return
        for offset in range(cluster.confirmed_to[topic], log.committed):
            if offset in cluster.written[topic]:
                cluster.confirmed[topic][offset] = cluster.written[topic][offset]
        cluster.confirmed_to[topic] = max(cluster.confirmed_to[topic], log.committed)

    def settle(self, topic: str, first: int, stop: int) -> None:
        log, cluster = self.queues[topic], self.process.cluster
        for offset in range(first, min(stop, log.committed)):
            cluster.confirmed[topic].pop(offset, None)
        log.settle([(first, min(stop, log.committed))])


class NodeProcess:
    """A process of a node, from its start to its end."""

    def __init__(self, cluster: SimulatedCluster, node: int) -> None:
        self.cluster, self.node, self.disk = cluster, node, cluster.disks[node]
        self.is_alive = True
        self.threads = simulated_threads(cluster.loop)
        self.disk.incarnation += 1
        self.incarnation = self.disk.incarnation
        self.store = ReplicaStore(
            DATA,
            self.disk.files,
            self.disk.state,
            cluster.loop,
            self.threads,
            SteadyDisk(quick=cluster.chance.random() < 0.5),
            open_segments_max=2,
        )
        self.links = SimulatedLinks(self)
        self.reign: SimulatedReign | None = None
        self.runner = ReplicaRunner(
            Replica(node, self.incarnation, self.disk.epoch),
            self.store,
            self.links,
            SimulatedEntries(self),
            keep_epoch=self._keep_epoch,
            lead=self._lead,
            now_ms=cluster.now_ms,
            live=lambda: dict(cluster.live),
        )
        cluster.loop.call_later(cluster.chance.uniform(0, 0.3), self._tick)

    def _keep_epoch(self, epoch: int) -> None:
        self.disk.epoch = max(self.disk.epoch, epoch)

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self.cluster.live.get(self.node) != self.incarnation:
            self.cluster.kill(self.node)  # it has no lease any more
            return
        if self.cluster.chance.random() < 0.5:
            self.runner.learned(self.cluster.entry)
        self.runner.tick()
        if self.runner.replica.role is Role.OVER:
            self.cluster.kill(self.node)
            return
        self.cluster.loop.call_later(TICK_SECONDS, self._tick)

    def _lead(self, epoch: int) -> SimulatedReign:
        loop, cluster = self.cluster.loop, self.cluster
        logs = LedLogs(DATA, self.disk.files, loop, self.threads, self.runner)
        store = FileTopicStore(
            DATA,
            self.disk.files,
            self.disk.state,
            loop,
            clock=FixedClock(),
            limits=StorageLimits(
                segment_bytes_max=cluster.segment_bytes,
                tail_cache_bytes_max=600,
                settle_flush_interval_ms=50,
                compaction_bytes_per_s=1 << 40,
                open_files_max=3,
            ),
            lock=NoLock(),
            threads=self.threads,
            boot=b"%16d" % 1,
            epoch=epoch,
            led_logs=logs,
        )
        store.compactor.worker = SimulatedCommitter(loop)
        reign = SimulatedReign(self, store, logs)
        self.reign = reign
        return reign

    async def check(self, topic: str, log) -> None:
        confirmed = self.cluster.confirmed[topic]
        missing = [offset for offset in confirmed if offset >= log.end or offset in log.settled]
        if log.compaction is not None:  # older records of a key may be gone
            missing = [offset for offset in missing if offset >= log.end]
        if missing:
            raise LostError(f"node {self.node} lacks {missing} of {topic}, which ends at {log.end}")
        for offset in sorted(confirmed.keys() - set(missing))[:3] + sorted(confirmed)[-3:]:
            if offset in log.settled:
                continue
            try:
                found = await bodies(log, offset, offset + 1)
            except CorruptBatchError as error:
                raise LostError(f"{topic}: {error}") from error
            if found != {offset: confirmed[offset]}:
                raise LostError(f"offset {offset} of {topic} is {found}")

    def die(self) -> None:
        """End without a word."""
        self.is_alive = False
        self.threads.committer.close()
        self.threads.pool.shutdown()
        for link in list(self.links.open.values()):
            self.cluster.loop.call_later(self.cluster.loop.delay(), link.close)
        refresh = self.runner._refresh._task
        for task in [*self.runner._tasks._tasks, *([] if refresh is None else [refresh])]:
            task.cancel()
        if self.reign is not None:
            store = self.reign.store
            store.compactor.stop()
            for timer in (store._settle_timer, store._flush_timer, store._retention_timer):
                if timer is not None:
                    timer.cancel()
            store._notes.stop()
            for log in store.logs():
                log._closed = True
        self.store._notes.stop()


class SimulatedCluster:
    """Nodes of which the processes come and go."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, count: int = 3) -> None:
        self.loop, self.chance = loop, chance
        self.disks = [Disk() for _ in range(count)]
        self.processes: dict[int, NodeProcess] = {}
        self.live: dict[int, int] = {}
        everybody = tuple(range(count))
        self.entry = ShardEntry(None, 0, 0, frozenset(everybody), everybody, 1)
        self.segment_bytes = chance.choice((900, 3000, 20_000))
        self.loses_answers = 0.05
        self.cuts: set[frozenset[int]] = set()
        self.topics: list[str] = []
        self.number = 0
        self.written: dict[str, dict[int, bytes]] = {}
        self.confirmed: dict[str, dict[int, bytes]] = {}
        self.confirmed_to: dict[str, int] = {}
        for kind in ("one", "two", "keyed"):
            self.declare(kind)
        self.elections = 0
        self.failures: list[BaseException] = []
        loop.set_exception_handler(self._failed)
        loop.call_later(0.1, self._control)

    def _failed(self, loop: object, context: dict) -> None:
        error = context.get("exception")
        if error is not None:
            self.failures.append(error)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def is_cut(self, node: int, other: int) -> bool:
        return frozenset((node, other)) in self.cuts

    def declare(self, topic: str) -> None:
        self.topics.append(topic)
        self.written[topic], self.confirmed[topic], self.confirmed_to[topic] = {}, {}, 0

    def forget_above(self, topic: str, end: int) -> None:
        """Forget what was written and not confirmed, since another leader's log ends before it."""
        for offset in [offset for offset in self.written[topic] if offset >= end]:
            del self.written[topic][offset]

    # -- the coordinator

    def write(self, entry: ShardEntry, members) -> bool:
        fits = entry.change == self.entry.change + 1 and all(
            self.disks[node].incarnation == incarnation for node, incarnation in members
        )
        if fits:
            self.entry = entry
        return fits

    def _control(self) -> None:
        """Do what the controller does."""
        count = len(self.disks)
        planned = next_entry(self.entry, self.live, range(count), count)
        if planned is not None:
            self.elections += planned.epoch > self.entry.epoch
            self.entry = planned
        self.loop.call_later(self.chance.uniform(0.1, 0.3), self._control)

    # -- processes

    def start(self, node: int) -> None:
        self.processes[node] = process = NodeProcess(self, node)
        self.live[node] = process.incarnation

    def kill(self, node: int, kept_bytes: int | None = None) -> None:
        """End a process; or a machine, which keeps so many bytes of what was not flushed."""
        process = self.processes.pop(node)
        process.die()
        disk = process.disk
        if kept_bytes is None:
            disk.files = disk.files.lose_process()
        else:
            keeps_names = self.chance.random() < 0.5
            disk.files = disk.files.lose_machine(kept_bytes, keeps_names=keeps_names)
        incarnation = process.incarnation
        if self.live.get(node) == incarnation:
            self.loop.call_later(EXPIRES_SECONDS, self._expire, node, incarnation)

    def _expire(self, node: int, incarnation: int) -> None:
        if self.live.get(node) == incarnation:
            del self.live[node]

    def serving(self) -> NodeProcess | None:
        for process in self.processes.values():
            if process.runner.replica.role is Role.LEADING and not process.reign.is_over:
                return process
        return None

    def is_in_sync(self) -> bool:
        """Whether somebody serves, everybody is in sync, and all that was written is committed."""
        leader = self.serving()
        if leader is None or self.entry.isr != frozenset(range(len(self.disks))):
            return False
        copies = leader.runner.replica.leader._copies.values()
        return all(
            copy.is_attached and copy.unsafe_since() is None and not copy.unsafe for copy in copies
        ) and all(log.committed == log.end for log in leader.reign.store.logs())

    def check_equal(self) -> None:
        """Raise LostError unless all nodes have the same files with the same content."""
        leader = self.serving()
        logs = leader.reign.store.logs()
        used = {str(segment.path) for log in logs for segment in log.segments}
        topics = {str(log.directory) for log in logs}
        # What the leader could not remove is no part of its logs any more.
        contents = self._contents(leader.node)
        wanted = {path: content for path, content in contents.items() if path in used}
        for node in set(self.processes) - {leader.node}:
            found = {
                path: content
                for path, content in self._contents(node).items()
                if str(Path(path).parent) in topics  # a log may come back that was deleted
            }
            if found != wanted:
                differ = {path for path in wanted | found if wanted.get(path) != found.get(path)}
                raise LostError(f"node {node} differs from {leader.node} in {sorted(differ)}")

    def _contents(self, node: int) -> dict[str, bytes]:
        files = self.disks[node].files
        return {
            str(path): bytes(content.cached).rstrip(b"\0")
            for path, content in files.files.items()
            if path.suffix == ".log" and ".deleted" not in path.parts
        }


def key_of(topic: str) -> str:
    return log_key("/", topic, "i1", 0)
