"""Starting and ending the programs a benchmark needs: each on its core, each ended by its pid."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

from leveret.errors import LeveretError
from leveret.perf.plan import Address
from leveret.perf.session import BrokerError, LoadSession

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "BenchError",
    "Broker",
    "allow_files",
    "broker_core",
    "client_core",
    "end",
    "free_port",
    "pinned",
    "spawn",
    "wait_for_amqp",
]

CORES = sorted(os.sched_getaffinity(0))
STOP_TIMEOUT_S = 60
START_TIMEOUT_S = 60
CONNECT_PAUSE_S = 0.01


class BenchError(LeveretError):
    """A broker does not start, or a measurement fails."""


class Broker(Protocol):
    """A broker under test, on a data directory of its own."""

    name: str
    version: str
    pid: int
    start_seconds: float

    @property
    def uri(self) -> str:
        """Return the URI where it listens."""

    def start(self) -> None:
        """Start on the data directory as it is; `start_seconds` says how long that took."""

    def stop(self) -> None:
        """Stop in order, or at least stop."""


def broker_core() -> int:
    """The processor the broker runs on: the first there is."""
    return CORES[0]


def client_core() -> int:
    """The processor the client runs on: the last, another than the broker's if there is one."""
    return CORES[-1]


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes started inside run on `core` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spawn(
    command: list[str], core: int, log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` on `core`, in a group of its own, what it prints going to `log`."""
    with pinned(core), log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to stop; kill it when it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for_amqp(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when a connection can be opened; every broker is timed by this one measure."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the broker ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            LoadSession.connect(Address.parse(uri)).close()
        except (OSError, BrokerError):  # RabbitMQ hangs up while it starts
            time.sleep(CONNECT_PAUSE_S)
        else:
            return
    raise BenchError(f"no connection at {uri} within {START_TIMEOUT_S} seconds")


def allow_files() -> int:
    """Let this process and those it starts open as many files as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
