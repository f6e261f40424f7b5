"""Atomic writes on several logs against a simple model, through crashes at any moment."""

import errno
import os
import random

import pytest

from leveret.ports import Durability
from leveret.storage.state import MemoryStateStore
from tests.storage.atomic_harness import AtomicNode, Outcome
from tests.storage.faulty_files import FaultyFileSystem

TOPICS = ("a", "b", "c")


class Write:
    """One atomic write of the model: what it publishes where, and what it settles."""

    def __init__(self, body: bytes, targets: frozenset[str], settled: dict[str, set[bytes]]):
        self.body = body
        self.targets = targets
        self.settled = settled
        self.outcome = Outcome()


class AtomicMachine:
    """Bodies by topic: `present` must be there, `unsure` may be: nobody has confirmed them.

    `settled` were settled by themselves, and may come back after a crash; what an atomic write has
    `moved` may not. A write of whose outcome nobody has heard may have happened, but not in part.
    """

    def __init__(self, chance: random.Random, durability: Durability):
        self.chance = chance
        self.durability = durability
        self.files = FaultyFileSystem()
        self.state = MemoryStateStore()
        self.present: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.unsure: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.settled: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.moved: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.leased: set[tuple[str, bytes]] = set()
        self.writes: list[Write] = []
        self.puts: list[tuple[str, bytes, Outcome]] = []
        self.number = 0
        self.open()

    def open(self):
        self.node = AtomicNode(self.files, self.durability, TOPICS, self.state)

    def body(self) -> bytes:
        self.number += 1
        return b"%d." % self.number + b"x" * (self.number * 37 % 150)

    def some_topics(self) -> list[str]:
        return [topic for topic in TOPICS if self.chance.random() < 0.5]

    # -- what clients do

    def put(self):
        topic = self.chance.choice(TOPICS)
        body, outcome = self.body(), Outcome()
        appender = self.node.topics[topic]
        appender.builder.add(1, 1, b"x", b"key", b"header", body)
        appender.await_commit(outcome)
        self.puts.append((topic, body, outcome))

    def write(self):
        goals, sources = self.some_topics(), self.some_topics()
        write = self.node.atomic.begin()
        body, settled = self.body(), {}
        for topic in goals:
            write.publish(self.node.topics[topic], 1, b"x", b"key", b"header", body)
        for topic in sources:
            for offset, found in self.node.records(topic).items():
                if (topic, found) not in self.leased and found in self.present[topic]:
                    self.leased.add((topic, found))
                    settled[topic] = {found}
                    write.settle(self.node.topics[topic], [(offset, offset + 1)])
                    break
        made = Write(body, frozenset(goals), settled)
        self.writes.append(made)
        write.commit(made.outcome)

    def settle(self):
        topic = self.chance.choice(TOPICS)
        for offset, body in self.node.records(topic).items():
            if (topic, body) not in self.leased and body in self.present[topic]:
                self.node.topics[topic].settle([(offset, offset + 1)])
                self.present[topic].remove(body)
                self.settled[topic].add(body)
                return

    # -- what time brings

    def turn(self):
        self.node.work_turns()
        self.index()

    def finish_a_flush(self):
        if self.node.committer.waiting:
            self.node.committer.step()
            self.index()

    def fail_a_flush(self):
        if self.node.committer.waiting:
            self.node.committer.step(OSError(errno.EIO, os.strerror(errno.EIO)))
            self.index()

    def turn_while_the_disk_refuses(self):
        error, after = self.chance.choice([errno.ENOSPC, errno.EIO, 0]), self.chance.randint(1, 6)
        self.node.files.fail_at, self.node.files.error = self.node.files.calls + after, error
        self.node.work_turns()
        self.node.files.fail_at = None
        self.index()

    def write_settlements(self):
        self.node.store._write_settlements()

    def flush_settlements(self):
        self.node.store._flush_settlements()

    def rest(self):
        """Everything that was asked for comes about or not, for all to see."""
        self.node.run()
        self.node.write_settlements()
        self.node.run()
        self.index()
        assert not self.puts
        assert not self.writes
        self.check_exactly()

    def index(self):
        """Take in the outcomes that were told."""
        for topic, body, outcome in self.puts:
            if outcome.failed is not None:
                (self.unsure if outcome.failed else self.present)[topic].add(body)
        self.puts = [put for put in self.puts if put[2].failed is None]
        for write in self.writes:
            if write.outcome.failed is not None:
                self.conclude(write, happened=not write.outcome.failed)
        self.writes = [write for write in self.writes if write.outcome.failed is None]

    def conclude(self, write: Write, *, happened: bool):
        for topic, bodies in write.settled.items():
            self.leased -= {(topic, body) for body in bodies}
            if happened:
                self.present[topic] -= bodies
                self.moved[topic] |= bodies
        for topic in write.targets:
            assert (write.body in self.bodies(topic)) == happened
            if happened:
                self.present[topic].add(write.body)

    # -- ends

    def close_and_open(self):
        self.node.run()
        self.index()
        self.node.close()
        self.crashed(self.files, lost_settlements=False)

    def close_while_writes_are_under_way(self):
        self.node.close()
        self.crashed(self.files, lost_settlements=False)

    def kill(self):
        self.node.die()
        self.state = MemoryStateStore()
        self.crashed(self.files.lose_process(), lost_settlements=True)

    def cut_the_power(self):
        if self.durability is Durability.OS:
            return
        kept_bytes = self.chance.randrange(600)
        self.node.die()
        self.state = MemoryStateStore()
        self.crashed(self.files.lose_machine(kept_bytes), lost_settlements=True)

    def crashed(self, files, *, lost_settlements):
        self.files = files
        self.open()
        found = {topic: self.bodies(topic) for topic in TOPICS}
        for write in self.writes:
            happened = {write.body in found[topic] for topic in write.targets}
            happened |= {not bodies <= found[topic] for topic, bodies in write.settled.items()}
            assert len(happened) <= 1, "a write has happened in part"
            self.conclude(write, happened=True in happened)
        for topic in TOPICS:
            unheard = {body for of, body, _ in self.puts if of == topic}
            for body in (unheard | self.unsure[topic]) & found[topic]:
                self.present[topic].add(body)  # what was not confirmed may be there all the same
            self.unsure[topic].clear()
            if lost_settlements:
                self.present[topic] |= found[topic] & self.settled[topic]
                self.settled[topic] -= found[topic]
        self.puts, self.writes, self.leased = [], [], set()
        self.check_exactly()

    def bodies(self, topic) -> set[bytes]:
        found = list(self.node.records(topic).values())
        assert len(found) == len(set(found)), "a record stands there twice"
        return set(found)

    def check_exactly(self):
        for topic in TOPICS:
            found = self.bodies(topic)
            assert self.present[topic] <= found, "something is lost"
            assert not found & self.moved[topic], "something moved is there again"
            assert found <= self.present[topic] | self.unsure[topic], "something came from nowhere"

    def holds(self):
        for topic in TOPICS:
            log = self.node.topics[topic].log
            assert log.first <= log.committed <= log.end
            assert not self.bodies(topic) & self.moved[topic]


# How likely each is to be what happens next.
STEPS = {
    AtomicMachine.put: 8,
    AtomicMachine.write: 20,
    AtomicMachine.turn: 20,
    AtomicMachine.finish_a_flush: 20,
    AtomicMachine.settle: 3,
    AtomicMachine.write_settlements: 6,
    AtomicMachine.flush_settlements: 4,
    AtomicMachine.fail_a_flush: 1,
    AtomicMachine.turn_while_the_disk_refuses: 1,
    AtomicMachine.rest: 2,
    AtomicMachine.kill: 2,
    AtomicMachine.cut_the_power: 2,
    AtomicMachine.close_and_open: 1,
    AtomicMachine.close_while_writes_are_under_way: 1,
}


def live(seed: int, durability: Durability, steps: int) -> None:
    chance = random.Random(seed)
    machine = AtomicMachine(chance, durability)
    for step in chance.choices(list(STEPS), list(STEPS.values()), k=steps):
        step(machine)
        machine.holds()
    machine.rest()
    machine.node.die()


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_random_lives(durability):
    for seed in range(25):
        live(seed, durability, 150)


def test_what_waits_for_its_flush_is_not_shown_by_a_part_behind_it():
    live(1084, Durability.FSYNC, 250)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_many_random_lives(durability):
    for seed in range(1000, 1400):
        live(seed, durability, 250)
