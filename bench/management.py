"""Cost of management requests to a busy node.

    python -m bench.management [--rounds 30] [--queues 1000] [--connections 1000]

Two nodes take turns: a bare one, and one with a thousand queues and a thousand connections that a
browser and a scraper look at: an open overview with its live figures, the list of queues as often
as that page renews itself, and the node's metrics three times as often as `deploy/` has Prometheus
ask. Compared are the throughput of small transient messages and the p99 latency of 2,000 persistent
ones a second, medians over all rounds; neither may lose a tenth. At the end, how long a page of the
list of queues takes.

Browser and scraper would run on machines of their own. Here they get what node and client leave of
the processors, and never interrupt them (SCHED_IDLE, see sched(7)). A node's p99 moves by half from
one reading to the next: to tell a tenth takes some thirty rounds, a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

from bench.leveret import Leveret
from bench.measure import perf
from bench.processes import client_core, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["main"]

LOSS_MAX = 0.10
PAGE_MS_MAX = 100.0
PAGES = 50
LOOK_EVERY_S = 5.0
THROUGHPUT = ("--duration", "4", "--warm-up", "1")
LATENCY = (
    *("--rate", "2000", "--persistent", "--confirms", "2000", "--ack-every", "1"),
    *("--ack-frames", "each", "--prefetch", "2000", "--spin", "--duration", "5", "--warm-up", "1"),
)


class Watcher:
    """A browser and a scraper, in threads of their own."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._stopping = threading.Event()
        self._client = httpx.Client(base_url=base_url, timeout=30, trust_env=False)
        signed_in = self._client.post("/login", data={"user": "guest", "password": "guest"})
        assert signed_in.status_code == 303, signed_in.text
        self.looks = 0
        self._threads = [
            threading.Thread(target=self._aside, args=[work])
            for work in (self._watch_live, self._look)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    @staticmethod
    def _aside(work: Callable[[], None]) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        work()

    def _watch_live(self) -> None:
        while not self._stopping.is_set():
            with (
                suppress(httpx.TransportError),
                self._client.stream("GET", "/live/overview") as events,
            ):
                for _ in events.iter_lines():
                    if self._stopping.is_set():
                        break

    def _look(self) -> None:
        wait_s = LOOK_EVERY_S / 2  # so that each reading is looked at once at least
        while not self._stopping.wait(wait_s):
            assert self._client.get("/queues").status_code == 200
            scraped = httpx.get(self._base_url + "/metrics", auth=("guest", "guest"), timeout=30)
            assert scraped.status_code == 200
            self.looks += 1
            wait_s = LOOK_EVERY_S


@contextmanager
def crowd(node: Leveret, queues: int, connections: int) -> Iterator[None]:
    """Queues that stay, and connections until the end."""
    api = httpx.Client(base_url=http_of(node), auth=("guest", "guest"), timeout=30)
    for number in range(queues):
        declared = api.put(f"/api/queues/%2F/crowd-{number}", json={"durable": True})
        assert declared.status_code in {201, 204}, declared.text
    command = [sys.executable, "-m", "leveret", "perf", "--json", "--uri", node.uri]
    command += ["--mode", "idle", "--connections", str(connections), "--duration", "3600"]
    with pinned(client_core()):
        holding = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while len(api.get("/api/connections?columns=name").json()) < connections:
            time.sleep(0.2)
        yield
    finally:
        holding.terminate()
        holding.wait()
        api.close()


def http_of(node: Leveret) -> str:
    """The address of a node's management, as it has printed it."""
    words = node.log.read_text().split()
    return "http://" + next(word for word in words if word.startswith("http=")).split("=")[1]


def reading(node: Leveret) -> tuple[float, float]:
    """Messages a second, and milliseconds at p99."""
    throughput = perf(node, *THROUGHPUT)["consumed_per_s"]
    return throughput, perf(node, *LATENCY)["latency"]["milliseconds"]["p99"]


def page_ms(node: Leveret) -> float:
    """The slowest of some answers but for the two worst, as the machine is not ours alone."""
    with httpx.Client(base_url=http_of(node), auth=("guest", "guest"), timeout=30) as api:
        taken = []
        for _ in range(PAGES):
            begun = time.perf_counter()
            assert api.get("/api/queues?page=1").status_code == 200
            taken.append((time.perf_counter() - begun) * 1000)
    return sorted(taken)[-3]


def main() -> int:
    parser = argparse.ArgumentParser(description="What it costs to be looked at.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bare = Leveret(Path(directory) / "bare", "os")
        watched = Leveret(Path(directory) / "watched", "os")
        bare.start()
        watched.start()
        try:
            readings: dict[str, list[tuple[float, float]]] = {"bare": [], "watched": []}
            with crowd(watched, asked.queues, asked.connections):
                for _ in range(asked.rounds):
                    readings["bare"].append(reading(bare))
                    with Watcher(http_of(watched)) as watcher:
                        readings["watched"].append(reading(watched))
                    assert watcher.looks, "the browser has looked"
                milliseconds = page_ms(watched)
        finally:
            bare.stop()
            watched.stop()
    return report(readings, milliseconds)


def report(readings: dict[str, list[tuple[float, float]]], page: float) -> int:
    """Print what was found. Returns the exit status: 1 where a target is missed."""
    (fast, quick), (fast_seen, quick_seen) = (
        [statistics.median(values) for values in zip(*readings[name], strict=True)]
        for name in ("bare", "watched")
    )
    verdicts = [
        ("messages/s", fast, fast_seen, 1 - fast_seen / fast),
        ("p99, ms", quick, quick_seen, quick_seen / quick - 1),
    ]
    missed = page > PAGE_MS_MAX
    for name, before, after, loss in verdicts:
        missed |= loss > LOSS_MAX
        verdict = "met" if loss <= LOSS_MAX else "NOT met"
        print(f"{name:>10}: bare {before:,.3f}, watched {after:,.3f}, {loss:+.1%} ({verdict})")
    print(f"a page of queues: {page:.1f} ms ({'met' if page <= PAGE_MS_MAX else 'NOT met'})")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
