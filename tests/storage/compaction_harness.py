"""A log that is compacted step by step, on files whose process can die before any call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from leveret.ports import Compaction, Durability, Retention
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from tests.storage.atomic_harness import MortalFiles
from tests.storage.harness import PERSISTENT, FixedClock, NoLock, abandon, keyed, open_log
from tests.storage.keys import encrypted_keyring
from tests.storage.test_log_machine import StepCommitter, stepped_threads

HOUR_MS = 3_600_000
DELAY_MS = 24 * HOUR_MS
COMPACTS = Retention(compaction=Compaction(DELAY_MS))
DATA = Path("/data")


class CompactedLog:
    """A store with one compacted log. Nothing happens in its threads but by a test's step."""

    def __init__(
        self,
        retention: Retention = COMPACTS,
        durability: Durability = Durability.FSYNC,
        *,
        encrypted: bool = False,
        checks: bool = True,
        **limits: int,
    ) -> None:
        self.checks = checks  # whether passes begin by themselves
        self.loop = asyncio.new_event_loop()
        self.files = MortalFiles()
        self.state = MemoryStateStore()
        self.clock = FixedClock()
        self.retention = retention
        self.durability = durability
        self.encrypted = encrypted
        self.limits = limits
        self.boots = self.epoch = 1
        self.open()

    def open(self) -> None:
        self.threads = stepped_threads()
        self.store = FileTopicStore(
            DATA,
            self.files,
            self.state,
            self.loop,
            clock=self.clock,
            limits=StorageLimits(
                **{
                    "segment_bytes_max": 1500,
                    "tail_cache_bytes_max": 600,
                    "settle_flush_interval_ms": 3_600_000,
                    "open_files_max": 2,
                    "compaction_bytes_per_s": 1 << 40,
                    **self.limits,
                }
            ),
            lock=NoLock(),
            threads=self.threads,
            boot=b"%16d" % self.boots,
            keyring=encrypted_keyring(self.files, DATA) if self.encrypted else None,
            durability=self.durability,
            epoch=self.epoch,
        )
        self.committer = self.threads.committer
        self.worker = self.store.compactor.worker = StepCommitter()
        if not self.checks:
            self.store.compactor.check = lambda log: None
        self.log = open_log(self.store, self.durability, retention=self.retention)
        self.removed: set[int] = set()  # as those were told who had asked
        self.log.on_remove(self._note_removed)

    def _note_removed(self, ranges) -> None:
        for first, stop in ranges:
            self.removed |= set(range(first, stop))

    def put(self, *records: tuple[bytes | None, bytes]) -> int:
        """Append one batch of (key, body)."""
        for key, body in records:
            self.log.builder.add(PERSISTENT, self.clock.now_ms, b"x", b"rk", keyed(key), body)
        base = self.log.append()
        self.settle_down()
        return base

    def settle_down(self) -> None:
        """Let all flushes and removals finish."""
        self.log.write_settlements()
        self.committer.drain()

    def roll(self) -> None:
        self.log._segments.roll(self.log.end)
        self.settle_down()

    def begin(self) -> None:
        """Begin a pass if none is under way, whether it pays or not."""
        self.store.compactor.compact(self.log)

    def compact(self) -> None:
        """Compact the log in one go."""
        self.begin()
        self.worker.drain()
        self.settle_down()

    def read(self, first: int = 0) -> dict[int, bytes]:
        """Offset and body of all that a reader gets from `first` on."""
        return {offset: body for offset, _, body in self.loop.run_until_complete(self._read(first))}

    async def _read(self, first: int) -> list[tuple[int, int, bytes]]:
        """Offset, time and body, in the order of reading."""
        found = []
        for begin, stop in self.log.settled.gaps(first, self.log.committed):
            offset = begin
            while offset < stop:
                for batch in await self.log.fetch(offset, 400):
                    found += [
                        (at, time_ms, body)
                        for at, _, time_ms, _, _, _, body in batch.records()
                        if max(offset, begin) <= at < stop
                    ]
                    offset = max(offset, batch.stop_offset)
        return found

    def die(self, *, power: bool = False, kept_bytes: int = 0, without: str = "") -> None:
        """Kill the process or cut the power, and open what is left, `without` some files."""
        abandon(self.store)
        if power:
            self.files = self.files.lose_machine(kept_bytes)
            self.boots += 1
        else:
            self.files = self.files.lose_process()
        for path in [path for path in self.files.files if without and path.suffix == without]:
            self.files.unlink(path)
        self.open()

    def restart(self) -> None:
        """Close properly, and open again."""

        async def both():
            async with asyncio.TaskGroup() as group:
                closing = group.create_task(self.store.close())
                while not closing.done():
                    self.committer.drain()
                    await asyncio.sleep(0)

        self.settle_down()
        self.loop.run_until_complete(both())
        self.open()

    def close(self) -> None:
        abandon(self.store)
        self.loop.close()
