"""Cost of many durable queues of which few are used: start, stop, memory, the longest wait.

    python -m bench.many_queues [queues] [--used 100] [--bound] [--rounds 2]

A node gets durable queues, with `--bound` each with a binding to a topic exchange as well; a few of
them hold messages. Then, in each round, it is stopped in order and by `kill -9`, and started again.
Behind each start one client asks for a queue every 5 ms while another reads lists, metrics and
exports, and a third opens and closes connections.

How to read it: "ended" is how long the stop took, "ready" is from starting the process to an open
connection, "a queue" is by how much more memory is resident than in a node without queues, and
"waited" is the longest answer to the client that asks, with what was read then: its own waits for a
processor count, so the machine has to be idle. The targets are 10 s, 5 s, 4 kB and 20 ms with
100,000 queues.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from pamqp import commands

from bench.leveret import Leveret
from bench.processes import BenchError
from leveret.mgmt_ui.control_client import CONTROL_SOCKET, control_address
from leveret.perf.plan import Address
from leveret.perf.process import usage
from leveret.perf.session import LoadSession

__all__ = ["Restart", "measure"]

QUEUES, USED, MESSAGES = 100_000, 100, 3
EXCHANGE = "many"
IMPORTED_AT_ONCE = 5000
ASK_EVERY_S = 0.005
CONNECTIONS = 300  # enough closed ones for a collection of everything
READ_BYTES = 65_536
READY_S, STOP_S, QUEUE_BYTES, WAIT_MS = 10.0, 5.0, 4000, 20.0
PATHS = (
    "/api/queues?page=1&page_size=100",
    "/api/queues?page=1&sort=messages&sort_reverse=true",
    "/api/queues?page=1&name=99",
    "/api/queues?columns=name",
    "/api/bindings?page=1",
    "/api/exchanges/%2F/amq.default/bindings/source",
    "/api/overview",
    "/api/vhosts",
    "/metrics",
    "/metrics/per-object",
    "/metrics/detailed?family=queue_coarse_metrics&queue=none",
    "/api/definitions",
    "/api/definitions/%2F",
)
# Of the command line: operations, and parameters beside those of all lists.
LISTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("queue.list", {}),
    ("queue.list", {"name": "99"}),
    ("queue.list", {"after": ["/", "many-9"]}),
    ("queue.list", {"sort": "messages", "reverse": True}),
    ("binding.list", {"destination": "none"}),
    ("exchange.list", {}),
)
WHOLE_LIST = {"vhost": None, "sort": None, "reverse": False, "limit": 100, "after": None}
QUERIES: tuple[tuple[str, dict[str, object]], ...] = (
    *((operation, {**WHOLE_LIST, **asked}) for operation, asked in LISTS),
    ("definitions.export", {}),
    ("rabbitmq_definitions.export", {}),
    ("node.overview", {"window_ms": 100, "limit": 20, "sort": "in"}),
)


@dataclass(frozen=True)
class Restart:
    """Seconds of one restart, bytes for each queue, and the longest wait behind it."""

    name: str
    stop_s: float
    ready_s: float
    queue_bytes: float
    wait_ms: float
    waited_for: str

    def __str__(self) -> str:
        figures = (
            ("ended in {:.2f} s", self.stop_s, STOP_S),
            ("ready after {:.2f} s", self.ready_s, READY_S),
            ("a queue {:,.0f} bytes", self.queue_bytes, QUEUE_BYTES),
            (f"waited {{:.1f}} ms for {self.waited_for}", self.wait_ms, WAIT_MS),
        )
        parts = [
            f"{text.format(value)} ({'met' if value <= target else 'NOT met'})"
            for text, value, target in figures
        ]
        return f"{self.name:>10}: {', '.join(parts)}"


def measure(
    directory: Path, queues: int, used: int, rounds: int, *, bound: bool
) -> Iterator[Restart]:
    """Fill a node, and restart it twice in each round."""
    node = Leveret(directory, "os")
    node.start()
    try:
        empty_bytes = usage(node.pid).resident_bytes
        begun = time.monotonic()
        _declare(node, queues, bound=bound)
        print(f"{queues:,} queues declared in {time.monotonic() - begun:.1f} s", flush=True)
        _fill(node, used)
        for _ in range(rounds):
            for name, end in (("clean stop", node.stop), ("kill -9", node.kill)):
                begun = time.monotonic()
                end()
                stop_s = time.monotonic() - begun
                node.start()
                time.sleep(1)
                resident = usage(node.pid).resident_bytes - empty_bytes
                waited = _longest_wait(node)
                _check(node, queues, used)
                yield Restart(name, stop_s, node.start_seconds, resident / queues, *waited)
    finally:
        node.stop()


def _name(number: int) -> str:
    """Return the name of a queue; names are not in the order of the numbers."""
    return f"many-{f'{number:06d}'[::-1]}"


def _declare(node: Leveret, queues: int, *, bound: bool) -> None:
    """Import the queues, which takes fewer commits than declaring each."""
    with httpx.Client(base_url=_http(node), auth=("guest", "guest"), timeout=600) as api:
        exchange = {"name": EXCHANGE, "type": "topic", "durable": True}
        api.post("/api/definitions/%2F", json={"exchanges": [exchange]}).raise_for_status()
        for first in range(0, queues, IMPORTED_AT_ONCE):
            numbers = range(first, min(first + IMPORTED_AT_ONCE, queues))
            document: dict[str, object] = {
                "queues": [{"name": _name(number), "durable": True} for number in numbers]
            }
            if bound:
                document["bindings"] = [
                    {
                        "source": EXCHANGE,
                        "destination": _name(number),
                        "destination_type": "queue",
                        "routing_key": f"key.{number}",
                        "arguments": {},
                    }
                    for number in numbers
                ]
            api.post("/api/definitions/%2F", json=document).raise_for_status()


def _fill(node: Leveret, used: int) -> None:
    """Publish to every so many-th queue."""
    with httpx.Client(base_url=_http(node), auth=("guest", "guest"), timeout=60) as api:
        for number in range(used):
            message = {"properties": {"delivery_mode": 2}, "payload": "x" * 100}
            message |= {"routing_key": _name(number), "payload_encoding": "string"}
            for _ in range(MESSAGES):
                api.post("/api/exchanges/%2F/amq.default/publish", json=message).raise_for_status()


def _http(node: Leveret) -> str:
    words = node.log.read_text().split()
    return "http://" + next(word for word in words if word.startswith("http=")).split("=")[1]


def _check(node: Leveret, queues: int, used: int) -> None:
    with httpx.Client(base_url=_http(node), auth=("guest", "guest"), timeout=60) as api:
        totals = api.get("/api/overview").raise_for_status().json()
    found = totals["object_totals"]["queues"], totals["queue_totals"]["messages"]
    if found != (queues, used * MESSAGES):
        raise BenchError(f"there are {found[0]:,} queues and {found[1]:,} messages")


def _longest_wait(node: Leveret) -> tuple[float, str]:
    """Return the longest answer in ms while the node is asked in other ways, too, and for what."""
    reading = ["nothing"]
    others = [
        threading.Thread(target=_read, args=[node, reading]),
        threading.Thread(target=_connect, args=[node]),
    ]
    longest_s, waited_for = 0.0, ""
    with LoadSession.connect(Address.parse(node.uri)) as session:
        session.call(commands.Channel.Open(), 1)
        for thread in others:
            thread.start()
        while any(thread.is_alive() for thread in others):
            asked = time.monotonic()
            session.call(commands.Queue.Declare(queue=_name(0), passive=True), 1)
            waited_s = time.monotonic() - asked
            if waited_s > longest_s:
                longest_s, waited_for = waited_s, reading[0]
            time.sleep(ASK_EVERY_S)
    return longest_s * 1000, waited_for


def _read(node: Leveret, reading: list[str]) -> None:
    """Read every kind of list; `reading` tells which one."""
    os.nice(5)  # this thread: on a machine of its own it would not take the other's time
    with httpx.Client(base_url=_http(node), auth=("guest", "guest"), timeout=60) as api:
        for reading[0] in PATHS:
            with api.stream("GET", reading[0]) as answer:
                answer.raise_for_status()
                for _ in answer.iter_raw():  # not kept: this process has to answer as well
                    pass
    for reading[0], parameters in QUERIES:
        _query(node.data_dir / CONTROL_SOCKET, reading[0], parameters)
    reading[0] = "nothing"


def _query(path: Path, operation: str, parameters: dict[str, object]) -> None:
    """Read an answer of the control socket, and decode none of it: see `_read`."""
    with socket.socket(socket.AF_UNIX) as connection, control_address(path) as address:
        connection.connect(address)
        query = {"operation": operation, "parameters": parameters}
        connection.sendall(json.dumps(query).encode() + b"\n")
        received = begun = connection.recv(READ_BYTES)
        while received and not received.endswith(b"\n"):
            received = connection.recv(READ_BYTES)
        if not begun.startswith(b'{"ok": true'):
            raise BenchError(f"{operation}: {begun.decode(errors='replace')}")


def _connect(node: Leveret) -> None:
    os.nice(5)
    for _ in range(CONNECTIONS):
        with LoadSession.connect(Address.parse(node.uri)):
            pass


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Restarts with many queues.")
    parser.add_argument("queues", type=int, nargs="?", default=QUEUES)
    parser.add_argument("--used", type=int, default=USED)
    parser.add_argument("--bound", action="store_true", help="With a binding of each queue.")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for restart in measure(Path(directory), **vars(asked)):
            print(restart, flush=True)


if __name__ == "__main__":
    main()
