"""Broker processes that the interoperability tests talk to.

Each is started with its own temporary directory and free ports on the loopback interface, keeps its
port over a restart, and is ended by the ids of the processes started here.

With INTEROP_CLUSTER=1 every Leveret is a node of a cluster that leads nothing: what its clients
share is led by another node (`Others`).
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
from tests.cluster_processes.launcher import CHROOT, LocalCluster
from tests.support.ports import free_port

# Whether clients talk to a node of a cluster that leads nothing, instead of to a node by itself.
IN_CLUSTER = os.environ.get("INTEROP_CLUSTER") == "1"
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
READY = r"^ready\b.*\bamqp=([^\s:]+):(\d+) .*\bhttp=[^\s:]+:(\d+)"
START_SECONDS_MAX = 60  # RabbitMQ takes 5 to 15 s on two slow cores
STOP_SECONDS_MAX = 20  # a clean stop flushes; past this the process is killed and the test fails


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
    def close(self) -> None: ...
    def trace(self, *, on: bool) -> None: ...


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
            self.popen.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDiedError(
                f"did not stop within {STOP_SECONDS_MAX} s:\n{self.tail()}"
            ) from None

    def kill(self) -> None:
        self.signal_group(signal.SIGKILL)
        self.popen.wait()

    def check_alive(self) -> None:
        if self.popen.poll() is not None:
            raise BrokerDiedError(f"ended with {self.popen.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class Others:
    """The rest of a cluster of two: a ZooKeeper, and node 1, which leads all that clients share."""

    NUMBER = 2  # of the node that clients talk to

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory / "cluster", 1, arguments=["--durability", "os"])
        self.link_port = free_port()
        self.is_drained = False

    def options(self) -> list[str]:
        """Return what makes `leveret serve` a node of the cluster."""
        return [
            *("--cluster", f"{self.cluster.zookeeper.address}{CHROOT}"),
            *("--node-id", str(self.NUMBER)),
            *("--advertise", f"127.0.0.1:{self.link_port}"),
            *("--cluster-secret-file", str(self.cluster.secret)),
        ]

    def environment(self) -> dict[str, str]:
        return {"LEVERET_LINK_HOST": "127.0.0.1", "LEVERET_LINK_PORT": str(self.link_port)}


class LeveretBroker:
    """`leveret serve`, ready when it has printed its line `ready amqp=HOST:PORT ...`.

    `settings` are environment variables, LEVERET_NAME=value, for what tests want unlike others.
    In a cluster (IN_CLUSTER), start, stop and kill are about the node that clients talk to; the
    others stay until `close`.
    """

    name = "leveret"

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.settings = settings or {}
        self.address = Address("127.0.0.1", free_port())
        self.http_port = free_port()
        self.process: Process | None = None
        self.others = Others(directory) if IN_CLUSTER else None

    def start(self) -> None:
        others = self.others
        if others and not others.cluster.nodes[1].is_running:
            others.cluster.start()
        self._start_node()
        if others and not others.is_drained:
            self.control("cluster", "drain", str(others.NUMBER), "--wait")
            others.is_drained = True

    def _start_node(self) -> None:
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
            *(self.others.options() if self.others else []),
        ]

    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        return {
            **(self.others.environment() if self.others else {}),
            **self.settings,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), inherited])),
            "PYTHONUNBUFFERED": "1",
        }

    @staticmethod
    def _await_ready(process: Process) -> tuple[Address, int]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            found = re.search(READY, process.log.read_text(), re.M)
            if found:
                return Address(found[1], int(found[2])), int(found[3])
            process.check_alive()
            time.sleep(0.02)
        process.kill()
        raise BrokerDiedError(f"not ready within {START_SECONDS_MAX} s:\n{process.tail()}")

    def stop(self) -> None:
        if self.process:
            self.process.stop()
        self.process = None

    def kill(self) -> None:
        if self.process:
            self.process.kill()
        self.process = None

    def close(self) -> None:
        """Stop, for good."""
        try:
            self.stop()
        finally:
            if self.others:
                self.others.cluster.stop()

    def trace(self, *, on: bool) -> None:
        """Turn the firehose of vhost `/` on or off."""
        self.control("trace", "on" if on else "off")

    def control(self, *arguments: str) -> str:
        """Return what a command of `leveret` prints, on this broker's data."""
        command = [*LEVERET_COMMAND, *arguments, "--data-dir", str(self.data_dir)]
        done = subprocess.run(
            command, check=True, cwd=REPOSITORY, timeout=60, stdout=subprocess.PIPE, text=True
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
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            process.check_alive()
            if answers_amqp(self.address):
                return
            time.sleep(0.1)
        raise BrokerDiedError(f"not ready within {START_SECONDS_MAX} s:\n{process.tail()}")

    def stop(self) -> None:
        if self.process:
            self.process.stop()
        self._end_mapper()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
        self._end_mapper()

    def close(self) -> None:
        """Stop, for good."""
        self.stop()

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
            timeout=60,
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
