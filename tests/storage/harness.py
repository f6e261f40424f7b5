"""Opening stores, logs and records in tests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from leveret.ports import Durability, LogName
from leveret.storage.files import RealFileSystem
from leveret.storage.names import log_key
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from tests.support.waiting import eventually

PERSISTENT = 1
BOOT = b"the first boot !"


def keyed(key: bytes | None) -> bytes:
    """A content header whose only header is `x-partition-key`; of None one without headers."""
    if key is None:
        return bytes(14)
    fields = b"\x0fx-partition-keyS" + len(key).to_bytes(4, "big") + key
    return bytes(12) + b"\x20\x00" + len(fields).to_bytes(4, "big") + fields


class FixedClock:
    """A Clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class NoLock:
    """Stands for a lock that the test holds: crashed stores cannot give theirs back."""


def make_store(data: Path, files=None, state=None, keyring=None, **limits) -> FileTopicStore:
    """A store that flushes settlements only when told, unless `limits` say otherwise."""
    limits.setdefault("settle_flush_interval_ms", 3_600_000)
    durability = limits.pop("durability", Durability.FSYNC)
    boot = limits.pop("boot", BOOT)
    epoch = limits.pop("epoch", 0)
    return FileTopicStore(
        data,
        files or RealFileSystem(),
        state if state is not None else MemoryStateStore(),
        asyncio.get_running_loop(),
        clock=FixedClock(),
        limits=StorageLimits(**limits),
        lock=NoLock(),
        keyring=keyring,
        durability=durability,
        boot=boot,
        epoch=epoch,
    )


@asynccontextmanager
async def store_at(data: Path, files=None, state=None, keyring=None, **limits):
    store = make_store(data, files, state, keyring, **limits)
    try:
        yield store
    finally:
        await store.close()


def recover_here(store, *logs: LogName) -> None:
    """Recover logs as `store.recover` does, but on this thread, for tests that run no loop."""
    for log in logs:
        key = log_key(*log[:4])
        if isinstance(store, FileTopicStore) and store.must_recover(*log[:4]):
            store._recoveries.keep(key, store._recovery(key, log)())


def open_log(store, durability=Durability.OS, topic="orders", retention=None, vhost="/"):
    """Recover and open a log."""
    recover_here(store, LogName(vhost, topic, "i1", 0, durability))
    return store.open(vhost, topic, "i1", 0, durability, retention=retention)


def put(log, *bodies: bytes, flags: int = PERSISTENT, may_block: bool = False) -> int:
    """Append one batch."""
    for body in bodies:
        log.builder.add(flags, 1_700_000_000_000, b"x", b"key", b"header", body)
    return log.append(may_block)


async def get(log, offset: int, bytes_max: int = 1 << 20):
    """Batches at `offset`, from wherever they come."""
    found = log.read(offset, bytes_max)
    return await log.fetch(offset, bytes_max) if found is None else found


async def bodies(log, offset: int = 0, stop: int | None = None) -> dict[int, bytes]:
    """Offset and body of everything from `offset` to `stop` (the committed offset)."""
    found: dict[int, bytes] = {}
    stop = log.committed if stop is None else stop
    while offset < stop:
        batches = await get(log, offset, 1000)
        assert batches
        for batch in batches:
            found.update(
                (record[0], record[6]) for record in batch.records() if offset <= record[0] < stop
            )
        offset = batches[-1].stop_offset
    return found


def make_flushes_quick(store) -> None:
    """Have the store take its disk for a quick one, which may be waited for on the loop."""
    for _ in range(100):
        store.flushes.ended(0, 0, failed=False)


async def committed(log, offset: int) -> None:
    """Wait until `offset` is committed."""
    await eventually(lambda: log.committed >= offset)


def abandon(store) -> None:
    """Let go of a store as `kill -9` does: nothing is flushed, nothing is marked."""
    for timer in (store._settle_timer, store._flush_timer, store._retention_timer):
        if timer is not None:
            timer.cancel()
    store._notes.stop()
    for log in store.logs():
        log._closed = True
    store._stop_threads()
    store._threads.close()
    for log in store.logs():
        log._release()
