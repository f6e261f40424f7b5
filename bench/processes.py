"""Starting and ending the programs a benchmark needs: each on its core, each ended by its pid."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from leveret.errors import LeveretError
from leveret.perf.plan import Address
from leveret.perf.session import LoadSession

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "BROKER_CORE",
    "BenchError",
    "Broker",
    "BrokerProcess",
    "LoadedProcess",
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
BROKER_CORE = CORES[0]
STOP_TIMEOUT_S = 60
START_TIMEOUT_S = 60
CONNECT_PAUSE_S = 0.01


class BenchError(LeveretError):
    """A broker does not start, or a measurement fails."""


class LoadedProcess(Protocol):
    """A process under load. It runs on `core` and its client on another; None: on any."""

    core: int | None
    pid: int

    @property
    def uri(self) -> str:
        """Return the URI where it listens."""


class Broker(LoadedProcess, Protocol):
    """A broker under test, on a data directory of its own."""

    name: str
    version: str
    start_seconds: float

    def start(self) -> None:
        """Start on the data directory as it is; `start_seconds` says how long that took."""

    def stop(self) -> None:
        """Stop in order, or at least stop."""


class BrokerProcess(ABC):
    """A broker that is one process, told its port, with everything that it keeps in `directory`."""

    name = ""
    version = ""

    def __init__(self, directory: Path, core: int | None = BROKER_CORE) -> None:
        self.core = core
        self.pid = 0
        self.start_seconds = 0.0
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def uri(self) -> str:
        """Return the URI where it listens."""
        return f"amqp://guest:guest@127.0.0.1:{self._port}/"

    @property
    def log(self) -> Path:
        """Return what it has printed."""
        return self._directory / "printed"

    def start(self) -> None:
        """Start on the directory as it is; returns when a connection can be opened."""
        command, environment = self._command(), self._environment()
        start = time.monotonic()
        self._process = spawn(command, self.core, self.log, environment)
        wait_for_amqp(self.uri, self._process, self.log)
        self.start_seconds = time.monotonic() - start
        self.pid = self._process.pid

    def stop(self) -> None:
        """Stop the process."""
        if self._process is not None:
            end(self._process)
        self._process = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Return how it is started."""

    def _environment(self) -> dict[str, str]:
        """Return what is added to the environment."""
        return {}


def broker_core() -> int:
    """The processor the broker runs on: the first there is."""
    return BROKER_CORE


def client_core() -> int:
    """The processor the client runs on: the last, another than the broker's if there is one."""
    return CORES[-1]


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Processes started inside run on `core` alone; on any when it is None."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spawn(
    command: list[str], core: int | None, log: Path, environment: dict[str, str] | None = None
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
        except OSError:
            time.sleep(CONNECT_PAUSE_S)
        else:
            return
    raise BenchError(f"no connection at {uri} within {START_TIMEOUT_S} seconds")


def allow_files() -> int:
    """Let this process and those it starts open as many files as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
