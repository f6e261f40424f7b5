"""A node's delayed-message stores, with time, disk and loop in a test's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.environment import Environment
from leveret.core.logs.internal_topics import InternalTopics
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.features.delay.store import DelayedMessageStores
from leveret.ports import Durability
from leveret.ports.definitions import INTERNAL
from leveret.storage.state import MemoryStateStore
from tests.support.clock import FakeClock
from tests.support.memory_log import MemoryTopicStore
from tests.support.spawning import spawner

if TYPE_CHECKING:
    from leveret.features.delay.store import DelayedMessageStore, PendingMessage

START = 1_700_000_000_000
PASSES_MAX = 10_000


class Witness:
    """A waiter for a commit."""

    def __init__(self) -> None:
        self.heard: bool | None = None

    def done(self, *, failed: bool) -> None:
        assert self.heard is None
        self.heard = not failed


class Bench:
    """One life of a node, whose only topic is `store`; `restart` begins another one."""

    def __init__(self, durability=Durability.OS, topics=None, clock=None, state=None) -> None:
        self.durability = durability
        self.topics = topics or MemoryTopicStore()
        self.clock = clock or FakeClock(START)
        self.state = state or MemoryStateStore()
        self.scheduled, self.tasks, self.reported = [], [], []
        self.turn = Turn(self.scheduled.append, self.report)
        self.stores = DelayedMessageStores(
            InternalTopics(self.topics, durability),
            self.state,
            Environment(
                self.turn,
                Timers(self.clock.wall_ms, self.clock.call_later, self.clock.seconds),
                spawner(self.tasks),
                self.report,
                random_name=str,
                random_below=int,
            ),
        )
        self.handed: list[tuple[int, PendingMessage]] = []  # when, what
        self.store: DelayedMessageStore = self.stores.open("/", "store", self.take, INTERNAL)
        self.settles = True
        self.run()

    @property
    def log(self):
        return self.store.log

    def report(self, subject, error) -> None:
        self.reported.append(error)

    def take(self, records) -> None:
        self.handed += [(self.clock.now, record) for record in records]
        if self.settles:
            self.store.settle([(record.offset, record.offset + 1) for record in records])

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for _, record in self.handed]

    def add(self, delay_ms: int, body: bytes = b"body") -> int:
        return self.store.add(self.clock.now + delay_ms, 1, b"x", b"key", b"head", body)

    def run(self) -> None:
        """Turns and coroutines go on until nothing moves any more."""
        for _ in range(PASSES_MAX):
            scheduled, self.scheduled[:] = list(self.scheduled), []
            for callback in scheduled:
                callback()
            if not self._step() and not self.scheduled:
                return
        raise AssertionError("does not come to rest")

    def _step(self) -> bool:
        tasks, self.tasks[:] = list(self.tasks), []
        moved = False
        for task in tasks:
            try:
                task.send(None)
            except StopIteration:
                moved = True
            else:
                self.tasks.append(task)
        return moved

    def advance(self, milliseconds: int) -> None:
        """Let time pass, turns of the loop included."""
        end = self.clock.monotonic + milliseconds
        self.run()
        while True:
            calls = [call.due for call in self.clock.calls if not call.cancelled]
            due = min(calls, default=end)
            if due > end:
                break
            self.clock.advance(max(due - self.clock.monotonic, 0))
            self.run()
            if not calls:
                break
        self.clock.advance(end - self.clock.monotonic)
        self.run()

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock, as an operator may."""
        self.clock.now += milliseconds
        self.advance(60_000)  # a jump is noticed within a minute
