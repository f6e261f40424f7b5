"""A simulated cluster: one thread, one clock, one seed.

Nodes run the machines of leveret.cluster over a network that drops, delays, repeats and cuts, on
disks that fill up and lose what was not flushed, with a coordinator that they lose now and then.
Whatever happens is drawn from one random number generator, so that a seed is a scenario.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.cluster.controller import elect, reassign, settle_move
from leveret.cluster.partition_state import Member, PartitionState, Registration
from leveret.cluster.replication.follower import FollowerReplica
from leveret.cluster.replication.leader import LeaderReplica, ReplicationLimits
from leveret.cluster.replication.messages import Diverged, Fetch, Records, Refused
from leveret.ports.epochs import EpochIndex
from tests.sim.checks import Checks

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = 4
REPLICAS = 3
PARTITIONS = 2
SESSION_MS = 600  # without contact the coordinator ends a session
HEARTBEAT_MS = 150
CONTROLLER_MS = 50
FETCH_TIMEOUT_MS = 60
TICK_MS = 100
LAG_MS_MAX = 400
BATCHES_AT_ONCE = 3
FAULTS_UNTIL_MS = 12_000
QUIET_MS = 8_000


class StoredBatch(NamedTuple):
    """Records of one append: their epoch, their first offset, and the ids of their messages."""

    epoch: int
    base: int
    ids: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.base + len(self.ids)


@dataclass
class Disk:
    """Log of one partition on one node; batches from `flushed` on are lost with the power."""

    batches: list[StoredBatch] = field(default_factory=list)
    flushed: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].stop if self.batches else 0

    @property
    def flushed_end(self) -> int:
        return self.batches[self.flushed - 1].stop if self.flushed else 0

    def truncate(self, end: int) -> None:
        kept = []
        for batch in self.batches:
            if batch.stop <= end:
                kept.append(batch)
            elif batch.base < end:
                kept.append(batch._replace(ids=batch.ids[: end - batch.base]))
        self.batches = kept
        self.flushed = min(self.flushed, len(kept))

    def epochs(self) -> EpochIndex:
        index = EpochIndex()
        for batch in self.batches:
            index.add(batch.epoch, batch.base)
        return index

    def ids(self, first: int = 0, stop: int | None = None) -> list[int]:
        """Return the ids of [first, stop)."""
        stop = self.end if stop is None else stop
        at = bisect_right(self.batches, first, key=lambda batch: batch.stop)
        found: list[int] = []
        while at < len(self.batches) and self.batches[at].base < stop:
            batch = self.batches[at]
            found += batch.ids[max(first - batch.base, 0) : stop - batch.base]
            at += 1
        return found


class Options(NamedTuple):
    """Choices of a seed: what is survived, and how much goes wrong."""

    is_fsync: bool
    in_sync_min: int
    acks: int | None
    drops: float
    repeats: float
    faults_per_s: float


class World:
    """Simulated cluster: its nodes, its network, and the time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.ids = count(1)
        draw = self.random
        self.options = Options(
            is_fsync=draw.random() < 0.5,
            in_sync_min=draw.choice([1, 2, 2]),
            acks=draw.choice([None, None, None, None, None, 0, 1, 2]),
            drops=draw.choice([0.0, 0.02, 0.1]),
            repeats=draw.choice([0.0, 0.05]),
            faults_per_s=draw.choice([0.5, 1.5, 3.0]),
        )
        self.checks = Checks()
        self.cuts: set[tuple[int, int]] = set()  # (from, to); the coordinator is -1
        self.is_quiet = False
        self.coordinator = Coordinator(self)
        self.nodes = [Node(self, number) for number in range(NODES)]

    def after(self, delay: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + max(int(delay), 1), next(self._order), do))

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until

    def send(self, sender: int, receiver: int, deliver: Callable[[], None]) -> None:
        """Have the network deliver something, or not."""
        draw = self.random
        if (sender, receiver) in self.cuts:
            return
        if not self.is_quiet and draw.random() < self.options.drops:
            return
        times = 2 if not self.is_quiet and draw.random() < self.options.repeats else 1
        for _ in range(times):
            slow = not self.is_quiet and draw.random() < (0.15 if sender == -1 else 0.02)
            self.after(draw.expovariate(1 / 200) if slow else draw.uniform(1, 8), deliver)


class Coordinator:
    """Coordinator, as ZooKeeper is one, and the controller, whose view of it is older."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.states: dict[int, PartitionState] = {}
        self.targets: dict[int, tuple[int, ...]] = {}
        self.nodes: dict[int, Registration] = {}
        self._heard: dict[int, int] = {}
        self._sessions = count(1)
        for number in range(PARTITIONS):
            replicas = tuple(world.random.sample(range(NODES), REPLICAS))
            members = frozenset(Member(node, 0) for node in replicas)
            self.states[number] = PartitionState(replicas, members)
        world.after(1, self._control)

    def register(self, node: Node) -> None:
        """Begin a session; an earlier one of the node ends."""
        session = next(self._sessions)
        self.nodes[node.number] = Registration(node.incarnation, session)
        self._heard[node.number] = self.world.now
        node.session = session

    def heartbeat(self, node: int, session: int) -> bool:
        known = self.nodes.get(node)
        if known is None or known.session != session:
            return False
        self._heard[node] = self.world.now
        return True

    def expire(self, node: int) -> None:
        self.nodes.pop(node, None)

    def propose(self, number: int, state: PartitionState) -> PartitionState:
        """Take a state if it is the next version; return what holds."""
        if state.version == self.states[number].version + 1:
            self.states[number] = state
            for node in self.world.nodes:
                self.world.send(-1, node.number, lambda node=node: node.learn(number, state))
        return self.states[number]

    def _control(self) -> None:
        """Decide with what was known a while ago."""
        world = self.world
        for node, heard in self._heard.items():
            if world.now - heard > SESSION_MS:
                self.nodes.pop(node, None)
        states, nodes = dict(self.states), dict(self.nodes)
        world.after(world.random.uniform(1, 40), lambda: self._decide(states, nodes))
        world.after(CONTROLLER_MS, self._control)

    def _decide(self, states: dict[int, PartitionState], nodes: dict[int, Registration]) -> None:
        for number, state in states.items():
            wanted = elect(state, nodes, survives_power_loss=self.world.options.is_fsync)
            target = self.targets.get(number)
            if wanted is None and target is not None:
                wanted = settle_move(state, target, nodes) or reassign(state, target)
            if wanted is not None:
                self.propose(number, wanted)


class Node:
    """A node's shell around the machines; its disks outlive its processes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.disks = {partition: Disk() for partition in range(PARTITIONS)}
        self.incarnation = 0
        self.session = 0
        self.process = 0  # grows with each start and end: what an earlier one has begun is void
        self.is_up = False
        self.is_full = False
        self.clock_ms = world.random.randrange(1 << 20)
        self._known_versions: dict[int, int] = {}
        self.leaders: dict[int, LeaderReplica] = {}
        self.followers: dict[int, FollowerReplica] = {}
        self.epochs: dict[int, EpochIndex] = {}
        self.committed: dict[int, int] = {}
        self._checked: dict[int, int] = {}  # committed, and told to be
        self._waiting: dict[int, list[tuple[int, int]]] = {}  # (offset, id) to be confirmed
        self.start()

    @property
    def member(self) -> Member:
        return Member(self.number, self.incarnation)

    def now_ms(self) -> int:
        return self.world.now + self.clock_ms

    # -- lives

    def start(self) -> None:
        self.is_up = True
        self.process += 1
        self._known_versions = {}
        self.leaders, self.followers, self._waiting = {}, {}, {}
        self.committed = dict.fromkeys(self.disks, 0)
        self._checked = dict.fromkeys(self.disks, 0)
        self.epochs = {number: disk.epochs() for number, disk in self.disks.items()}
        for disk in self.disks.values():  # what is found is flushed before it counts
            disk.flushed = len(disk.batches)
        self.session = 0
        self._beat(self.process)
        self._tick(self.process)

    def stop(self, *, loses_power: bool) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.process += 1
        if loses_power:
            self.incarnation += 1
            for disk in self.disks.values():
                kept = self.world.random.randint(disk.flushed, len(disk.batches))
                disk.batches = disk.batches[:kept]
        self.world.after(self.world.random.uniform(20, 1500), self._start_again)

    def _start_again(self) -> None:
        if not self.is_up:
            self.start()

    def _beat(self, process: int) -> None:
        if process != self.process:
            return
        coordinator = self.world.coordinator
        reaches = not {(self.number, -1), (-1, self.number)} & self.world.cuts
        if reaches and not (self.session and coordinator.heartbeat(self.number, self.session)):
            coordinator.register(self)
        if reaches:  # a change that was not told is read then
            states, nodes = dict(coordinator.states), dict(coordinator.nodes)
            self.world.send(-1, self.number, lambda: self.learn_all(process, states, nodes))
        self.world.after(HEARTBEAT_MS, lambda: self._beat(process))

    # -- roles

    def learn_all(
        self, process: int, states: dict[int, PartitionState], nodes: dict[int, Registration]
    ) -> None:
        if process != self.process:
            return
        for number, state in states.items():
            self.learn(number, state)
        present = frozenset(Member(node, known.incarnation) for node, known in nodes.items())
        for leader in self.leaders.values():
            leader.see(present)

    def learn(self, number: int, state: PartitionState) -> None:
        """Take the role that a state gives to this node."""
        if not self.is_up or state.version < self._known_versions.get(number, -1):
            return
        self._known_versions[number] = state.version
        leader = self.leaders.get(number)
        if leader is not None and leader.epoch == state.epoch:
            leader.decided(state)
            self._advanced(number)
            return
        if leader is not None:
            del self.leaders[number]
            self._waiting.pop(number, None)
        follower = self.followers.get(number)
        if follower is not None and follower.epoch != state.epoch:
            del self.followers[number]
        if self.number not in state.replicas:
            self.followers.pop(number, None)
        elif state.leader == self.number:
            if state.leader_session == self.session:
                self._lead(number, state)
        elif state.leader is not None and number not in self.followers:
            self._follow(number, state)

    def _lead(self, number: int, state: PartitionState) -> None:
        disk = self.disks[number]
        self.leaders[number] = LeaderReplica(
            self.member,
            state,
            self.epochs[number],
            end=disk.end,
            durable=self._durable(disk),
            committed=self.committed[number],
            limits=ReplicationLimits(
                LAG_MS_MAX, self.world.options.in_sync_min, self.world.options.acks
            ),
            now_ms=self.now_ms(),
        )
        self.world.checks.led(number, state.epoch, (self.number, self.session))
        self._advanced(number)

    def _follow(self, number: int, state: PartitionState) -> None:
        follower = FollowerReplica(
            self.member, state.epoch, self.epochs[number], self.committed[number]
        )
        self.followers[number] = follower
        self._fetch(number, state.leader, follower, self.process)

    # -- following

    def _fetch(self, number: int, leader: int, follower: FollowerReplica, process: int) -> None:
        """Ask the leader, and again after a while."""
        if process != self.process or self.followers.get(number) is not follower:
            return
        disk = self.disks[number]
        request = follower.fetch(disk.end, self._durable(disk))
        receiver = self.world.nodes[leader]
        self.world.send(self.number, leader, lambda: receiver.fetched(number, self.number, request))
        delay = self.world.random.uniform(0.5, 1) * FETCH_TIMEOUT_MS
        self.world.after(delay, lambda: self._fetch(number, leader, follower, process))

    def fetched(self, number: int, sender: int, request: Fetch) -> None:
        """Answer a follower."""
        leader = self.leaders.get(number)
        if not self.is_up or leader is None:
            return
        answer = leader.fetch(request, self.now_ms())
        batches: list[StoredBatch] = []
        if isinstance(answer, Records):
            disk = self.disks[number]
            at = bisect_right(disk.batches, answer.first, key=lambda batch: batch.stop)
            for batch in disk.batches[at : at + BATCHES_AT_ONCE]:
                skipped = max(answer.first - batch.base, 0)
                batches.append(batch._replace(base=batch.base + skipped, ids=batch.ids[skipped:]))
        self._advanced(number)
        receiver = self.world.nodes[sender]
        self.world.send(self.number, sender, lambda: receiver.answered(number, answer, batches))

    def answered(
        self, number: int, answer: Records | Diverged | Refused, batches: list[StoredBatch]
    ) -> None:
        follower = self.followers.get(number)
        if not self.is_up or follower is None:
            return
        disk = self.disks[number]
        step = follower.take(answer, disk.end)
        if step.truncate_to is not None:
            self.world.checks.truncated(number, self.committed[number], step.truncate_to)
            disk.truncate(step.truncate_to)
            self.epochs[number].truncate(step.truncate_to)
        elif step.append_at is not None and not self.is_full:
            assert isinstance(answer, Records)
            for batch in batches:
                self.epochs[number].add(batch.epoch, batch.base)
                disk.batches.append(batch)
            self._flush_later(number)
            self.committed[number] = follower.appended(answer, disk.end)
            self._check_committed(number)

    # -- leading

    def publish(self, number: int, ids: tuple[int, ...]) -> None:
        """Append what a client has sent, if this node leads."""
        leader = self.leaders.get(number)
        if not self.is_up or leader is None or self.is_full or leader.missing:
            return
        disk = self.disks[number]
        batch = StoredBatch(leader.epoch, disk.end, ids)
        self.epochs[number].add(batch.epoch, batch.base)
        disk.batches.append(batch)
        self._waiting.setdefault(number, []).extend(
            (batch.base + at, each) for at, each in enumerate(ids)
        )
        self._flush_later(number)
        self._advanced(number)

    def _advanced(self, number: int) -> None:
        """Confirm what is committed, or what enough replicas have."""
        leader = self.leaders.get(number)
        if leader is None:
            return
        disk = self.disks[number]
        committed = leader.written(disk.end, self._durable(disk))
        self.committed[number] = committed
        self._check_committed(number)
        if leader.is_ready:
            self.world.checks.ready(number, leader.epoch, committed)
        waiting = self._waiting.get(number, [])
        assert committed <= leader.confirmed <= disk.end
        confirmed = [each for each in waiting if each[0] < leader.confirmed]
        if confirmed:
            if self.world.options.acks is None:
                self.world.checks.confirm(number, confirmed)
            self._check_copies(number, leader.epoch, *confirmed[-1])
        self._waiting[number] = [each for each in waiting if each[0] >= leader.confirmed]

    def _check_committed(self, number: int) -> None:
        first, stop, disk = self._checked[number], self.committed[number], self.disks[number]
        assert stop <= disk.end, f"partition {number}: more is committed than there is"
        self.world.checks.committed(number, first, disk.ids(first, stop))
        self._checked[number] = max(first, stop)

    def _check_copies(self, number: int, epoch: int, offset: int, id_: int) -> None:
        """Check that enough nodes have what is confirmed; without fsync some may have lost it.

        What is not committed another leader may have had truncated before this one hears of it.
        """
        copies = sum(
            disk.flushed_end > offset and disk.ids(offset, offset + 1) == [id_]
            for disk in (node.disks[number] for node in self.world.nodes)
        )
        options, state = self.world.options, self.world.coordinator.states[number]
        if options.acks is not None and (state.epoch != epoch or offset < self.committed[number]):
            return
        least = options.in_sync_min if options.acks is None else options.acks
        assert copies >= least or not options.is_fsync, f"{copies} copies of {id_}"

    def _durable(self, disk: Disk) -> int:
        return disk.flushed_end if self.world.options.is_fsync else disk.end

    def _flush_later(self, number: int) -> None:
        process, disk = self.process, self.disks[number]
        written = list(disk.batches)

        def flushed() -> None:
            if process != self.process:
                return
            same = 0  # it may have been truncated since, and written anew
            for ours, theirs in zip(disk.batches, written, strict=False):
                if ours != theirs:
                    break
                same += 1
            disk.flushed = max(disk.flushed, same)
            self._advanced(number)

        slowest_ms = 30 if self.world.options.is_fsync else 3000  # the kernel takes its time
        self.world.after(self.world.random.uniform(1, slowest_ms), flushed)

    def _tick(self, process: int) -> None:
        if process != self.process:
            return
        for number, leader in self.leaders.items():
            wanted = leader.propose(self.now_ms())
            if wanted is not None:
                self._ask(number, leader, wanted)
        self.world.after(TICK_MS, lambda: self._tick(process))

    def _ask(self, number: int, leader: LeaderReplica, wanted: PartitionState) -> None:
        """Ask the coordinator for a change of the in-sync set until it answers."""
        world, process = self.world, self.process

        def asked() -> None:
            held = world.coordinator.propose(number, wanted)
            world.send(-1, self.number, lambda: answered(held))

        def answered(held: PartitionState) -> None:
            if process == self.process and self.leaders.get(number) is leader:
                self.learn(number, held)

        def again() -> None:
            if process != self.process or self.leaders.get(number) is not leader:
                return
            if leader.proposal is wanted:
                world.send(self.number, -1, asked)
                world.after(200, again)

        again()


def begin(world: World) -> None:
    """Let clients publish and things go wrong."""
    Clients(world)
    Faults(world)


class Clients:
    """Publishers who send to whoever led a while ago."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.after(100, self._publish)

    def _publish(self) -> None:
        world, draw = self.world, self.world.random
        number = draw.randrange(PARTITIONS)
        leader = world.coordinator.states[number].leader
        node = world.nodes[draw.randrange(NODES) if leader is None else leader]
        ids = tuple(next(world.ids) for _ in range(draw.choice([1, 1, 2, 4])))
        world.after(draw.uniform(1, 30), lambda: node.publish(number, ids))
        if world.now < FAULTS_UNTIL_MS:
            world.after(draw.expovariate(1 / 25), self._publish)


class Faults:
    """Faults now and then, until a time at which all is mended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._next()

    def _next(self) -> None:
        world = self.world
        if world.now >= FAULTS_UNTIL_MS:
            world.is_quiet = True
            world.cuts.clear()
            for node in world.nodes:
                node.is_full = False
            return
        kinds: list[Callable[[Any], None]] = [
            *(self._kill, self._lose_power, self._cut, self._cut_one_way),
            *(self._lose_coordinator, self._expire, self._fill, self._jump, self._move),
            self._black_out,
        ]
        world.random.choice(kinds)(world.random.choice(world.nodes))
        world.after(world.random.expovariate(world.options.faults_per_s / 1000), self._next)

    def _kill(self, node: Node) -> None:
        node.stop(loses_power=False)

    def _lose_power(self, node: Node) -> None:
        """End a machine; without fsync only one that is not the last with what was confirmed."""
        if self.world.options.is_fsync or all(
            self._has_others(node, number, state)
            for number, state in self.world.coordinator.states.items()
        ):
            node.stop(loses_power=True)

    def _has_others(self, node: Node, number: int, state: PartitionState) -> bool:
        """Whether others are in sync, whatever becomes of changes that are on their way."""
        nodes = self.world.nodes
        proposed = [
            leader.proposal.in_sync
            for each in nodes
            if (leader := each.leaders.get(number)) is not None and leader.proposal is not None
        ]
        members = state.in_sync.intersection(*proposed)
        return node.number not in state.in_sync_nodes or any(
            nodes[each.node].is_up and nodes[each.node].member == each
            for each in members
            if each.node != node.number
        )

    def _black_out(self, _: Node) -> None:
        """End all machines at once, if what they have flushed is enough."""
        if self.world.options.is_fsync:
            for node in self.world.nodes:
                node.stop(loses_power=True)

    def _heal_later(self, pairs: set[tuple[int, int]]) -> None:
        world = self.world
        world.cuts |= pairs
        world.after(world.random.uniform(100, 2500), lambda: world.cuts.difference_update(pairs))

    def _cut(self, node: Node) -> None:
        """Cut a node off from some of the others, and maybe from the coordinator."""
        others = [
            n for n in range(-1, NODES) if n != node.number and self.world.random.random() < 0.6
        ]
        self._heal_later({(node.number, n) for n in others} | {(n, node.number) for n in others})

    def _cut_one_way(self, node: Node) -> None:
        other = self.world.random.randrange(-1, NODES)
        self._heal_later({self.world.random.choice([(node.number, other), (other, node.number)])})

    def _lose_coordinator(self, node: Node) -> None:
        self._heal_later({(node.number, -1), (-1, node.number)})

    def _expire(self, node: Node) -> None:
        self.world.coordinator.expire(node.number)

    def _fill(self, node: Node) -> None:
        node.is_full = True

        def empty() -> None:
            node.is_full = False

        self.world.after(self.world.random.uniform(100, 1500), empty)

    def _jump(self, node: Node) -> None:
        node.clock_ms += self.world.random.choice([-1000, -100, 100, 1000, 60_000])

    def _move(self, _: Node) -> None:
        world = self.world
        number = world.random.randrange(PARTITIONS)
        count = world.random.choice([2, 3, 3])
        world.coordinator.targets[number] = tuple(world.random.sample(range(NODES), count))


def run(seed: int) -> World:
    """Run one scenario to its end, and check what holds then. Raises AssertionError."""
    world = World(seed)
    begin(world)
    world.run(FAULTS_UNTIL_MS + QUIET_MS)
    states = world.coordinator.states
    logs = {
        number: {node: world.nodes[node].disks[number].ids() for node in state.replicas}
        for number, state in states.items()
    }
    world.checks.end(states, logs)
    return world
