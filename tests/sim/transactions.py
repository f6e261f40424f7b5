"""A simulated cluster whose clients commit transactions: one thread, virtual time, one seed.

What decides, asks, prepares and resolves is the real code; logs, links and the coordinator are
models: a log is what its leaders have agreed on, and loses what only its last leader had.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from leveret.cluster.metadata.registrations import encode_session
from leveret.cluster.partition_state import Member, PartitionState
from leveret.cluster.transactions.numbers import is_of_cluster
from leveret.clustering.forwarding.remote_parts import RemotePart, RemoteParts
from leveret.clustering.forwarding.transaction_parts import TransactionParts
from leveret.clustering.forwarding.wire import (
    PrepareOutcome,
    PrepareTransaction,
    ResolveTransaction,
    TransactionPrepared,
    TransactionResolved,
)
from leveret.clustering.transactions.decider import ClusterDecider
from leveret.clustering.transactions.inquiring import PartInquirer, PartsToAsk
from leveret.clustering.transactions.participants import Participant
from leveret.clustering.transactions.partitions import DecisionPartitions, TransactionServices
from leveret.clustering.transactions.placing import decisions_key
from leveret.core.logs.atomic import AtomicWrites
from leveret.core.turn import Turn
from leveret.errors import StorageError
from leveret.links.errors import PeerUnavailableError, Unavailable
from leveret.ports import Durability
from leveret.ports.coordination import (
    SESSIONS_PREFIX,
    CoordinatorUnavailableError,
    KeyChange,
    KeyEntry,
)
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder
from leveret.replication.replicator import PARTITIONS_PREFIX

NODES = 3
QUEUES = ("i/0", "i/1", "i/2")
DECISIONS = (0, 1)
CLIENTS = 2  # of each node
MESSAGES = 300  # in each queue, to be moved
FAULTS_UNTIL = 20.0  # seconds
QUIET = 60.0
PATIENCE = 2.0


class VirtualSelector(selectors.DefaultSelector):  # type: ignore[misc]
    """Waits for nothing: time passes by itself."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits for something else"
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now


class Entry(NamedTuple):
    """Something that a log has: records, a part of a transaction, an outcome, or settlements."""

    kind: str
    transaction: int = 0
    committed: bool = False
    bodies: tuple[bytes, ...] = ()
    settles: tuple[tuple[int, int], ...] = ()


@dataclass(eq=False)
class SimPartition:
    """Entries that the leaders of a partition agree on, and who leads it."""

    key: str
    entries: list[Entry] = field(default_factory=list)  # committed
    epoch: int = 0
    leader: int | None = None
    begins_with: list[Entry] = field(default_factory=list)  # what the new leader has
    stalled_until: float = 0.0  # while a copy in sync is slow
    log: SimLog | None = None  # of the leader


class SimLog:
    """A leader's log of one partition, in one epoch."""

    is_replicated = True

    def __init__(self, world: World, partition: SimPartition) -> None:
        self.world, self.shared = world, partition
        self.partition, self.epoch = partition.key, partition.epoch
        self.epochs = SimpleNamespace(last=partition.epoch)
        self.entries = list(partition.begins_with)
        self.replicated = 0  # entries that all have
        self.follows = False
        self.builder = BatchBuilder()
        self.settled = RangeSet()
        self.unresolved: dict[int, Entry] = {}
        self.spreading: dict[int, int] = {}  # transaction: entries with its outcome
        self.end = self.committed = 0
        self.batches: list[Batch] = []
        self._waiting: list[tuple[int, Any]] = []
        self._callbacks: list[Any] = []
        for number, entry in enumerate(self.entries, 1):
            self._take(entry, number)
        self._ends: list[int] = []  # offsets behind the entries
        offset = 0
        for entry in self.entries:
            offset += len(entry.bodies)
            self._ends.append(offset)
        world.later(0.001, 0.05, self._replicate)

    def _take(self, entry: Entry, number: int) -> None:
        if entry.bodies:
            builder = BatchBuilder()
            for body in entry.bodies:
                builder.add(1, 1, b"", b"", b"", body)
            batch = builder.seal(self.end)
            self.batches.append(batch)
            self.end = batch.stop_offset
        if entry.kind == "part":
            self.unresolved[entry.transaction] = entry
        elif entry.kind == "outcome":
            part = self.unresolved.pop(entry.transaction, None)
            self.spreading[entry.transaction] = number
            if part is not None and entry.committed:
                self.settled.add_all(list(part.settles))
        elif entry.kind == "settle":
            self.settled.add_all(list(entry.settles))

    def write(self, entry: Entry, done: Any = None) -> None:
        if self.follows:
            raise StorageError("another node leads")
        self.entries.append(entry)
        self._take(entry, len(self.entries))
        self._ends.append(self.end)
        if done is not None:
            self._waiting.append((len(self.entries), done))
        self.world.later(0.001, 0.02, self._replicate)

    def _replicate(self) -> None:
        """Have all copies have what is there, if they follow this leader."""
        shared = self.shared
        if self.follows or shared.epoch != self.epoch or self.world.is_cut(shared.leader):
            return
        if shared.stalled_until > self.world.loop.time():
            self.world.later(0.1, 0.2, self._replicate)
            return
        self.replicated = len(self.entries)
        shared.entries = list(self.entries)
        self.committed = self._ends[-1] if self._ends else 0
        self.spreading = {t: n for t, n in self.spreading.items() if n > self.replicated}
        ready = [done for number, done in self._waiting if number <= self.replicated]
        self._waiting = [each for each in self._waiting if each[0] > self.replicated]
        for done in ready:
            done(None)
        for callback in list(self._callbacks):
            callback()

    def follow(self) -> None:
        """Lead no more."""
        self.follows = True
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(StorageError("another node leads"))

    # -- as LedDecisions, atomic writes and places see it

    def on_commit(self, callback: Any) -> None:
        self._callbacks.append(callback)

    def on_failure(self, callback: Any) -> None:
        pass

    def detach(self, committed: Any, failed: Any) -> None:
        self._callbacks.remove(committed)

    def append(self) -> int:
        batch = self.builder.seal(self.end)
        first = self.end
        self.write(Entry("records", bodies=tuple(record[6] for record in batch.records())))
        return first

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        await asyncio.sleep(self.world.random.uniform(0, 0.02))
        return [batch for batch in self.batches if batch.stop_offset > offset]

    def settle(self, ranges: Any) -> None:
        if not self.follows:
            self.write(Entry("settle", settles=tuple(ranges)))

    @property
    def undecided(self) -> list[int]:
        return [each for each in self.unresolved if is_of_cluster(each)]

    def takes_part(self, transaction: int) -> bool:
        return transaction in self.unresolved

    def has_part(self, transaction: int) -> bool:
        return transaction in self.unresolved or transaction in self.spreading

    def resolve(self, transaction: int, *, committed: bool) -> None:
        if self.follows or transaction not in self.unresolved:
            return
        self.world.checks.resolved(transaction, committed)
        self.write(Entry("outcome", transaction, committed))


class SimQueue:
    """A partition that is served here: writer of atomic writes, and whoever holds its leases."""

    held = searches = False
    settles_in_log = True
    successor: Any = None
    deleted = False

    def __init__(self, node: Node, log: SimLog) -> None:
        self.node, self.log = node, log
        self.leased = RangeSet()
        self.builder = BatchBuilder(self)

    def lease(self) -> int | None:
        """Lease an original message that is neither settled nor leased."""
        taken = self.log.settled.copy()
        taken.add_all(list(self.leased))
        offset = taken.gaps(0, MESSAGES).first
        if offset is None:
            return None
        self.leased.add(offset, offset + 1)
        return offset

    def return_(self, ranges: Any, *, failed: bool = False) -> None:
        for first, stop in ranges:
            self.leased.remove(first, stop)

    def take_back(self, ranges: Any) -> bool:
        """Leases of a client of this node: it returns them itself."""
        return True

    @property
    def limited_with(self) -> SimQueue:
        return self

    def has_room(self, records: BatchBuilder) -> bool:
        return self.node.world.random.random() > 0.03

    def flush(self) -> None:
        pass

    def take_in(self, records: BatchBuilder) -> None:
        pass

    def when_released(self, go_on: Any) -> None:
        raise AssertionError("it is never held")

    def prepare(self, transaction: int, records: Any, ranges: Any, prepared: Any, _: Any) -> None:
        bodies: tuple[bytes, ...] = ()
        if records.count:
            bodies = tuple(record[6] for record in records.seal(0).records())
        self.log.write(Entry("part", transaction, False, bodies, tuple(ranges)), prepared)

    def carry_out(self, transaction: int, ranges: Any, seen: Any = None) -> None:
        self.log.resolve(transaction, committed=True)
        if seen is not None:
            seen.done(failed=False)
        else:
            for waiter in self.node.seen.pop((self.log.partition, transaction), ()):
                waiter.done(failed=False)

    def undo(self, transaction: int, first: int, stop: int) -> None:
        self.log.resolve(transaction, committed=False)

    def step_down(self, successor: Any) -> None:
        self.deleted, self.successor = True, successor


class SimLocalQueue(SimQueue):
    """Queue whose waiters are told at once when their records are carried out."""

    def prepare(
        self, transaction: int, records: Any, ranges: Any, prepared: Any, seen: Any
    ) -> None:
        if records.count:
            key = self.log.partition, transaction
            self.node.seen.setdefault(key, []).append(seen)
        super().prepare(transaction, records, ranges, prepared, seen)


class SimRemote:
    """Stand-in for a partition that is led elsewhere, with the stream to its leader."""

    held = searches = deleted = False
    settles_in_log = True
    successor: Any = None

    def __init__(self, node: Node, key: str) -> None:
        self.node, self.key = node, key
        incarnation, _, number = key.partition("/")
        self.definition = SimpleNamespace(incarnation=incarnation, home=None)
        self.number = int(number)
        timers = SimpleNamespace(after=lambda ms, do: node.world.later(ms / 1000, ms / 1000, do))
        self.services = SimpleNamespace(timers=timers)
        self.leader = (0, 0)
        self.builder = BatchBuilder(self)
        self.session: SimSession | None = None
        self.log = self.parts = RemoteParts(self)  # type: ignore[arg-type]

    @property
    def is_connected(self) -> bool:
        return self.session is not None

    def connect(self) -> None:
        """Open a stream to whom this node takes for the leader, if that serves the partition."""
        node, world = self.node, self.node.world
        if self.deleted or not node.is_up:
            return
        world.later(0.02, 0.1, self.connect)
        state = node.state(self.key)
        if self.session is not None or state is None or state.leader in (None, node.number):
            return
        place = world.nodes[state.leader].places.get(self.key)
        if not world.reaches(node.number, state.leader) or place is None or place.queue is None:
            return
        if place.role_epoch == state.epoch:
            self.leader = (state.leader, state.epoch)
            self.session = SimSession(self, place)
            self.parts.connected()

    def post(self, message: Any) -> None:
        assert self.session is not None
        self.session.to_leader(message)

    def disconnected(self) -> None:
        if self.session is not None:
            self.session = None
            self.parts.leader_gone("the stream is lost")

    @property
    def limited_with(self) -> SimRemote:
        return self

    def has_room(self, records: BatchBuilder) -> bool:
        return True

    def flush(self) -> None:
        pass

    def take_in(self, records: BatchBuilder) -> None:
        pass

    def prepare(
        self, transaction: int, records: Any, ranges: Any, prepared: Any, seen: Any
    ) -> None:
        self.parts.prepare(transaction, records, ranges, RemotePart(prepared, seen))

    def carry_out(self, transaction: int, ranges: Any, seen: Any = None) -> None:
        self.parts.carry_out(transaction, seen)

    def undo(self, transaction: int, first: int, stop: int) -> None:
        self.parts.undo(transaction)


class SimSession:
    """A stream: messages come in order, until it is cut; then both ends know, some time later."""

    def __init__(self, remote: SimRemote, place: Place) -> None:
        self.remote, self.place = remote, place
        self.world = remote.node.world
        self.held = RangeSet()
        self.is_cut = self.has_ended = False
        self._arrival = [0.0, 0.0]
        place.sessions[self] = None

    def _travel(self, way: int, deliver: Any) -> None:
        now = self.world.loop.time()
        at = max(self._arrival[way], now + self.world.random.uniform(0.0005, 0.02))
        self._arrival[way] = at
        self.world.loop.call_at(at, lambda: None if self.is_cut else deliver())

    def to_leader(self, message: Any) -> None:
        self._travel(0, lambda: self._handle(message))

    def to_client(self, message: Any) -> None:
        self._travel(1, lambda: self._answer(message))

    def _answer(self, message: Any) -> None:
        if self.remote.session is self:
            self.remote.parts.handle(message)

    def _handle(self, message: Any) -> None:
        transactions = self.place.transactions
        if self.has_ended or transactions is None:
            return
        if isinstance(message, ResolveTransaction):
            told = TransactionResolved(message.transaction)
            transactions.resolve(
                message.transaction,
                committed=message.committed,
                resolved=lambda: self.to_client(told),
            )
            return
        assert isinstance(message, PrepareTransaction)
        answer = lambda *told: self.to_client(TransactionPrepared(message.transaction, *told))  # noqa: E731
        if not all(self.held.contains(*each) for each in message.ranges):
            answer(PrepareOutcome.FAILED, "its leases have ended")
            return
        for first, stop in message.ranges:
            self.held.remove(first, stop)
        transactions.prepare(message, list(message.ranges), self, answer)

    def take_back(self, ranges: Any) -> bool:
        if not self.has_ended:
            self.held.add_all(ranges)
        return not self.has_ended

    def lease(self) -> int | None:
        """Lease a message, as a delivery does."""
        queue = self.place.queue
        if self.is_cut or self.has_ended or queue is None:
            return None
        offset = queue.lease()
        if offset is not None:
            self.held.add(offset, offset + 1)
        return offset

    def return_(self, ranges: Any) -> None:
        for first, stop in ranges:
            if self.held.contains(first, stop) and self.place.queue is not None:
                self.held.remove(first, stop)
                self.place.queue.return_([(first, stop)])

    def cut(self) -> None:
        """Lose what is on its way."""
        self.is_cut = True
        self.world.later(0.0, 0.2, self.end)
        self.world.later(0.0, 0.2, self.end_client)

    def end_client(self) -> None:
        self.is_cut = True
        if self.remote.session is self and not self.remote.deleted:
            self.remote.disconnected()

    def end(self) -> None:
        """End at the leader."""
        self.is_cut = True
        if self.has_ended:
            return
        self.has_ended = True
        self.place.sessions.pop(self, None)
        place = self.place
        if place.transactions is not None and place.queue is not None:
            place.transactions.abandoned(self)
            place.queue.return_(list(self.held))
        self.world.later(0.0, 0.2, self.end_client)


class Place:
    """A partition at one node (as PartitionPlace): served here, or forwarded."""

    def __init__(self, node: Node, key: str) -> None:
        self.node, self.key = node, key
        self.log: SimLog | None = None
        self.is_ready = False
        self.queue: SimLocalQueue | None = None
        self.transactions: TransactionParts | None = None
        self.sessions: dict[SimSession, None] = {}
        self.writer: Any = SimRemote(node, key)
        self.writer.connect()

    @property
    def role_epoch(self) -> int:
        return 0 if self.log is None else self.log.epoch

    def lead(self, log: SimLog) -> None:
        self.log = log
        self.review()

    def review(self) -> None:
        log = self.log
        if log is None or self.queue is not None:
            return
        if self.waits_for_outcomes(log):
            self.node.parts_to_ask.add(self)
        elif self.is_ready:
            self.serve(log)

    def waits_for_outcomes(self, log: SimLog) -> bool:
        return bool(log.undecided)

    def serve(self, log: SimLog) -> None:
        self.queue = SimLocalQueue(self.node, log)
        loop, watch = self.node.world.loop, lambda: self.node.parts_to_ask.add(self)
        self.transactions = TransactionParts(self.queue, loop.time, watch)  # type: ignore[arg-type]
        remote, self.writer = self.writer, self.queue
        remote.deleted, remote.successor = True, self.queue
        remote.session = None
        remote.parts.leader_gone("this node leads", with_unsent=True)

    def lead_no_more(self) -> None:
        log, self.log, self.is_ready = self.log, None, False
        if log is not None:
            log.follow()
        queue, self.queue, self.transactions = self.queue, None, None
        for session in list(self.sessions):
            session.end()
        if queue is not None:
            self.writer = SimRemote(self.node, self.key)
            queue.step_down(self.writer)
            self.writer.connect()

    # -- as PartInquirer sees it

    @property
    def participant(self) -> str | None:
        return None if self.log is None else str(Participant(self.key, self.log.epoch))

    @property
    def has_parts(self) -> bool:
        if self.transactions is not None:
            return bool(self.transactions)
        return self.log is not None and bool(self.log.undecided)

    def to_ask(self, patience: float) -> list[int]:
        if self.transactions is not None:
            return self.transactions.to_ask(patience)
        return [] if self.log is None else self.log.undecided

    def resolve(self, transaction: int, *, committed: bool) -> None:
        if self.transactions is not None:
            self.transactions.resolve(transaction, committed=committed)
        elif self.log is not None:
            self.log.resolve(transaction, committed=committed)
            self.review()


class SimEntries(dict):
    """Coordinator's state, as a node knows it."""

    def keys(self, prefix: str = "") -> Any:  # type: ignore[override]
        return iter([key for key in sorted(self) if key.startswith(prefix)])


class SimCoordinator:
    """A node's view of the coordinator, which lags behind."""

    def __init__(self, world: World, node: Node) -> None:
        self.world, self.node = world, node
        self.entries = SimEntries(world.truth)
        self.session = next(world.sessions)
        self._callbacks: list[Any] = []

    def follow(self, callback: Any) -> None:
        self._callbacks.append(callback)

    async def catch_up(self) -> None:
        await asyncio.sleep(self.world.random.uniform(0.001, 0.02))
        if self.world.is_cut(self.node.number):
            raise CoordinatorUnavailableError("it is away")
        self.take(dict(self.world.truth))

    def take(self, truth: dict[str, KeyEntry]) -> None:
        changes = [
            KeyChange(key, entry.value)
            for key, entry in truth.items()
            if key not in self.entries or self.entries[key].version < entry.version
        ]
        for change in changes:
            self.entries[change.key] = truth[change.key]
        if changes:
            for callback in list(self._callbacks):
                callback(0, changes)


class Node:
    """One node, and the process that it runs now."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.is_up = False
        self.tasks: dict[asyncio.Task, None] = {}

    def start(self) -> None:
        world = self.world
        self.is_up = True
        self.seen: dict[tuple[str, int], list] = {}
        self.coordinator = SimCoordinator(world, self)
        world.put(f"{SESSIONS_PREFIX}{self.number}", encode_session(self.coordinator.session))
        self.parts_to_ask = PartsToAsk()
        self.roles: dict[str, SimpleNamespace] = {}
        self.places: dict[str, Place] = {}
        self.turn = Turn(world.loop.call_soon, world.checks.report)
        topics = SimpleNamespace(open=lambda *_, **__: SimpleNamespace())
        services = TransactionServices(
            self.number,
            self.coordinator,
            SimpleNamespace(peer=lambda node: SimPeer(self, node)),
            SimpleNamespace(led=self.roles.get, add=lambda _replica: None),
            topics,
            Durability.OS,
            SimpleNamespace(wall_ms=lambda: 1),
            self.spawn,
            world.checks.report,
        )  # type: ignore[arg-type]
        self.partitions = DecisionPartitions(services, self._parts_of)
        self.decider = ClusterDecider(services, self.partitions)
        self.atomic = AtomicWrites(
            None, self.turn, lambda: 1, lambda: 1, world.checks.failed, decider=self.decider
        )  # type: ignore[arg-type]
        self.places = {key: Place(self, key) for key in QUEUES}
        self.coordinator.follow(self._changed)
        self.partitions.open()
        self.partitions.start()
        self.spawn(PartInquirer(self.parts_to_ask, self.partitions).run(PATIENCE))
        for _ in range(CLIENTS):
            self.spawn(self._client())

    def spawn(self, work: Any) -> asyncio.Task:
        task = self.world.loop.create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task) -> None:
        self.tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.world.checks.report(task, task.exception())

    def kill(self) -> None:
        """End as `kill -9` does."""
        self.is_up = False
        for task in list(self.tasks):
            task.cancel()
        self.tasks.clear()
        for place in self.places.values():
            if place.log is not None:
                place.log.follows = True
                place.log._waiting.clear()
            for session in list(place.sessions):
                session.cut()
            if isinstance(place.writer, SimRemote) and place.writer.session is not None:
                place.writer.session.is_cut = True
                self.world.later(0.0, 0.2, place.writer.session.end)
        for role in self.roles.values():
            role.log.follows = True
        self.turn = None

    def state(self, key: str) -> PartitionState | None:
        entry = self.coordinator.entries.get(PARTITIONS_PREFIX + key)
        return None if entry is None else PartitionState.from_bytes(entry.value)

    def unforgotten(self) -> list[int]:
        """Return the transactions whose decisions it remembers."""
        led = self.partitions._led.values() if self.is_up else ()
        return [each for one in led if one.is_loaded for each in one.machine._committed]

    # -- roles

    def _changed(self, _sequence: int, changes: Any) -> None:
        if not self.is_up:
            return
        for change in changes:
            if not change.key.startswith(PARTITIONS_PREFIX):
                continue
            key = change.key.removeprefix(PARTITIONS_PREFIX)
            state = PartitionState.from_bytes(change.value)
            role = self.roles.get(key)
            if role is not None and role.machine.epoch == state.epoch:
                continue
            if role is not None:
                self._end_role(key)
            if state.leader == self.number and state.leader_session == self.coordinator.session:
                self._lead(key, state)

    def _end_role(self, key: str) -> None:
        role = self.roles.pop(key)
        if key in self.places:
            self.places[key].lead_no_more()
        else:
            role.log.follow()
            self.partitions.led_changed(key)

    def _lead(self, key: str, state: PartitionState) -> None:
        shared = self.world.partitions[key]
        if shared.epoch != state.epoch:
            return  # it has been elected already who follows
        log = SimLog(self.world, shared)
        machine = SimpleNamespace(epoch=state.epoch)
        role = self.roles[key] = SimpleNamespace(machine=machine, is_ready=False, log=log)
        began_with = len(log.entries)

        def ready() -> None:
            if self.roles.get(key) is not role or not self.is_up:
                return
            if log.replicated < began_with or (
                not began_with and shared.epoch != role.machine.epoch
            ):
                self.world.later(0.01, 0.05, ready)
                return
            role.is_ready = True
            if key in self.places:
                self.places[key].is_ready = True
                self.places[key].review()
            else:
                number = int(key.rpartition("/")[2])
                self.partitions._replicas[number] = SimpleNamespace(log=log)
                self.partitions.led_changed(key)

        if key in self.places:
            self.places[key].lead(log)
        self.world.later(0.005, 0.1, ready)

    def _parts_of(self, participant: Participant, transactions: Any) -> list[int] | None:
        if participant.node is not None:
            if participant.node != self.number or participant.session != self.coordinator.session:
                return None
            return [each for each in transactions if each in self.decider.driving]
        role = self.roles.get(participant.key)
        if role is None or not role.is_ready or role.machine.epoch < participant.epoch:
            return None
        return [each for each in transactions if role.log.has_part(each)]

    # -- clients

    async def _client(self) -> None:
        draw = self.world.random
        while self.world.has_clients:
            await asyncio.sleep(draw.uniform(0.01, 0.3))
            await self._transact()

    async def _transact(self) -> None:
        world, draw = self.world, self.world.random
        moved = self._lease() if draw.random() < 0.5 else None
        writes, ids = [], []
        for _ in range(2 if draw.random() < 0.2 else 1):
            write = self.atomic.begin()
            own = next(world.ids)
            targets = draw.sample(QUEUES, draw.choice([1, 2, 2, 3]))
            world.checks.begin(own, targets, moved if not writes else None)
            for key in targets:
                write.publish(self.places[key].writer, 1, b"", b"", b"", b"%d" % own)
            writes.append(write)
            ids.append(own)
        if moved is not None:
            holder, key, offset, leased_by = moved
            writes[0].settle(holder, [(offset, offset + 1)])
        done = world.loop.create_future()

        def tell(*, failed: bool) -> None:
            if not done.done():  # else its node was killed
                done.set_result(not failed)

        waiter = SimpleNamespace(done=tell)
        if len(writes) > 1:
            self.atomic.commit_together(writes, waiter)
        else:
            writes[0].commit(waiter)
        has_committed = await done
        world.checks.told(ids, has_committed)
        if moved is not None and not has_committed:
            holder, key, offset, leased_by = moved
            leased_by.return_([(offset, offset + 1)])

    def _lease(self) -> tuple[Any, str, int, Any] | None:
        key = self.world.random.choice(QUEUES)
        writer = self.places[key].writer
        holder = writer if isinstance(writer, SimQueue) else writer.session
        offset = None if holder is None else holder.lease()
        return None if offset is None else (writer, key, offset, holder)


class SimPeer:
    """Another node, as requests reach it: or do not, or twice, or without an answer."""

    def __init__(self, node: Node, other: int) -> None:
        self._node, self._other = node, other

    async def request(self, kind: int, payload: bytes, *, timeout_s: float) -> memoryview:
        world, other = self._node.world, self._node.world.nodes[self._other]
        draw = world.random
        await asyncio.sleep(draw.uniform(0.001, 0.02))
        lost = 0.0 if world.is_quiet else world.losses
        if draw.random() < lost or not world.reaches(self._node.number, self._other):
            raise PeerUnavailableError(self._other, Unavailable.DOWN)
        if draw.random() < lost:  # it comes again, late
            world.later(0.01, 1.0, lambda: self._repeat(other, payload))
        handling = other.spawn(self._handle(other, payload))
        done, _ = await asyncio.wait([handling], timeout=timeout_s)
        await asyncio.sleep(draw.uniform(0.001, 0.02))
        is_there = other.is_up and world.reaches(self._other, self._node.number)
        if not done or handling.cancelled() or draw.random() < lost or not is_there:
            raise PeerUnavailableError(self._other, Unavailable.LOST)
        answer = handling.result()
        if isinstance(answer, Exception):
            raise answer
        return memoryview(answer)

    @staticmethod
    async def _handle(other: Node, payload: bytes) -> Any:
        try:
            return await other.partitions.serve(None, memoryview(payload))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # it is raised where the request was made
            return error

    def _repeat(self, other: Node, payload: bytes) -> None:
        if other.is_up:
            other.spawn(self._handle(other, payload))


class TransactionChecks:
    """Notes of what clients did and were told, and of what every resolved part was told."""

    def __init__(self) -> None:
        self.begun: dict[int, tuple[list[str], tuple[str, int] | None]] = {}
        self.answers: dict[int, bool] = {}
        self.joint: list[list[int]] = []
        self.outcomes: dict[int, bool] = {}
        self.errors: list[str] = []

    def begin(self, own: int, targets: list[str], moved: Any) -> None:
        self.begun[own] = targets, None if moved is None else (moved[1], moved[2])

    def told(self, ids: list[int], has_committed: bool) -> None:
        self.joint.append(ids)
        self.answers.update(dict.fromkeys(ids, has_committed))

    def resolved(self, transaction: int, committed: bool) -> None:
        known = self.outcomes.setdefault(transaction, committed)
        if known != committed:
            self.errors.append(f"{transaction:x} has committed somewhere, and aborted elsewhere")

    def report(self, subject: object, error: BaseException) -> None:
        self.errors.append(f"{subject!r}: {error!r}")

    def failed(self, subject: object, error: Exception) -> None:
        """Ignore writes that fail: their clients are told."""
        if not isinstance(error, StorageError):
            self.report(subject, error)

    def end(self, world: World) -> None:
        """Compare all logs with what was begun and told."""
        assert not self.errors, self.errors[0]
        found: dict[str, Counter] = {}
        settled: dict[str, list[tuple[int, int]]] = {}
        for key in QUEUES:
            found[key], settled[key] = Counter(), []
            parts: dict[int, Entry] = {}
            for entry in world.partitions[key].entries:
                if entry.kind == "part":
                    parts[entry.transaction] = entry
                elif entry.kind == "outcome" and entry.transaction in parts:
                    part = parts.pop(entry.transaction)
                    if entry.committed:
                        found[key].update(map(int, part.bodies))
                        settled[key] += part.settles
            assert not parts, f"{key} has {len(parts)} parts without an outcome"
        for key, ranges in settled.items():
            assert len(set(ranges)) == len(ranges), f"a message of {key} was settled twice"
        for own, (targets, moved) in self.begun.items():
            there = [found[key][own] for key in targets]
            assert len(set(there)) == 1, f"{own} was published to some of {targets}: {there}"
            assert there[0] <= 1, f"{own} was published {there[0]} times"
            if moved is not None:
                is_settled = (moved[1], moved[1] + 1) in settled[moved[0]]
                assert is_settled or not there[0], f"{own} has moved a message that is still there"
            told = self.answers.get(own)
            assert told is None or told == bool(there[0]), f"{own} was told {told}"
        for ids in self.joint:
            assert len({found[self.begun[own][0][0]][own] for own in ids}) == 1, f"part of {ids}"
        left = sum(len(node.unforgotten()) for node in world.nodes)
        assert not left, f"{left} decisions are never forgotten"


class World:
    """The cluster, its time, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = VirtualLoop()
        self.checks = TransactionChecks()
        self.loop.set_exception_handler(self._report)
        self.truth: dict[str, KeyEntry] = {}
        self.sessions, self.ids = count(1), count(1)
        self._versions = count(1)
        self.losses = self.random.choice([0.0, 0.02, 0.1])
        self.faults_per_s = self.random.choice([0.3, 1.0, 2.5])
        self.is_quiet, self.has_clients = False, True
        self.cuts: set[int] = set()  # nodes that reach nobody
        keys = [*QUEUES, *map(decisions_key, DECISIONS)]
        self.partitions = {key: SimPartition(key) for key in keys}
        for key in QUEUES:
            bodies = tuple(b"0" for _ in range(MESSAGES))
            self.partitions[key].entries = [Entry("records", bodies=bodies)]
        self.nodes = [Node(self, number) for number in range(NODES)]

    def _report(self, _loop: Any, told: dict[str, Any]) -> None:
        self.checks.errors.append(f"{told['message']}: {told.get('exception')!r}")

    def later(self, least: float, most: float, do: Any) -> None:
        self.loop.call_later(self.random.uniform(least, most), do)

    def is_cut(self, node: int | None) -> bool:
        return node in self.cuts

    def reaches(self, sender: int, receiver: int) -> bool:
        there = self.nodes[receiver].is_up and self.nodes[sender].is_up
        return there and not {sender, receiver} & self.cuts

    # -- the coordinator

    def put(self, key: str, value: bytes) -> None:
        self.truth[key] = KeyEntry(next(self._versions), value)
        truth = dict(self.truth)
        for node in self.nodes:
            self.later(0.001, 0.05, lambda node=node: self._tell(node, truth))

    def _tell(self, node: Node, truth: dict[str, KeyEntry]) -> None:
        if node.is_up and node.number not in self.cuts:
            node.coordinator.take(truth)

    def elect(self, partition: SimPartition, leader: int) -> None:
        """Have another node lead, with what it has of the last leader's log."""
        last = self.nodes[partition.leader] if partition.leader is not None else None
        having = list(partition.entries)
        role = None if last is None else last.roles.get(partition.key)
        if role is not None and role.log.epoch == partition.epoch:
            suffix = role.log.entries[len(having) :]
            having += suffix[: self.random.randint(0, len(suffix))]
        partition.begins_with, partition.leader = having, leader
        partition.epoch += 1
        state = PartitionState(
            tuple(range(NODES)),
            frozenset(Member(number, 0) for number in range(NODES)),
            leader,
            self.nodes[leader].coordinator.session,
            partition.epoch,
            partition.epoch,
        )
        self.put(PARTITIONS_PREFIX + partition.key, state.to_bytes())

    def _elect_for(self, number: int, session: int) -> None:
        """Have others lead what a process has led that is gone, or is taken for it."""
        there = [node.number for node in self.nodes if node.is_up and node.number not in self.cuts]
        for partition in self.partitions.values():
            entry = self.truth[PARTITIONS_PREFIX + partition.key]
            state = PartitionState.from_bytes(entry.value)
            if (state.leader, state.leader_session) == (number, session) and there:
                self.elect(partition, self.random.choice(there))

    # -- what goes wrong

    def _fault(self) -> None:
        if self.loop.time() > FAULTS_UNTIL:
            return
        self.later(0.0, 2 / self.faults_per_s, self._fault)
        faults = [self._kill, self._isolate, self._cut_stream, self._move, self._move, self._stall]
        self.random.choice(faults)()

    def _kill(self) -> None:
        up = [node for node in self.nodes if node.is_up]
        if len(up) < NODES or self.cuts:
            return
        node = self.random.choice(up)
        session = node.coordinator.session
        node.kill()
        self.later(0.05, 0.5, lambda: self._elect_for(node.number, session))
        self.later(0.6, 3.0, node.start)

    def _isolate(self) -> None:
        """Cut a node off; it goes on to lead until it hears of others."""
        if self.cuts or not all(node.is_up for node in self.nodes):
            return
        node = self.random.choice(self.nodes)
        self.cuts.add(node.number)
        for other in self.nodes:
            for place in other.places.values():
                for session in list(place.sessions):
                    if node in (other, session.remote.node):
                        session.cut()
        session = node.coordinator.session
        if self.random.random() < 0.7:
            self.later(0.1, 0.5, lambda: self._elect_for(node.number, session))
        self.later(0.2, 6.0, lambda: self._heal(node))

    def _heal(self, node: Node) -> None:
        self.cuts.discard(node.number)
        # Others reach it before it hears who leads by now.
        self.later(0.0, 1.0, lambda: self._tell(node, dict(self.truth)))
        for role in node.roles.values():
            self.later(0.0, 0.05, role.log._replicate)

    def _cut_stream(self) -> None:
        sessions = [
            session
            for node in self.nodes
            if node.is_up
            for place in node.places.values()
            for session in place.sessions
        ]
        if sessions:
            self.random.choice(sessions).cut()

    def _stall(self) -> None:
        """Have a copy in sync be slow, and perhaps its leader go because of that."""
        partition = self.random.choice(list(self.partitions.values()))
        seconds = self.random.uniform(0.5, 6.0)
        partition.stalled_until = self.loop.time() + seconds
        if self.random.random() < 0.5:
            self.later(seconds * 0.8, seconds, lambda: self._move(partition))

    def _move(self, partition: SimPartition | None = None) -> None:
        there = [node.number for node in self.nodes if node.is_up and node.number not in self.cuts]
        partition = partition or self.random.choice(list(self.partitions.values()))
        if partition.leader in there and len(there) > 1:
            self.elect(partition, self.random.choice(there))

    def run(self) -> World:
        """Run until everything has come to rest, and check it."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._run())
            self.checks.end(self)
        finally:
            for node in self.nodes:
                if node.is_up:
                    node.kill()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
            asyncio.set_event_loop(None)
        return self

    async def _run(self) -> None:
        for node in self.nodes:
            node.start()
        for partition in self.partitions.values():
            self.elect(partition, self.random.randrange(NODES))
        await asyncio.sleep(1.0)
        self._fault()
        await asyncio.sleep(FAULTS_UNTIL + 4.0 - 1.0)
        self.is_quiet, self.has_clients = True, False
        for node in self.nodes:
            if node.is_up:
                node.coordinator.take(dict(self.truth))
        await asyncio.sleep(QUIET)


def run(seed: int) -> World:
    """Run a seed. Raises AssertionError."""
    return World(seed).run()
