"""Atomic writes on a file system in memory whose process can die before any of its calls."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from leveret.core.logs.atomic import AtomicWrites
from leveret.core.logs.log_writer import LogWriter
from leveret.core.turn import Turn
from leveret.ports import Durability
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import FixedClock, NoLock, abandon, open_log
from tests.storage.keys import encrypted_keyring
from tests.storage.test_log_machine import stepped_threads

DATA = Path("/data")


class Died(BaseException):
    """`kill -9`."""


class MortalFiles(FaultyFileSystem):
    """The process dies instead of doing call number `dies_at`."""

    dies_at: int | None = None

    def _count(self, name: str) -> bool:
        if self.calls + 1 == self.dies_at:
            raise Died
        return super()._count(name)

    def _with(self, contents) -> MortalFiles:
        found = super()._with(contents)
        made = MortalFiles()
        made.__dict__.update(found.__dict__)
        return made


class Topic(LogWriter):
    """A log with records that somebody takes; nothing is known of it but what the log says."""

    def _show_committed(self) -> None:
        pass


class Outcome:
    """A waiter."""

    def __init__(self) -> None:
        self.failed: bool | None = None

    def done(self, *, failed: bool) -> None:
        assert self.failed is None
        self.failed = failed


class AtomicNode:
    """A store, a turn and topics. Nothing happens but in `run`, or when a test says so."""

    transactions = count(1)

    def __init__(
        self,
        files: FaultyFileSystem,
        durability: Durability,
        topics: tuple[str, ...],
        state: MemoryStateStore | None = None,
        *,
        encrypted: bool = False,
        **limits: int,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.files = files
        self.state = MemoryStateStore() if state is None else state
        self.durability = durability
        self.reported: list[Exception] = []
        self._scheduled: list = []
        self.threads = stepped_threads()
        self.store = FileTopicStore(
            DATA,
            files,
            self.state,
            self.loop,
            clock=FixedClock(),
            limits=StorageLimits(
                **{
                    "segment_bytes_max": 700,
                    "tail_cache_bytes_max": 600,
                    "settle_flush_interval_ms": 3_600_000,
                    "open_files_max": 2,
                    **limits,
                }
            ),
            lock=NoLock(),
            threads=self.threads,
            keyring=encrypted_keyring(files, DATA) if encrypted else None,
            durability=durability,
        )
        self.committer = self.threads.committer
        report = lambda _subject, error: self.reported.append(error)  # noqa: E731
        self.turn = Turn(self._scheduled.append, report)
        self.atomic = AtomicWrites(
            self.store, self.turn, lambda: next(self.transactions), lambda: 1, report
        )
        self.topics = {
            name: Topic(open_log(self.store, durability, name), self.turn, report)
            for name in topics
        }
        self.orphans = self.store.orphans()

    def work_turns(self) -> None:
        while self._scheduled:
            scheduled, self._scheduled[:] = list(self._scheduled), []
            for callback in scheduled:
                callback()

    def run(self) -> None:
        """Turns and flushes, until nothing moves any more."""
        self.work_turns()
        while self.committer.waiting:
            self.committer.step()
            self.work_turns()

    def write_settlements(self) -> None:
        self.store._write_settlements()
        self.store._flush_settlements()

    def put(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            self.topics[topic].builder.add(1, 1, b"x", b"key", b"header", body)
        self.turn.touch(self.topics[topic])

    def records(self, topic: str) -> dict[int, bytes]:
        """Return what can be read of a topic and is not settled."""
        return self.loop.run_until_complete(self._records(self.topics[topic].log))

    async def _records(self, log) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for first, stop in log.settled.gaps(0, log.committed):
            offset = first
            while offset < stop:
                for batch in await log.fetch(offset, 1000):
                    found |= {r[0]: r[6] for r in batch.records() if first <= r[0] < stop}
                    offset = batch.stop_offset
        return found

    def die(self) -> None:
        abandon(self.store)
        self.loop.close()

    async def _close(self) -> None:
        # The flushes that closing asks for are done while it waits for them.
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(self.store.close())
            while not closing.done():
                self.committer.drain()
                await asyncio.sleep(0)

    def close(self) -> None:
        """End properly; what is under way is left as it is."""
        for topic in self.topics.values():
            topic.deleted = True  # its callbacks find nobody
        self.loop.run_until_complete(self._close())
        self.loop.close()
