"""`python -m bench.starting [CHECKOUT]`: what a start costs, and how a node works from then on.

    git worktree add ../before COMMIT && make -C ../before build
    python -m bench.starting ../before

Each start is of a node with HTTP and metrics, on a new data directory; builds take turns. Printed
are medians: CPU seconds and seconds until AMQP is served, until the node says `ready`, and until
each HTTP port has answered a request; then messages a second of 50 connections with one confirm
each (durability `os`), in the first second after `ready` and in one second after a pause.
"""

from __future__ import annotations

import re
import select
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from bench.leveret import Leveret
from bench.processes import broker_core, client_core, free_port, pinned, spawn, wait_for_amqp
from leveret.perf.plan import Address
from leveret.perf.process import usage
from leveret.perf.session import LoadSession

CONNECTIONS = 50
QUEUE = "started"
HTTP_TIMEOUT_S = 60.0
FIGURES = ("amqp_cpu", "amqp_s", "ready_cpu", "ready_s", "http_cpu", "http_s", "first", "later")


class StartedNode(Leveret):
    """A node with all ports, and what its start cost."""

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory, "os", (), python)
        self._amqp_port = free_port()

    @property
    def command(self) -> list[str]:
        """How it is started."""
        command = super().command
        command[command.index("--port") + 1] = str(self._amqp_port)
        command[command.index("--prometheus-port") + 1] = "0"
        return command

    def measured_start(self, pause: float) -> dict[str, float]:
        """Start; return the figures of this start by name."""
        self.log.write_bytes(b"")
        began = time.monotonic()
        self._process = spawn(self.command, broker_core(), self.log)
        self.pid = self._process.pid
        taken: dict[str, float] = {}

        def note(name: str) -> None:
            taken[f"{name}_s"] = time.monotonic() - began
            taken[f"{name}_cpu"] = usage(self.pid).cpu_us / 1e6

        self.uri = f"amqp://guest:guest@127.0.0.1:{self._amqp_port}/"
        wait_for_amqp(self.uri, self._process, self.log)
        note("amqp")
        publishers = Publishers(Address.parse(self.uri))
        self._wait_for_ready()
        note("ready")
        taken["first"] = publishers.rate(1.0)
        for port in re.findall(r"\b(?:http|prometheus)=(\S+)", self.log.read_text()):
            httpx.get(f"http://{port}/metrics", timeout=HTTP_TIMEOUT_S)
        note("http")
        time.sleep(pause)
        taken["later"] = publishers.rate(1.0)
        self.stop()
        return taken


class Publishers:
    """Connections that publish one message each, and the next one when it is confirmed."""

    def __init__(self, address: Address) -> None:
        sessions = [LoadSession.connect(address) for _ in range(CONNECTIONS)]
        for session in sessions:
            session.call(commands.Channel.Open(), 1)
            session.call(commands.Queue.Declare(queue=QUEUE, durable=True), 1)
            session.call(commands.Confirm.Select(), 1)
        properties = commands.Basic.Properties(delivery_mode=2)
        parts = (
            commands.Basic.Publish(routing_key=QUEUE),
            ContentHeader(body_size=16, properties=properties),
            ContentBody(bytes(16)),
        )
        self._message = b"".join(frame.marshal(part, 1) for part in parts)
        self._sockets = {session.socket.fileno(): session.socket for session in sessions}
        self._poll = select.epoll()
        for descriptor in self._sockets:
            self._poll.register(descriptor, select.EPOLLIN)

    def rate(self, seconds: float) -> float:
        """Publish for some seconds; return the messages confirmed in each."""
        for one in self._sockets.values():
            one.sendall(self._message)
        confirmed, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for descriptor, _ in self._poll.poll(seconds):
                one = self._sockets[descriptor]
                one.recv(4096)
                one.sendall(self._message)
                confirmed += 1
        for one in self._sockets.values():  # the last ones' confirms
            one.recv(4096)
        return confirmed / seconds


def main(
    checkout: Annotated[
        Path | None, typer.Argument(help="Another build's checkout, with its .venv.")
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Starts of each build.")] = 5,
    pause: Annotated[float, typer.Option(min=0, help="Seconds before the second rate.")] = 60,
) -> None:
    """Measure the starts of one or two builds on this machine."""
    builds = {"this": Path(sys.executable)}
    if checkout is not None:
        builds["other"] = checkout.resolve() / ".venv" / "bin" / "python"
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory, pinned(client_core()):
        for turn in range(starts):
            for name, python in builds.items():
                place = Path(directory) / f"{name}{turn}"
                taken[name].append(StartedNode(place, python).measured_start(pause))
                shutil.rmtree(place)
    print(f"{'':<10}" + "".join(f"{name:>10}" for name in FIGURES))
    for name, rows in taken.items():
        medians = (statistics.median(row[figure] for row in rows) for figure in FIGURES)
        print(f"{name:<10}" + "".join(f"{median:>10.2f}" for median in medians))


if __name__ == "__main__":
    typer.run(main)
