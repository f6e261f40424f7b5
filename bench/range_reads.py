"""Range reads: rows a second on one connection, and what a second client feels of them.

    python -m bench.range_reads [messages] [--rounds 5] [--rates 1100000] [--first]

A stream is filled with messages of 100 bytes, 10 million unless told. First a reader reads all of
it over one connection, with each set of columns. Then a publisher and a consumer with 2,000
messages a second take turns: alone, and beside a reader that reads the stream again and again, at
each of the rates (rows a second; 0: as fast as it can). Medians over all rounds.

Reader and second client would run on machines of their own. Here they share a core, so the reader
is the one that waits (SCHED_IDLE, see sched(7)); the broker has the other core. Read the ratio of
the two p99, which shall stay below 2 while at least a million rows a second are read. Neighbours of
the machine are in both, and can only add to them: so the lower quartiles are compared as well. With
`--first` (as root) node and clients go before everybody else on the machine (SCHED_FIFO), the
reader last of them; the kernel stops them for 50 ms of each second in which they leave nothing, so
ask for rates that a node reaches easily.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.leveret import Leveret
from bench.management import http_of
from bench.measure import perf
from bench.processes import client_core, pinned
from leveret.range_reader import RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGES = 10_000_000
QUEUE, QUEUE_NAME = "bench-ranges", "bench-ranges.00000000"
COLUMNS = ("offset", "timestamp", "key", "value")
SETS = {"all": None, "offset, timestamp, key, value": COLUMNS, "value": ("value",)}
ROWS_AT_LEAST = 1_000_000
RATIO_MAX = 2.0
LATENCY = (
    *("--rate", "2000", "--persistent", "--confirms", "2000", "--ack-every", "1"),
    *("--ack-frames", "each", "--prefetch", "2000", "--duration", "3", "--warm-up", "0.5"),
)


def read_through(url: str, end: int, columns: tuple[str, ...] | None, rate: int = 0) -> float:
    """Read the stream once; return rows a second."""
    begun = time.perf_counter()
    rows = 0
    with RangeReader(url, "guest", "guest") as reader:
        for chunk in reader.chunks(QUEUE_NAME, 0, 0, end, columns=columns):
            rows += chunk.rows
            if rate:
                time.sleep(max(begun + rows / rate - time.perf_counter(), 0))
    assert rows == end, f"{rows} rows of {end}"
    return rows / (time.perf_counter() - begun)


def go_first(pid: int) -> None:
    """Let a process, and whatever it starts from now on, go before all others."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(20))


def read_on(url: str, end: int, rate: int, *, first: bool) -> None:
    """Read the stream again and again, and print how many rows that were so far."""
    policy = os.SCHED_FIFO if first else os.SCHED_IDLE
    os.sched_setscheduler(0, policy, os.sched_param(int(first)))
    rows, begun = 0, time.perf_counter()
    with RangeReader(url, "guest", "guest") as reader:
        while True:
            for chunk in reader.chunks(QUEUE_NAME, 0, 0, end, columns=COLUMNS):
                rows += chunk.rows
                print(time.perf_counter(), rows, flush=True)
                if rate:
                    time.sleep(max(begun + rows / rate - time.perf_counter(), 0))


@contextmanager
def reading(url: str, end: int, rate: int, rates: list[float]) -> Iterator[None]:
    """Let a process of its own read meanwhile; what it has read a second goes into `rates`."""
    command = [sys.executable, "-m", "bench.range_reads", str(end), "--read-on", url]
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        command.append("--first")
    with pinned(client_core()), tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*command, "--rates", str(rate)], stdout=output)
        try:
            time.sleep(0.5)
            yield
        finally:
            process.terminate()
            process.wait()
        output.seek(0)
        lines = [line.split() for line in output.read().splitlines()[:-1]]
        (first_s, first), (last_s, last) = lines[0], lines[-1]
        rates.append((int(last) - int(first)) / (float(last_s) - float(first_s)))


def p99_ms(node: Leveret) -> float:
    """Milliseconds at p99 of a second client."""
    p99: float = perf(node, *LATENCY)["latency"]["milliseconds"]["p99"]
    return p99


def quartile(readings: list[float]) -> float:
    """Return what a quarter of the readings stays below."""
    return statistics.quantiles(readings, n=4, method="inclusive")[0]


def told(readings: list[float]) -> str:
    """Return median, lower quartile and all of the readings."""
    every = ", ".join(f"{each:.3f}" for each in readings)
    return f"{statistics.median(readings):.3f} ms, quartile {quartile(readings):.3f} ({every})"


def compare(node: Leveret, messages: int, rounds: int, rates: list[int]) -> bool:
    """Print what a second client feels of a reader at each rate. Returns whether all is met."""
    quiet: list[float] = []
    beside: dict[int, list[float]] = {rate: [] for rate in rates}
    rows: dict[int, list[float]] = {rate: [] for rate in rates}
    for _ in range(rounds):
        quiet.append(p99_ms(node))
        for rate in rates:
            with reading(http_of(node), messages, rate, rows[rate]):
                beside[rate].append(p99_ms(node))
    alone = statistics.median(quiet)
    print(f"p99 alone {told(quiet)}")
    is_met = True
    for rate in rates:
        p99, read = statistics.median(beside[rate]), statistics.median(rows[rate])
        is_met &= p99 < RATIO_MAX * alone and read >= ROWS_AT_LEAST
        print(
            f"beside {read:,.0f} rows/s: p99 {told(beside[rate])}; ratio {p99 / alone:.2f}, "
            f"of quartiles {quartile(beside[rate]) / quartile(quiet):.2f}"
        )
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description="Reading a stream by ranges.")
    parser.add_argument("messages", type=int, nargs="?", default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", type=int, nargs="+", default=[ROWS_AT_LEAST * 11 // 10])
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--read-on", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read_on:
        read_on(asked.read_on, asked.messages, asked.rates[0], first=asked.first)
    with tempfile.TemporaryDirectory() as directory:
        node = Leveret(Path(directory) / "node", "os")
        node.start()
        try:
            perf(
                node,
                *("--mode", "fill", "--messages", str(asked.messages), "--size", "100"),
                *("--persistent", "--confirms", "2000", "--queue-type", "stream"),
                *("--name", QUEUE, "--keep"),
            )
            url = http_of(node)
            for name, columns in SETS.items():
                with pinned(client_core()):
                    found = [read_through(url, asked.messages, columns) for _ in range(3)]
                texts = ", ".join(f"{each:,.0f}" for each in found)
                print(f"{name}: {statistics.median(found):,.0f} rows/s ({texts})", flush=True)
            if asked.first:
                go_first(node.pid)
                go_first(os.getpid())
            return 0 if compare(node, asked.messages, asked.rounds, asked.rates) else 1
        finally:
            node.stop()


if __name__ == "__main__":
    sys.exit(main())
