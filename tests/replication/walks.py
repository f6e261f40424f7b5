"""Random walks through a world: what happens next is drawn from a seed, faults less often.

Behind the walk the world comes to rest: without further faults somebody must lead and serve, with
everything committed and all replicas equal.
"""

from __future__ import annotations

import random
from functools import partial

from leveret.replication.limits import ReplicationLimits
from tests.replication.driver import Action, Driver
from tests.replication.virtual_log import VirtualLog
from tests.replication.world import BrokenError, Process, World

LOGS = ("one", "two")
DISK = {"flush", "describe", "cut", "keep epoch", "open"}  # work that a disk may refuse
STEPS = 600
ROUNDS = 120  # of 250 ms, until it must have come to rest


class Walk(Driver):
    """A walk of a world that is drawn from the seed, too."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.chance = random.Random(seed)
        count = self.chance.choice((2, 3, 3, 3))
        members = frozenset(range(self.chance.randint(1, count)))
        minimum = self.chance.choice((1, 1, 2))
        frame = self.chance.choice((1, 150, 1 << 20))
        limits = ReplicationLimits(
            frame_bytes_max=frame, window_bytes_max=self.chance.choice((1, 300, 8 << 20))
        )
        super().__init__(World(count, members=members, members_min=minimum, limits=limits))
        self.world.reads_early = self.chance.random() < 0.5
        self.steps = steps
        self.logs = list(LOGS)
        self.faults = self.chance.choice((0.005, 0.02, 0.05))  # of all that happens

    def run(self) -> None:
        """Walk, and come to rest. Raises BrokenError with the end of the trace."""
        try:
            for node in range(len(self.world.disks)):
                self.do((f"start {node}", partial(self.world.start, node)))
            for _ in range(self.steps):
                self.step()
            self.rest()
        except (AssertionError, LookupError) as error:
            lines = "\n".join(self.trace[-60:])
            raise BrokenError(f"{error}\n{lines}") from error

    def step(self) -> None:
        drawn = self.chance.random()
        actions = self.faulty() if drawn < self.faults else self.usual()
        if drawn > 0.95 or not actions:
            ms = self.chance.choice((1, 5, 50, 400, 1500))
            self.do((f"wait {ms} ms", partial(self.sleep, ms)))
        else:
            self.do(self.chance.choice(actions))

    def sleep(self, ms: int) -> None:
        """Let time pass, in which nodes renew their sessions unless they are stopped."""
        world = self.world
        while ms > 0:
            world.now += min(ms, 300)
            ms -= 300
            for node, process in enumerate(world.processes):
                if process is not None and node in world.live and self.chance.random() < 0.8:
                    world.renew(node)

    def usual(self) -> list[Action]:
        """Return what may happen without a fault, and starts of what has ended."""
        world = self.world
        actions = self.next()
        if world.seen_live != world.live:
            actions.append(("controller reads", self.see_live))
        for node, process in enumerate(world.processes):
            if process is None:
                actions.append((f"start {node}", partial(world.start, node)))
                if world.may_expire(node):
                    actions.append((f"expire {node}", partial(world.expire, node)))
            elif self.chance.random() < 0.2:
                reads = self.chance.random() < 0.8
                kind = "tick" if reads else "tick without reading"
                actions.append((f"{kind} {node}", partial(world.tick, node, reads=reads)))
        for node in world.serving():
            actions += self.writes(world.process(node))
        if self.chance.random() < self.faults * 5:
            actions += self.lost_answers()
        return actions

    def lost_answers(self) -> list[Action]:
        waited_for = [write for write in self.world.writes if write.author is not None]
        lose = self.world.lose_answer
        return [("lose an answer", partial(lose, write)) for write in waited_for]

    def see_live(self) -> None:
        self.world.seen_live = dict(self.world.live)

    def writes(self, process: Process) -> list[Action]:
        """Return what a leader that serves may do with a log."""
        world, node = self.world, process.node
        actions: list[Action] = []
        name = self.chance.choice(self.logs)
        world.value += 1
        rolls = self.chance.random() < 0.2
        append = partial(world.append, node, name, rolls=rolls)
        kind = "append in a new file" if rolls else "append"
        actions.append((f"{kind} {node} {name}", partial(append, world.value)))
        log = process.open.get(name)
        if log is None:
            return actions
        if self.chance.random() < 0.01:
            actions.append((f"drop {node} {name}", partial(self.drop, node, name)))
        first = log.log.files[0].index if log.log.files else 0
        if log.committed > first:
            settled = self.chance.randint(first + 1, log.committed)
            actions.append((f"settle {node} {name} {settled}", partial(append, -settled)))
        if world.removable(process, name) is not None:
            actions.append((f"remove {node} {name}", partial(world.remove, node, name)))
        if world.compactable(process, name) is not None and self.chance.random() < 0.3:
            actions.append((f"compact {node} {name}", partial(world.compact, node, name)))
        return actions

    def drop(self, node: int, name: str) -> None:
        """Delete a log. There is never another one of its name."""
        self.logs[self.logs.index(name)] = f"{name}'"
        self.world.drop(node, name)

    def faulty(self) -> list[Action]:
        """Return faults that may happen."""
        world = self.world
        actions: list[Action] = []
        for node, process in enumerate(world.processes):
            if world.may_expire(node):
                actions.append((f"expire {node}", partial(world.expire, node)))
            if process is None:
                continue
            actions.append((f"crash {node}", partial(world.crash, node)))
            actions += self.failures(node, process)
            kept = self.chance.randint(0, 2)
            actions.append((f"crash machine {node}", partial(world.crash_machine, node, kept)))
            if process.outgoing is not None:
                cut = partial(world.disconnect, process, process.outgoing.leader)
                actions.append((f"cut link of {node}", cut))
            if process.replica.entry is None and world.former:
                act = partial(world.learn, node, self.chance.choice(world.former))
                actions.append((f"learn old entry {node}", act))
            if process.replica.leader is not None:
                actions.append((f"resign {node}", partial(world.resign, node)))
            if node not in world.entry.isr and node in world.live:
                actions.append((f"replace {node}", partial(world.replace, node)))
        return actions + self.lost_answers()

    def failures(self, node: int, process: Process) -> list[Action]:
        """Return errors of a disk that may happen, and damage to what it has."""
        world = self.world
        actions: list[Action] = [
            (f"fail to {what} at {node}", partial(world.fail, process, at))
            for at, (what, _) in enumerate(process.work)
            if what in DISK
        ]
        logs = [log for log in process.disk.logs.values() if log.flushed]
        if logs and self.chance.random() < 0.3:
            log = self.chance.choice(logs)
            index = self.chance.randrange(log.flushed)
            actions.append((f"damage {node} {log.name}", partial(self.damage, process, log, index)))
        return actions

    @staticmethod
    def damage(process: Process, log: VirtualLog, index: int) -> None:
        process.disk.damage[log.name] = min(index, process.disk.damage.get(log.name, index))

    # -- rest

    def rest(self) -> None:
        """Start all nodes, and let all happen that is under way. Nothing is written any more."""
        world = self.world
        for _ in range(ROUNDS):
            for node, process in enumerate(world.processes):
                if process is None:
                    self.do((f"start {node}", partial(world.start, node)))
            self.see_live()
            self.calm()
            for node in world.serving():
                for name in list(world.process(node).open):
                    while world.removable(world.process(node), name) is not None:
                        self.do((f"remove {node} {name}", partial(world.remove, node, name)))
            if self.is_at_rest():
                return
            self.wait(250)
        raise BrokenError(f"does not come to rest: {world.entry} {world.live}")

    def is_at_rest(self) -> bool:
        world = self.world
        serving = world.serving()
        if len(serving) != 1 or world.entry.isr != frozenset(range(len(world.disks))):
            return False
        leader = world.process(serving[0])
        if any(log.committed != log.log.end for log in leader.open.values()):
            return False
        wanted = {name: log.files for name, log in leader.disk.logs.items() if log.files}
        return all(
            {name: log.files for name, log in disk.logs.items() if log.files} == wanted
            for disk in world.disks
        )
