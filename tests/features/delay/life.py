"""A delayed-message store on a disk that dies at a chosen step, one life after the other.

From the `dies_at`-th change on, neither files nor state store take any: what the node does from
then on is not kept, as if it had been killed there.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from leveret.core.environment import Environment
from leveret.core.logs.internal_topics import InternalTopics
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.errors import StorageError
from leveret.features.delay.store import DelayedMessageStores
from leveret.ports import Durability
from leveret.ports.definitions import INTERNAL
from leveret.storage.state import MemoryStateStore
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import abandon, make_store, recover_here
from tests.support.clock import FakeClock

START = 1_700_000_000_000
DATA = Path("/data")


class Fate:
    """Counts changes, of files and state alike."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.steps = 0
        self.dies_at = dies_at

    @property
    def is_dead(self) -> bool:
        return self.dies_at is not None and self.steps >= self.dies_at

    def step(self) -> bool:
        """One change; whether it still happens."""
        if not self.is_dead:
            self.steps += 1
        return not self.is_dead


class MortalFiles(FaultyFileSystem):
    fate = Fate()

    def _count(self, name: str) -> bool:
        if not self.fate.step():
            raise OSError(errno.EIO, "the disk is dead")
        return False


class MortalState(MemoryStateStore):
    def __init__(self, fate: Fate, pairs=()) -> None:
        super().__init__()
        self.fate = fate
        super().write(list(pairs), durable=True)

    def write(self, changes, *, durable: bool) -> None:
        if not self.fate.step():
            raise StorageError("the disk is dead")
        super().write(changes, durable=durable)


class Disk:
    """Disk that outlives a node."""

    def __init__(self) -> None:
        self.files = MortalFiles()
        self.pairs = []

    def keep(self, files: FaultyFileSystem, state: MemoryStateStore) -> None:
        self.files = MortalFiles()
        self.files.directories = files.directories
        self.files.files = files.files
        self.files.durable = files.durable
        self.pairs = list(state.scan(b""))


class Life:
    """A node from its start to its end."""

    def __init__(
        self, disk: Disk, clock: FakeClock, durability=Durability.OS, dies_at=None, **limits
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.fate = Fate(dies_at)
        self.durability = durability
        self.files = disk.files
        self.files.fate = self.fate
        self.state = MortalState(Fate(), disk.pairs)
        self.state.fate = self.fate
        limits.setdefault("segment_bytes_max", 2000)
        self.logs = None
        self.scheduled: list = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.reported: list[Exception] = []
        self.handed: list[bytes] = []
        self.early: list[bytes] = []
        self.settles = True
        try:
            self._start(limits)
        except StorageError:
            self.die(machine=durability is Durability.FSYNC)
            raise

    def _start(self, limits) -> None:
        self.logs = make_store(DATA, self.files, self.state, **limits)
        clock, topics = self.clock, InternalTopics(self.logs, self.durability)
        recover_here(self.logs, topics.name("/", "store", INTERNAL))
        self.stores = DelayedMessageStores(
            topics,
            self.state,
            Environment(
                Turn(self.scheduled.append, self.report),
                Timers(clock.wall_ms, clock.call_later, clock.seconds),
                self.spawn,
                self.report,
                random_name=str,
                random_below=int,
            ),
        )
        self.store = self.stores.open("/", "store", self.take, INTERNAL)

    def spawn(self, work) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    def report(self, subject, error) -> None:
        self.reported.append(error)

    def take(self, records) -> None:
        for record in records:
            if record.due_ms > self.clock.now:
                self.early.append(record.body)
            if not self.fate.is_dead:
                self.handed.append(record.body)
        if self.settles:
            self.store.settle([(record.offset, record.offset + 1) for record in records])

    def add(self, delay_ms: int, body: bytes) -> int:
        return self.store.add(self.clock.now + delay_ms, 1, b"x", b"key", b"head", body)

    async def run(self) -> None:
        for _ in range(1000):
            scheduled, self.scheduled[:] = list(self.scheduled), []
            for callback in scheduled:
                callback()
            done = {task for task in self.tasks if task.done()}
            self.tasks -= done
            for task in done:
                task.result()
            if self.tasks:
                await asyncio.wait(self.tasks)
            elif not self.scheduled:
                if self.store.is_caught_up or self.fate.is_dead:
                    return
                await asyncio.sleep(0.001)
        raise AssertionError("does not come to rest")

    async def advance(self, milliseconds: int) -> None:
        end = self.clock.monotonic + milliseconds
        await self.run()
        while True:
            due = [call.due for call in self.clock.calls if not call.cancelled]
            if not due or min(due) > end:
                break
            self.clock.advance(max(min(due) - self.clock.monotonic, 0))
            await self.run()
        self.clock.advance(end - self.clock.monotonic)
        await self.run()

    async def end(self, *, cleanly: bool = False, machine: bool = False) -> None:
        """The node ends, by a stop, a kill or a power cut."""
        if cleanly:
            await self.stores.close()
            await self.logs.close()
            self.disk.keep(self.files, self.state)
        else:
            self.fate.dies_at = 0
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            self.die(machine=machine)
        for call in self.clock.calls:
            call.cancel()

    def die(self, *, machine: bool) -> None:
        """Leave what a kill leaves, or a power cut."""
        if self.logs is not None:
            abandon(self.logs)
        kept = self.files.lose_machine() if machine else self.files.lose_process()
        self.disk.keep(kept, self.state)
