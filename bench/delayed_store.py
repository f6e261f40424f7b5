"""Measure a delayed-message store: memory, lateness under load, and the time of a start.

    python -m bench.delayed_store [--pending 1000000] [--rate 20000] [--seconds 15]
    python -m bench.delayed_store --restart [--pending 10000000]

How to read it: records of about 200 bytes are added in an order that has nothing to do with when
they are due. `memory` is how much the process has grown with all of them pending, caches and what
LMDB maps included. Then `rate` of them come due each second, each is handed out and settled:
`lateness` is how long after its due time, in milliseconds, by the same clock. With `--restart` the
store is closed, or left as `kill -9` leaves it, and opened by another process: `ready` is until the
delayed-message store takes records, `near` until the wheel holds what is due soon.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from leveret.core.environment import Environment
from leveret.core.logs.internal_topics import InternalTopics
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.features.delay.store import DelayedMessageStores
from leveret.ports import Durability
from leveret.ports.definitions import INTERNAL
from leveret.storage.files import RealFileSystem
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore

BODY = b"b" * 150
HEADER = b"\0" * 14
PER_TURN = 2000


class WallClock:
    """The system's time."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Node:
    """A node's stores, as far as a delayed-message store needs them, and one of those."""

    def __init__(self, data: Path) -> None:
        loop = asyncio.get_running_loop()
        self.clock = WallClock()
        self.state = LmdbStateStore(data / "state.lmdb", print)
        self.logs = FileTopicStore(data, RealFileSystem(), self.state, loop, clock=self.clock)
        self.tasks: set[asyncio.Task[None]] = set()
        self.lateness: list[int] = []
        self.topics = InternalTopics(self.logs, Durability.OS)
        self.stores = DelayedMessageStores(
            self.topics,
            self.state,
            Environment(
                Turn(loop.call_soon, print),
                Timers(self.clock.wall_ms, loop.call_later, loop.time),
                self.spawn,
                print,
                random_name=str,
                random_below=int,
            ),
        )

    async def open(self) -> Node:
        """Open the delayed-message store, which an earlier run may have left."""
        await self.logs.recover([self.topics.name("/", "bench", INTERNAL)])
        self.store = self.stores.open("/", "bench", self.take, INTERNAL)
        return self

    def spawn(self, work) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def take(self, records) -> None:
        now = self.clock.wall_ms()
        self.lateness += [now - record.due_ms for record in records]
        self.store.settle([(record.offset, record.offset + 1) for record in records])

    async def fill(self, count: int, begins_ms: int, spread_ms: float) -> None:
        chance = random.Random(1)
        for begun in range(0, count, PER_TURN):
            for _ in range(min(PER_TURN, count - begun)):
                due = begins_ms + int(chance.random() * spread_ms)
                self.store.add(due, 1, b"", b"key", HEADER, BODY)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self.stores.close()
        await self.logs.close()
        self.state.close()


async def load(data: Path, pending: int, rate: int, seconds: int) -> None:
    node = await Node(data).open()
    before = resident_mb()
    begun = time.perf_counter()
    fill_ms = int(pending * 0.02) + 5000
    begins_ms = node.clock.wall_ms() + fill_ms
    await node.fill(pending, begins_ms, 1000 * pending / rate)
    spent = time.perf_counter() - begun
    print(f"{pending:,} records added in {spent:.1f} s, {spent / pending * 1e6:.1f} µs each")
    await asyncio.sleep(max(begins_ms - node.clock.wall_ms() - 1500, 0) / 1000)
    print(f"memory: {resident_mb() - before:.0f} MB for {node.store.pending_count:,} pending")
    node.lateness.clear()
    await asyncio.sleep(1.5)
    used = time.process_time()
    await asyncio.sleep(seconds)
    used = time.process_time() - used
    found = sorted(node.lateness)
    shares = {name: found[int(share * (len(found) - 1))] for name, share in SHARES.items()}
    text = ", ".join(f"{name} {value}" for name, value in shares.items())
    print(f"lateness in ms of {len(found):,} at {rate:,} a second: {text}")
    print(f"processor: {100 * used / seconds:.0f} % of a core")
    await node.close()


SHARES = {"least": 0.0, "p50": 0.5, "p99": 0.99, "p99.9": 0.999, "most": 1.0}


async def fill(data: Path, pending: int, *, clean: bool) -> None:
    node = await Node(data).open()
    year_ms = 365 * 86_400_000
    await node.fill(pending, node.clock.wall_ms() + 60_000, year_ms)
    if not clean:
        os._exit(9)
    await asyncio.sleep(2)
    await node.close()


async def start(data: Path) -> None:
    begun = time.perf_counter()
    node = await Node(data).open()
    ready = time.perf_counter() - begun
    pending = node.store.pending_count
    await asyncio.sleep(0)
    while node.store._keeping:  # noqa: SLF001, ASYNC110
        await asyncio.sleep(0.01)
    near = time.perf_counter() - begun
    print(f"{pending:,} pending: ready after {ready:.2f} s, near after {near:.2f} s")
    found = time.perf_counter()
    assert len(node.store.scan(None, None, 100)) == 100
    print(f"the first hundred of them listed in {1000 * (time.perf_counter() - found):.0f} ms")
    print(f"memory of the process: {resident_mb():.0f} MB")
    await node.close()


async def restart(data: Path, pending: int) -> None:
    for way in ("stop", "kill"):
        for step in (way, "start"):
            arguments = [
                "-m",
                "bench.delayed_store",
                "--step",
                step,
                "--directory",
                str(data / way),
            ]
            (data / way).mkdir(exist_ok=True)
            print(f"{step}:", flush=True)
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, "--pending", str(pending)
            )
            await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=None)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--step", choices=["stop", "kill", "start"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    pending = options.pending or (10_000_000 if options.restart else 1_000_000)
    if options.step == "start":
        uvloop.run(start(options.directory))
    elif options.step:
        uvloop.run(fill(options.directory, pending, clean=options.step == "stop"))
    else:
        with tempfile.TemporaryDirectory(dir=options.directory) as name:
            work = (
                restart(Path(name), pending)
                if options.restart
                else load(Path(name), pending, options.rate, options.seconds)
            )
            uvloop.run(work)


if __name__ == "__main__":
    main()
