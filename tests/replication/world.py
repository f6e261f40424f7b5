"""Nodes, their disks and links, and a coordinator, in one thread and without any time but its own.

Whatever may happen next is done by a call: a message arrives, a flush ends, a write of the
coordinator is done, its answer comes or is lost, a process dies. A test makes those of a trace; a
walk draws them from a seed. `check` says which invariant is broken, by its name in the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from leveret.cluster.plan import next_entry
from leveret.ports.coordinator import WriteOutcome
from leveret.ports.replication import START, LogFiles, LogPlace, RawBatches
from leveret.replication import effects as do
from leveret.replication.attaching import compare
from leveret.replication.lease import Lease
from leveret.replication.limits import ReplicationLimits
from leveret.replication.messages import Append, Attach, Copy, Drop, Message, Remove
from leveret.replication.replica import Replica, Role
from leveret.replication.shard import ShardEntry
from tests.replication.virtual_log import VirtualBatch, VirtualFile, VirtualLog

SESSION_MS = 4_000
PAUSE_MS = 200  # before a node whose disk has failed connects again


class BrokenError(AssertionError):
    """An invariant does not hold."""


@dataclass
class Disk:
    """Disk of a node: its logs, the epoch it has acted in, and its last incarnation."""

    logs: dict[str, VirtualLog] = field(default_factory=dict)
    epoch: int = 0
    incarnation: int = 0
    acted: int = 0  # highest epoch in which it has led or attached, for the check alone
    damage: dict[str, int] = field(default_factory=dict)  # index of a flushed batch that is damaged

    def log(self, name: str) -> VirtualLog:
        return self.logs.setdefault(name, VirtualLog(name))


@dataclass
class Link:
    """A connection; None in a queue is its end."""

    follower: int
    leader: int
    to_leader: deque[Message | None] = field(default_factory=deque)
    to_follower: deque[Message | None] = field(default_factory=deque)


@dataclass
class Write:
    """A write under way; nobody waits for the answer of one without an author."""

    author: Process | None
    entry: ShardEntry
    members: tuple[tuple[int, int], ...]
    outcome: WriteOutcome | None = None


@dataclass
class OpenLog:
    """A log that its node leads. It is committed up to an index."""

    log: VirtualLog
    replicated: int
    committed: int
    is_flushing: bool = False


class Process:
    """A node from a start to its end."""

    def __init__(self, node: int, disk: Disk, limits: ReplicationLimits) -> None:
        self.node = node
        self.disk = disk
        self.replica = Replica(node, disk.incarnation, disk.epoch, limits)
        self.lease = Lease(SESSION_MS)
        self.work: list[tuple[str, Callable[[], None]]] = []  # of its disk, done in any order
        self.doubtful: set[str] = set()  # logs of which a flush has failed
        self.connects_from_ms = 0  # after an error of its disk
        self.wanted: int | None = None  # whom it keeps a link to
        self.outgoing: Link | None = None
        self.incoming: dict[int, Link] = {}
        self.open: dict[str, OpenLog] = {}
        self.removals: list[Remove | Drop | tuple[str, VirtualFile]] = []  # at the next flush
        self.drafts: dict[str, VirtualFile] = {}
        self.described: dict[str, LogFiles] = {}  # its logs, as it was told last
        self.attachment = 0
        self.reads_entry = False
        self.in_sync = 0  # nodes, in a reign
        self.is_over = False  # whether it has been told to end its reign
        self.seen_live: dict[int, int] = {}  # as it has read it, some time ago


class World:
    """Nodes with replicas of one shard. `read_max` batches are sent in one operation."""

    def __init__(
        self,
        count: int = 3,
        *,
        members: frozenset[int] | None = None,
        members_min: int = 1,
        limits: ReplicationLimits | None = None,
    ) -> None:
        self.limits = limits or ReplicationLimits()
        self.now = 0
        self.members_min = members_min
        self.read_max = 2
        self.reads_early = False  # whether logs are read a while before that is answered
        self.value = 0
        self.disks = [Disk() for _ in range(count)]
        self.processes: list[Process | None] = [None] * count
        everybody = tuple(range(count))
        isr = frozenset(everybody) if members is None else members
        self.entry = ShardEntry(None, 0, 0, isr, everybody, 1)
        self.former: list[ShardEntry] = []  # the last entry of each reign before
        self.live: dict[int, int] = {}
        self.seen_live: dict[int, int] = {}  # as a controller has read it, some time ago
        self.sessions: dict[int, int] = {}  # when each was renewed last
        self.writes: list[Write] = []
        self.decided: dict[str, dict[int, VirtualBatch]] = {}
        self.settled: dict[str, int] = {}  # index before which all is settled, by what is decided
        self.checked: dict[str, object] = {}  # state of a log that was checked last
        self.dropped: set[str] = set()
        self.served: dict[int, int] = {}  # epoch → node

    # -- what nodes do

    def perform(self, process: Process, effects: list[do.Effect]) -> None:
        for effect in effects:
            PERFORM[type(effect)](self, process, effect)
        if process.replica.role is Role.OVER and self.processes[process.node] is process:
            self.crash(process.node)

    def _send(self, process: Process, effect: do.Send) -> None:
        link = process.outgoing
        if isinstance(effect.message, Attach):
            self._acts(process, effect.message.epoch)
        if link is not None and link.leader == effect.node:
            link.to_leader.append(effect.message)
        elif effect.node in process.incoming:
            process.incoming[effect.node].to_follower.append(effect.message)

    def _connect(self, process: Process, effect: do.Connect) -> None:
        process.wanted = effect.node

    def _disconnect(self, process: Process, effect: do.Disconnect) -> None:
        self.disconnect(process, effect.node)

    def _keep_epoch(self, process: Process, effect: do.KeepEpoch) -> None:
        def done() -> None:
            process.disk.epoch = max(process.disk.epoch, effect.epoch)
            self.perform(process, process.replica.kept_epoch(effect.epoch))

        process.work.append(("keep epoch", done))

    def _describe_logs(self, process: Process, effect: do.DescribeLogs) -> None:
        process.removals, process.drafts = [], {}
        process.attachment += 1

        def done() -> None:
            if process.disk.damage and effect.keeps:
                process.connects_from_ms = self.now + PAUSE_MS
                self.perform(process, process.replica.damaged("a log has less than was flushed"))
                return
            self._cut_damage(process.disk)
            for log in process.disk.logs.values():
                log.flushed = log.end
            process.doubtful.clear()
            process.described = self._describe_all(process)
            described = tuple(process.described.values())
            self.perform(process, process.replica.described(effect.number, described))

        process.work.append(("describe", done))

    @staticmethod
    def _describe_all(process: Process) -> dict[str, LogFiles]:
        return {name: log.describe() for name, log in process.disk.logs.items() if log.files}

    @staticmethod
    def _cut_damage(disk: Disk) -> None:
        for name, index in disk.damage.items():
            log = disk.logs.get(name)
            if log is not None and index < log.end:
                log.cut(log.place_at(index))
                log.cuts += 1
        disk.damage.clear()

    def _cut_logs(self, process: Process, effect: do.CutLogs) -> None:
        def done() -> None:
            for name, place in effect.cuts:
                log = process.disk.log(name)
                log.cut(place)
                log.flushed = min(log.flushed, log.end)
                log.cuts += 1
            self.perform(process, process.replica.cut(effect.number))

        process.work.append(("cut", done))

    def _carry_out(self, process: Process, effect: do.CarryOut) -> None:
        for operation in effect.operations:
            if isinstance(operation, Append):
                log = process.disk.log(operation.log)
                log.append(operation.place, list(operation.data))  # type: ignore[arg-type]
            elif isinstance(operation, Copy):
                self._copy(process, operation)
            else:
                process.removals.append(operation)
        if process.replica.entry is not None:
            self._acts(process, process.replica.entry.epoch)

    def _copy(self, process: Process, operation: Copy) -> None:
        batches = list(operation.data)
        draft = process.drafts.get(operation.log)
        if operation.place.position == 0:
            base, revision, _ = operation.place
            draft = process.drafts[operation.log] = VirtualFile(base, revision, batches[0].index)
        assert draft is not None
        draft.batches += batches  # type: ignore[arg-type]
        if operation.is_last:
            process.removals.append((operation.log, process.drafts.pop(operation.log)))

    def _flush_logs(self, process: Process, effect: do.FlushLogs) -> None:
        covered = [(log, log.end, log.cuts) for log in process.disk.logs.values()]
        removals, process.removals = process.removals, []
        attachment = process.attachment

        def done() -> None:
            if any(log.name in process.doubtful for log, _, _ in covered):
                raise BrokenError("a flush that has failed is done again")
            for log, end, cuts in covered:
                if log.cuts == cuts:
                    log.flushed = max(log.flushed, min(end, log.end))
            for removal in removals if process.attachment == attachment else ():
                self._remove(process.disk, removal)
            self.perform(process, process.replica.flushed(effect.number))

        process.work.append(("flush", done))

    @staticmethod
    def _remove(disk: Disk, removal: Remove | Drop | tuple[str, VirtualFile]) -> None:
        if isinstance(removal, Drop):
            disk.logs.pop(removal.log, None)
        elif isinstance(removal, Remove):
            disk.log(removal.log).remove((removal.base, removal.revision))
        else:
            name, file = removal
            disk.log(name).add(file)

    def _compare_logs(self, process: Process, effect: do.CompareLogs) -> None:
        if process.replica.entry is not None:
            self._acts(process, process.replica.entry.epoch)

        def done() -> None:
            leader = process.replica.leader
            is_open = leader is not None and leader.is_open
            ours = self._describe_all(process) if is_open else process.described
            has_last = partial(self._has_last, process)
            comparison = compare(ours, effect.logs, keeps=effect.keeps, has_last=has_last)
            replica = process.replica
            self.perform(
                process, replica.compared(effect.follower, effect.number, comparison, self.now)
            )

        process.work.append(("compare", done))

    @staticmethod
    def _has_last(process: Process, theirs: LogFiles) -> bool:
        return process.disk.logs[theirs.log].checksum_at(theirs.last) == theirs.checksum

    def _read_log(self, process: Process, effect: do.ReadLog) -> None:
        def read() -> RawBatches | None:
            log = process.disk.logs.get(effect.log)
            if log is None:  # it was deleted
                return RawBatches(bytearray(), START, 0)
            return log.read(effect.place, self.read_max)

        early = read() if self.reads_early else None

        def done() -> None:
            raw = early or read()
            self.perform(process, process.replica.read(effect.follower, effect.number, raw))

        process.work.append(("read", done))

    def _open_logs(self, process: Process, effect: do.OpenLogs) -> None:
        def done() -> None:
            for name in self.decided:
                self.decide(process.disk.log(name), process.disk.log(name).end)
            process.disk.damage.clear()  # what is damaged is set aside, and told
            process.doubtful.clear()  # files are not written to any more whose flush has failed
            for log in process.disk.logs.values():
                log.flushed = log.end
                process.open[log.name] = OpenLog(log, log.end, log.end)
                self.decide(log, log.end)
            self._acts(process, effect.epoch)
            self.perform(process, process.replica.opened())

        process.work.append(("open", done))

    def _replicated(self, process: Process, effect: do.Replicated) -> None:
        log = process.open[effect.log]
        index = log.log.index_of(effect.place)
        assert index is not None
        log.replicated = max(log.replicated, index)
        self._commit(process, log)

    def _set_in_sync_counts(self, process: Process, effect: do.SetInSyncCounts) -> None:
        process.in_sync = effect.in_sync
        for log in process.open.values():
            self._commit(process, log)

    def _read_entry(self, process: Process, effect: do.ReadEntry) -> None:
        process.reads_entry = True

    def _write_entry(self, process: Process, effect: do.WriteEntry) -> None:
        if effect.members and process.replica.role is not Role.LEADING:
            raise BrokenError(f"node {process.node} makes the set larger before it is open")
        leader = process.replica.leader
        leads = leader is not None and effect.entry.leader is not None
        is_described = all(what != "describe" for what, _ in process.work)
        if leads and effect.entry.isr < leader.set.recorded.isr and not is_described:
            raise BrokenError(f"node {process.node} makes the set smaller before it is described")
        self.writes.append(Write(process, effect.entry, effect.members))

    def _end_reign(self, process: Process, effect: do.EndReign) -> None:
        process.is_over = True

    def _acts(self, process: Process, epoch: int) -> None:
        if epoch < process.disk.acted:
            raise BrokenError(f"I7: node {process.node} acts in {epoch} after {process.disk.acted}")
        process.disk.acted = epoch

    def fail(self, process: Process, at: int) -> None:
        """Have a disk refuse what it is at."""
        what, _ = process.work.pop(at)
        if what == "flush":
            process.doubtful.update(process.disk.logs)
        process.connects_from_ms = self.now + PAUSE_MS
        self.perform(process, process.replica.failed("an error of the disk"))

    # -- links

    def connect(self, node: int) -> None:
        """Open the link that a node wants."""
        process = self.process(node)
        assert process.wanted is not None
        leader = self.process(process.wanted)
        if node in leader.incoming:
            self.disconnect(leader, node)
        link = Link(node, process.wanted)
        process.outgoing = leader.incoming[node] = link
        self.perform(process, process.replica.connected(process.wanted))

    def disconnect(self, process: Process, other: int) -> None:
        """End the links between a process and a node; the node learns of it later."""
        ended = False
        if process.outgoing is not None and process.outgoing.leader == other:
            process.outgoing.to_leader.append(None)
            process.outgoing, ended = None, True
        if other in process.incoming:
            process.incoming.pop(other).to_follower.append(None)
            ended = True
        if ended:
            self.perform(process, process.replica.disconnected(other, self.now))

    def to_leader(self, follower: int, leader: int) -> None:
        """Have the next message of a follower arrive."""
        process = self.process(leader)
        message = process.incoming[follower].to_leader.popleft()
        if message is None:
            self.disconnect(process, follower)
        else:
            self.perform(process, process.replica.received(follower, message))

    def to_follower(self, leader: int, follower: int) -> None:
        """Have the next message of a leader arrive."""
        process = self.process(follower)
        assert process.outgoing is not None
        message = process.outgoing.to_follower.popleft()
        if message is None:
            self.disconnect(process, leader)
        else:
            self.perform(process, process.replica.received(leader, message))

    # -- the coordinator

    def learn(self, node: int, entry: ShardEntry | None = None) -> None:
        """Have a node read the entry; or get to know an older one."""
        process = self.process(node)
        process.reads_entry = False
        self.perform(process, process.replica.learned(entry or self.entry, self.now))

    def put(self, entry: ShardEntry) -> None:
        if entry.epoch != self.entry.epoch:
            self.former.append(self.entry)
        self.entry = entry

    def do_write(self, write: Write) -> None:
        fits = write.entry.change == self.entry.change + 1 and all(
            self.disks[node].incarnation == incarnation for node, incarnation in write.members
        )
        if fits:
            self.put(write.entry)
        write.outcome = WriteOutcome.DONE if fits else WriteOutcome.CONFLICT
        if write.author is None:
            self.writes.remove(write)

    def answer(self, write: Write) -> None:
        assert write.outcome is not None
        self.writes.remove(write)
        self._answer(write, write.outcome)

    def lose_answer(self, write: Write) -> None:
        """Have the author give up; the write may still be done later."""
        author, write.author = write.author, None
        if write.outcome is not None:
            self.writes.remove(write)
        self._answer(Write(author, write.entry, ()), WriteOutcome.UNKNOWN)

    def _answer(self, write: Write, outcome: WriteOutcome) -> None:
        process = write.author
        if process is not None and self.processes[process.node] is process:
            self.perform(process, process.replica.written(outcome))

    def elect(self) -> None:
        """Do what a controller does about the entry, by the list of live nodes that it has read."""
        entry = self.planned()
        if entry is not None:
            self.put(entry)

    def planned(self) -> ShardEntry | None:
        count = len(self.disks)
        return next_entry(self.entry, self.seen_live, range(count), count)

    def renew(self, node: int) -> None:
        if node in self.live:
            self.sessions[node] = self.now
            self.process(node).lease.renewed(self.now)

    def may_expire(self, node: int) -> bool:
        """Whether a session may be over; it may be counted from a while before its renewal."""
        return node in self.live and self.now > self.sessions[node] + SESSION_MS // 2

    def expire(self, node: int) -> None:
        del self.live[node]

    # -- processes

    def process(self, node: int) -> Process:
        process = self.processes[node]
        assert process is not None, f"node {node} is down"
        return process

    def start(self, node: int) -> None:
        disk = self.disks[node]
        disk.incarnation += 1
        self.live[node] = disk.incarnation
        self.processes[node] = process = Process(node, disk, self.limits)
        self.renew(node)
        assert process.lease.until_ms

    def crash(self, node: int) -> None:
        """End a process: what it has written stays."""
        process = self.process(node)
        self.processes[node] = None
        for other in list(process.incoming):
            process.incoming.pop(other).to_follower.append(None)
        if process.outgoing is not None:
            process.outgoing.to_leader.append(None)
        for write in list(self.writes):
            if write.author is process:
                write.author = None
                if write.outcome is not None:
                    self.writes.remove(write)

    def crash_machine(self, node: int, kept: int = 0) -> None:
        """End a process and lose what it has not flushed, but for some batches of each log."""
        if self.processes[node] is not None:
            self.crash(node)
        for log in self.disks[node].logs.values():
            log.lose(kept)

    def resign(self, node: int) -> None:
        process = self.process(node)
        self.perform(process, process.replica.resign("its disk fails"))

    def replace(self, node: int) -> None:
        """Lose a node's disk, and start it with an empty one as a new incarnation."""
        if self.processes[node] is not None:
            self.crash(node)
        self.disks[node] = Disk(incarnation=self.disks[node].incarnation)
        self.start(node)

    def tick(self, node: int, *, reads: bool = True) -> None:
        """Have a node do what is due, by the list of live nodes that it reads or has read."""
        process = self.process(node)
        if reads:
            process.seen_live = dict(self.live)
        leads = process.replica.leader is not None
        if node not in self.live or (leads and self.now >= process.lease.until_ms):
            self.crash(node)  # without a session or a lease it begins anew
        else:
            self.perform(process, process.replica.tick(process.seen_live, self.now))

    # -- logs

    def append(self, node: int, name: str, value: int, *, rolls: bool = False) -> None:
        """Write a batch to a log that a node leads."""
        process = self.process(node)
        assert process.replica.leader is not None
        open_log = process.open.get(name)
        if open_log is None:
            open_log = process.open[name] = OpenLog(process.disk.log(name), 0, 0)
        log = open_log.log
        before = log.place, log.offset
        epoch = process.replica.leader.epoch
        begins = not log.files or log.files[-1].batches[-1].epoch != epoch
        log.write(epoch, value, rolls=rolls or begins)  # each reign begins a file
        end = log.place, log.offset
        if not open_log.is_flushing:
            open_log.is_flushing = True
            process.work.append(("flush", partial(self._flush_open, process, open_log, log.end)))
        self.perform(process, process.replica.wrote(name, before, end, self.now))

    def _flush_open(self, process: Process, open_log: OpenLog, end: int) -> None:
        if open_log.log.name in process.doubtful:
            return  # it is not repaired
        open_log.log.flushed = max(open_log.log.flushed, end)
        if open_log.log.end > end:
            flush = partial(self._flush_open, process, open_log, open_log.log.end)
            process.work.append(("flush", flush))
        else:
            open_log.is_flushing = False
        self._commit(process, open_log)

    def _commit(self, process: Process, log: OpenLog) -> None:
        if process.is_over or process.open.get(log.log.name) is not log:  # deleted
            return
        committed = min(log.log.flushed, log.replicated)
        is_held = process.in_sync < self.members_min
        if committed > log.committed and process.replica.leader is not None and not is_held:
            log.committed = committed
            self.decide(log.log, committed)
            self._check_confirmed(process, log)

    def _check_confirmed(self, process: Process, log: OpenLog) -> None:
        """With an entry of its epoch, so many members must have what is confirmed now."""
        assert process.replica.leader is not None
        if self.entry.epoch != process.replica.leader.epoch:
            return
        holders = sum(
            member in self.entry.isr
            and self.disks[member].log(log.log.name).flushed >= log.committed
            for member in range(len(self.disks))
        )
        if holders < self.members_min:
            raise BrokenError(f"confirmed with {holders} members")

    def removable(self, process: Process, name: str) -> VirtualFile | None:
        """Return the oldest file if all of it is settled, by what is committed."""
        log = process.open[name]
        if len(log.log.files) <= 1 or log.log.files[0].end > log.committed:
            return None
        first = log.log.files[0]
        end = first.end
        for batch in log.log.batches():
            if -batch.value >= end and batch.index < log.committed:
                return first
        return None

    def remove(self, node: int, name: str) -> None:
        process = self.process(node)
        file = self.removable(process, name)
        assert file is not None
        process.open[name].log.remove(file.name)
        self.perform(process, process.replica.removed(name, *file.name, self.now))

    def compact(self, node: int, name: str) -> None:
        """Give a sealed, committed file another revision."""
        process = self.process(node)
        log = process.open[name].log
        file = self.compactable(process, name)
        assert file is not None
        assert process.replica.leader is not None
        revision = process.replica.leader.epoch * 1000 + self.value  # of no other node
        self.value += 1
        log.remove(file.name)
        log.add(VirtualFile(file.base, revision, file.index, list(file.batches)))
        behind = next(each for each in log.files if each.index >= file.end)
        following, replica = LogPlace(*behind.name), process.replica
        self.perform(process, replica.replaced(name, file.name, revision, following, self.now))

    def compactable(self, process: Process, name: str) -> VirtualFile | None:
        """Return a sealed file, all of which is committed, with records."""
        log = process.open[name]
        for file in log.log.files[:-1]:
            if file.end <= log.committed and file.offset_at(len(file.batches)) > file.base:
                return file
        return None

    def drop(self, node: int, name: str) -> None:
        process = self.process(node)
        del process.open[name], process.disk.logs[name]
        self.decided.pop(name, None)
        self.dropped.add(name)
        self.perform(process, process.replica.dropped(name, self.now))

    # -- invariants

    def decide(self, log: VirtualLog, index: int) -> None:
        """Note what is committed: nothing else may ever stand there."""
        if log.name in self.dropped:
            return
        decided = self.decided.setdefault(log.name, {})
        here = {batch.index: batch for batch in log.batches() if batch.index < index}
        for at, batch in here.items():
            if decided.setdefault(at, batch) != batch:
                raise BrokenError(f"committed logs differ at {at}: {batch}, {decided[at]}")
        settled = max((self.settled.get(log.name, 0), *(-batch.value for batch in here.values())))
        self.settled[log.name] = settled
        lacks = [at for at in decided if at not in here and at < max(index, 1)]
        if any(at >= settled for at in lacks):
            raise BrokenError(f"a leader lacks what is committed of {log.name}: {lacks}")
        if decided and max(decided) >= index and index == log.end:
            raise BrokenError(f"a leader ends at {index}, and {max(decided)} is committed")

    def serving(self) -> list[int]:
        return [
            process.node
            for process in self.processes
            if process is not None
            and process.replica.role is Role.LEADING
            and not process.is_over
            and self.now < process.lease.until_ms
        ]

    def check(self) -> None:
        """Raise BrokenError if an invariant does not hold."""
        if len(self.serving()) > 1:
            raise BrokenError(f"I10: nodes {self.serving()} serve")
        epochs = [
            process.replica.leader.epoch
            for process in self.processes
            if process is not None and process.replica.leader is not None
        ]
        if len(set(epochs)) < len(epochs):
            raise BrokenError("I1: two leaders of one epoch")
        for name in {name for disk in self.disks for name in disk.logs} - self.dropped:
            self._check_logs(name)

    def _check_logs(self, name: str) -> None:
        decided, settled = self.decided.get(name, {}), self.settled.get(name, 0)
        logs = [disk.logs.get(name) for disk in self.disks]
        versions = tuple(None if log is None else (log.version, log.flushed) for log in logs)
        state = versions, len(decided), settled, self.entry.isr
        if self.checked.get(name) == state:
            return
        self.checked[name] = state
        held = [
            {} if log is None else {batch.index: batch for batch in log.batches()} for log in logs
        ]
        for at, first in enumerate(held):
            for second in held[:at]:
                _check_match(first, second)
        for node, batches in enumerate(held):
            if batches and min(batches) > settled:
                raise BrokenError(f"I9: node {node} has removed what is not settled")
        for member in self.entry.isr:
            log = logs[member]
            flushed = 0 if log is None else log.flushed
            for at, batch in decided.items():
                if at >= settled and (held[member].get(at) != batch or at >= flushed):
                    raise BrokenError(f"I4: node {member} lacks {batch} of {name}")


PERFORM: dict[type, Callable[..., None]] = {
    do.Send: World._send,
    do.Connect: World._connect,
    do.Disconnect: World._disconnect,
    do.KeepEpoch: World._keep_epoch,
    do.DescribeLogs: World._describe_logs,
    do.CutLogs: World._cut_logs,
    do.CarryOut: World._carry_out,
    do.FlushLogs: World._flush_logs,
    do.CompareLogs: World._compare_logs,
    do.ReadLog: World._read_log,
    do.OpenLogs: World._open_logs,
    do.Replicated: World._replicated,
    do.SetInSyncCounts: World._set_in_sync_counts,
    do.ReadEntry: World._read_entry,
    do.WriteEntry: World._write_entry,
    do.EndReign: World._end_reign,
}


def _check_match(first: dict[int, VirtualBatch], second: dict[int, VirtualBatch]) -> None:
    """Logs with a batch of the same epoch at the same place are equal before it (I3)."""
    shared = sorted(first.keys() & second.keys(), reverse=True)
    matches = False
    for index in shared:
        mine, other = first[index], second[index]
        matches = matches or mine.epoch == other.epoch
        if matches and mine != other:
            raise BrokenError(f"I3: {mine} and {other} at one place")
