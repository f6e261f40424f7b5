"""Cost of the storage engine: append per call, bytes per second, group commit, recovery.

    PYTHONPATH=. python bench/storage_append.py [--directory DIR] [--records 10000000]

How to read it: `µs/append` is the time the event loop is busy with one call, sealing, checksum and
write into the page cache included; packing the records (done by the frame reader in a broker) is
not. `fsync` counts until everything is committed. Recovery is after a kill: nothing was closed.
Figures depend on the machine: compare them with those of another revision on the same one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from leveret.ports import Durability, LogName
from leveret.storage.files import RealFileSystem
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore

if TYPE_CHECKING:
    from leveret.storage.lock import DirectoryLock

# ruff: noqa: SLF001 - a kill is imitated from within

HEADER = b"\0" * 14
NOW_MS = 1_700_000_000_000


class WallClock:
    """The system's time."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


BACKLOG = LogName("/", "backlog", "i", 0, Durability.OS)


class Held:
    """Stand-in for the lock of the data directory: a killed store cannot release it."""


def make_store(data: Path) -> FileTopicStore:
    loop = asyncio.get_running_loop()
    state, lock = MemoryStateStore(), cast("DirectoryLock", Held())
    return FileTopicStore(data, RealFileSystem(), state, loop, clock=WallClock(), lock=lock)


def fill(log, count: int, body: bytes, flags: int = 1) -> None:
    add = log.builder.add
    for _ in range(count):
        add(flags, NOW_MS, b"", b"key", HEADER, body)


async def all_committed(logs) -> None:
    moved = asyncio.Event()
    for log in logs:
        log._commit_callbacks[:] = [moved.set]
    while any(log.committed < log.end for log in logs):
        await moved.wait()
        moved.clear()


async def append_cost(data: Path, durability: Durability, per_batch: int, body_bytes: int) -> None:
    """Time `append` and `settle` alone, and the whole until everything is committed."""
    store = make_store(data)
    log = store.open("/", f"{durability.value}-{per_batch}-{body_bytes}", "i", 0, durability)
    calls = max(50, min(3000, 600_000 // per_batch))
    body = b"b" * body_bytes
    busy = settling = 0
    begun = time.perf_counter_ns()
    packing = 0
    for i in range(calls):
        before = time.perf_counter_ns()
        fill(log, per_batch, body)
        packed = time.perf_counter_ns()
        base = log.append()
        appended = time.perf_counter_ns()
        log.settle([(base, base + per_batch)])
        settled = time.perf_counter_ns()
        packing += packed - before
        busy += appended - packed
        settling += settled - appended
        if i % 20 == 0:
            await asyncio.sleep(0)
    await all_committed([log])
    whole = time.perf_counter_ns() - begun - packing
    size = calls * per_batch * (body_bytes + 50)
    print(
        f"{durability.value:5} {per_batch:6} x {body_bytes:5} B:"
        f" {busy / calls / 1000:8.2f} µs/append"
        f" {settling / calls / 1000:6.2f} µs/settle {size / busy * 1000:8.0f} MB/s append"
        f" {size / whole * 1000:8.0f} MB/s until committed"
    )
    await log.delete()
    await store.close()


async def turns(data: Path, durability: Durability, logs: int) -> None:
    """One small append per log and turn, waiting for all to be committed: group commit."""
    store = make_store(data)
    opened = [store.open("/", f"turn-{i}", "i", 0, durability) for i in range(logs)]
    rounds = 200 if logs < 10 else 20
    begun = time.perf_counter()
    for _ in range(rounds):
        for log in opened:
            fill(log, 1, b"b" * 100)
            log.append()
        await all_committed(opened)
    spent = time.perf_counter() - begun
    print(f"{durability.value:5} {logs} logs, all committed: {spent / rounds * 1000:.2f} ms a turn")
    for log in opened:
        await log.delete()
    await store.close()


async def backlog(data: Path, records: int) -> None:
    """Fill, kill, recover and drain a large backlog of small records."""
    store = make_store(data)
    log = store.open(*BACKLOG[:5])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    while log.end < records:
        fill(log, 1000, b"b" * 100)
        log.append()
        await asyncio.sleep(0)
    print(f"backlog of {records} records written in {time.perf_counter() - begun:.1f} s")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"memory grew by {grown / 1024:.0f} MB (tail cache of 64 MiB included)")
    store._marks.forget(store._marks.unopened)
    log._closed = True  # as a kill would leave it: no mark, nothing flushed
    await store.close()

    store = make_store(data)
    begun = time.perf_counter()
    await store.recover([BACKLOG])
    log = store.open(*BACKLOG[:5])
    print(f"recovered to {log.end} (unclean: {log.unclean}) in {time.perf_counter() - begun:.3f} s")
    begun = time.perf_counter()
    offset = fetched = 0
    while offset < log.end:
        batches = log.read(offset, 256 * 1024)
        if batches is None:
            batches = await log.fetch(offset, 256 * 1024)
            fetched += 1
        offset = batches[-1].stop_offset
    print(f"read through in {time.perf_counter() - begun:.2f} s, {fetched} reads in a thread")
    await log.close()
    begun = time.perf_counter()
    await store.recover([BACKLOG])
    log = store.open(*BACKLOG[:5])
    print(f"opened after a clean close in {time.perf_counter() - begun:.4f} s")
    await log.delete()
    await store.close()


async def main(directory: Path, records: int) -> None:
    for durability in (Durability.OS, Durability.NONE, Durability.FSYNC):
        for per_batch, body_bytes in ((1, 16), (100, 16), (1000, 100), (10_000, 16), (100, 1024)):
            await append_cost(directory, durability, per_batch, body_bytes)
    for logs in (1, 50, 200):
        await turns(directory, Durability.FSYNC, logs)
    if records:
        await backlog(directory, records)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--records", type=int, default=10_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        asyncio.run(main(Path(name), options.records))
    os.sync()
