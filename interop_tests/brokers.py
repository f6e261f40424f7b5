"""Broker processes that the interoperability tests talk to.

Each is started with its own temporary directory and free ports on the loopback interface, keeps its
port over a restart, and is ended by the ids of the processes started here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from interop_tests import users
from tests.support.waiting import LIMIT_SECONDS

REPOSITORY = Path(__file__).resolve().parent.parent
LEVERET_COMMAND = [sys.executable, "-m", "leveret"]
# What makes Leveret call itself what no client knows.
UNDER_OWN_NAME = {"LEVERET_PRODUCT": "Leveret", "LEVERET_VERSION": "1.0.0"}
RABBITMQ_HOME_PATTERN = "rabbitmq_server-*"
# What RabbitMQ 3.10 ships as plugins and Leveret has built in.
RABBITMQ_PLUGINS = (
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_event_exchange",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
    "rabbitmq_sharding",
)
READY = r"^ready amqp=([^\s:]+):(\d+)(?: http=[^\s:]+:(\d+))?.*\n"


class BrokerDiedError(RuntimeError):
    """The broker process ended, or never became ready; the text carries the end of its log."""


@dataclass(frozen=True)
class Address:
    """Address where a broker listens for AMQP 0-9-1."""

    host: str
    port: int

    def url(self, query: str = "") -> str:
        """The address as an AMQP URL for user guest and vhost `/`."""
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F{query}"


class Broker(Protocol):
    """A broker process as tests use it; the port stays the same over restarts."""

    name: str
    address: Address

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def trace(self, *, on: bool) -> None: ...


def free_port() -> int:
    """A port nobody listens on now; the brokers that need it are started at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Process:
    """One started process in a session of its own, its output in a file."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and what it started itself (its session is ours alone)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def stop(self) -> None:
        self.signal_group(signal.SIGTERM)
        try:
            self.popen.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDiedError(
                f"did not stop within {LIMIT_SECONDS} s:\n{self.tail()}"
            ) from None

    def kill(self) -> None:
        self.signal_group(signal.SIGKILL)
        self.popen.wait()

    def check_alive(self) -> None:
        if self.popen.poll() is not None:
            raise BrokerDiedError(f"ended with {self.popen.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class LeveretBroker:
    """`leveret serve`, ready when it has printed its line `ready amqp=HOST:PORT ...`.

    `settings` are environment variables, LEVERET_NAME=value, for what tests want unlike others.
    """

    name = "leveret"

    def __init__(
        self, directory: Path, settings: dict[str, str] | None = None, *, http: bool = False
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.settings = settings or {}
        self.address = Address("127.0.0.1", 0)
        self.http_port = 0 if http else -1  # until it has run once: any
        self.process: Process | None = None

    def start(self) -> None:
        log = self.directory / f"leveret-{time.monotonic_ns()}.log"
        self.process = Process(
            [*LEVERET_COMMAND, "serve", *self.options()], log, self.environment()
        )
        self.address, self.http_port = self._await_ready(self.process)

    def options(self) -> list[str]:
        return [
            *("--data-dir", str(self.data_dir)),
            *("--port", str(self.address.port)),
            *("--http-port", str(self.http_port)),
            *("--prometheus-port", "-1"),
            *("--durability", "os"),
        ]

    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        return {
            **self.settings,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), inherited])),
            "PYTHONUNBUFFERED": "1",
        }

    @staticmethod
    def _await_ready(process: Process) -> tuple[Address, int]:
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            found = re.search(READY, process.log.read_text(), re.M)
            if found:
                return Address(found[1], int(found[2])), int(found[3] or -1)
            process.check_alive()
            time.sleep(0.02)
        process.kill()
        raise BrokerDiedError(f"not ready within {LIMIT_SECONDS} s:\n{process.tail()}")

    def stop(self) -> None:
        if self.process:
            self.process.stop()
        self.process = None

    def kill(self) -> None:
        if self.process:
            self.process.kill()
        self.process = None

    def trace(self, *, on: bool) -> None:
        """Turn the firehose of vhost `/` on or off."""
        self.control("trace", "on" if on else "off")

    def control(self, *arguments: str) -> str:
        """Return what a command of `leveret` prints, on this broker's data."""
        command = [*LEVERET_COMMAND, *arguments, "--data-dir", str(self.data_dir)]
        done = subprocess.run(
            command,
            check=True,
            cwd=REPOSITORY,
            timeout=LIMIT_SECONDS,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout


class RabbitBroker:
    """RabbitMQ from Debian's package, with its own node name, cookie and port mapper (epmd)."""

    name = "rabbitmq"

    def __init__(self, directory: Path, *, managed: bool = False) -> None:
        """`managed` ones have an HTTP API, too."""
        self.directory = directory
        self.address = Address("127.0.0.1", free_port())
        self.http_port = free_port() if managed else 0
        self.mapper_port = free_port()
        self.distribution_port = free_port()
        self.node = f"interop{self.address.port}@localhost"
        self.process: Process | None = None
        self.mapper: Process | None = None

    @staticmethod
    def installed() -> bool:
        return bool(RabbitBroker._homes()) and shutil.which("erl") is not None

    @staticmethod
    def _homes() -> list[Path]:
        return sorted(Path("/usr/lib/rabbitmq/lib").glob(RABBITMQ_HOME_PATTERN))

    @staticmethod
    def _mapper_program() -> str:
        return str(sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))[-1])

    def start(self) -> None:
        (self.directory / "rabbitmq.conf").write_text(self._configuration())
        (self.directory / "definitions.json").write_text(users.definitions())
        plugins = [*RABBITMQ_PLUGINS, *(["rabbitmq_management"] if self.http_port else [])]
        (self.directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        environment = self._environment()
        mapper = [self._mapper_program(), "-port", str(self.mapper_port), "-address", "127.0.0.1"]
        self.mapper = Process(mapper, self.directory / "epmd.log")
        server = [str(self._homes()[-1] / "sbin" / "rabbitmq-server")]
        self.process = Process(server, self.directory / "console.log", environment)
        self._await_ready(self.process)

    def _configuration(self) -> str:
        return (
            f"listeners.tcp.loopback = 127.0.0.1:{self.address.port}\n"
            "log.file.level = warning\n"
            f"load_definitions = {self.directory}/definitions.json\n"
            f"{self._management()}"
        )

    def _management(self) -> str:
        if not self.http_port:
            return ""
        port = f"management.tcp.port = {self.http_port}\n"
        return f"{port}management.tcp.ip = 127.0.0.1\n"

    def _environment(self) -> dict[str, str]:
        directory = str(self.directory)
        return {
            "HOME": directory,
            "ERL_EPMD_PORT": str(self.mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{directory}/mnesia",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
        }

    def _await_ready(self, process: Process) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            process.check_alive()
            if answers_amqp(self.address):
                return
            time.sleep(0.1)
        raise BrokerDiedError(f"not ready within {LIMIT_SECONDS} s:\n{process.tail()}")

    def stop(self) -> None:
        if self.process:
            self.process.stop()
        self._end_mapper()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
        self._end_mapper()

    def trace(self, *, on: bool) -> None:
        """Turn the firehose of vhost `/` on or off."""
        self.control("trace_on" if on else "trace_off")

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` and return what it prints."""
        command = [str(self._homes()[-1] / "sbin" / "rabbitmqctl"), "-q", "-n", self.node]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **self._environment()},
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _end_mapper(self) -> None:
        self.process = None
        if self.mapper:
            self.mapper.kill()
        self.mapper = None


def answers_amqp(address: Address) -> bool:
    """Whether the protocol header is answered with a method frame (`connection.start`)."""
    try:
        with socket.create_connection((address.host, address.port), timeout=2) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"
    except OSError:
        return False


def candidate() -> type[LeveretBroker | RabbitBroker]:
    """The broker that the suites are pointed at."""
    brokers = {kind.name: kind for kind in (LeveretBroker, RabbitBroker)}
    return brokers[os.environ.get("INTEROP_BROKER", LeveretBroker.name)]


def not_yet(what: str) -> pytest.MarkDecorator:
    """Mark a test that must fail as long as Leveret does not have `what`."""
    return pytest.mark.xfail(
        candidate() is LeveretBroker,
        reason=f"not in Leveret yet: {what}",
        raises=AssertionError,
        strict=True,
    )
