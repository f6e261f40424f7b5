"""Driving a world: things happen by name, or all of them until nothing is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.replication.world import Process, World

Action = tuple[str, Callable[[], None]]

IN_ORDER = {"cut", "describe"}  # done one after another
TURNS_MAX = 2_000


class Driver:
    """Has things happen in a world. `trace` are their names."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trace: list[str] = []

    def do(self, action: Action) -> None:
        name, act = action
        self.trace.append(name)
        act()
        self.world.check()

    def happen(self, name: str) -> None:
        """Do the action of a name, which must be possible."""
        found = dict(self.next())
        assert name in found, f"{name} cannot happen now, but {sorted(found)}"
        self.do((name, found[name]))

    def calm(self, *held: str) -> None:
        """Let all happen but what begins with one of the names in `held`, each as often."""
        done: Counter[str] = Counter()
        for _ in range(TURNS_MAX):
            actions = [action for action in self.next() if not action[0].startswith(held)]
            if not actions:
                return
            action = min(actions, key=lambda action: done[action[0]])
            done[action[0]] += 1
            self.do(action)
        raise AssertionError(f"never calm: {self.trace[-20:]}")

    def wait(self, ms: int) -> None:
        """Let time pass in which all that are up renew their sessions, and tick."""
        for _ in range(0, ms, 250):
            self.world.now += 250
            for node, process in enumerate(self.world.processes):
                if process is not None:
                    self.world.renew(node)
                    self.do((f"tick {node}", partial(self.world.tick, node)))

    def lead(self) -> None:
        """Start all nodes and have the first elected, which the others follow."""
        for node in range(len(self.world.disks)):
            self.world.start(node)
        self.world.seen_live = dict(self.world.live)
        self.calm()
        assert self.world.serving() == [0]

    # -- what may happen

    def next(self) -> list[Action]:
        """Return what may happen by itself, without a fault."""
        return self.work() + self.messages() + self.coordination()

    def work(self) -> list[Action]:
        actions: list[Action] = []
        for node, process in enumerate(self.world.processes):
            waits = False
            for at, (what, _) in enumerate([] if process is None else process.work):
                if what not in IN_ORDER or not waits:
                    actions.append((f"{what} at {node}", partial(self._work, process, at)))
                waits = waits or what in IN_ORDER
        return actions

    @staticmethod
    def _work(process: Process, at: int) -> None:
        _, done = process.work.pop(at)
        done()

    def messages(self) -> list[Action]:
        world = self.world
        actions: list[Action] = []
        for node, process in enumerate(world.processes):
            if process is None:
                continue
            link, wanted = process.outgoing, process.wanted
            if (
                link is None
                and wanted is not None
                and world.processes[wanted] is not None
                and world.now >= process.connects_from_ms
            ):
                actions.append((f"connect {node} to {wanted}", partial(world.connect, node)))
            if link is not None and link.to_follower:
                act = partial(world.to_follower, link.leader, node)
                actions.append((f"message {link.leader} to {node}", act))
            for follower, incoming in process.incoming.items():
                if incoming.to_leader:
                    act = partial(world.to_leader, follower, node)
                    actions.append((f"message {follower} to {node}", act))
        return actions

    def coordination(self) -> list[Action]:
        world = self.world
        actions: list[Action] = []
        for node, process in enumerate(world.processes):
            if process is None:
                continue
            if process.reads_entry or process.replica.entry != world.entry:
                actions.append((f"learn {node}", partial(world.learn, node)))
        for write in world.writes:
            author = "nobody" if write.author is None else write.author.node
            if write.outcome is None:
                actions.append((f"write of {author}", partial(world.do_write, write)))
            else:
                actions.append((f"answer to {author}", partial(world.answer, write)))
        planned = world.planned()
        if planned is not None:
            actions.append((f"elect {planned.leader}", world.elect))
        return actions
