"""A RabbitMQ of this machine's own, from the distribution's package, in a directory of its own.

Everything is RabbitMQ's default except where it would meet another node: name, ports, directories
and the port mapper (epmd), which we run ourselves so that it can be ended by its pid. No plugin
is enabled, so nothing collects statistics.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from bench.processes import BenchError, broker_core, end, free_port, spawn, wait_for_amqp

__all__ = ["RabbitMq"]

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMq:
    """RabbitMQ on a data directory below `directory`.

    A node `beside` another one has its port mapper and its cookie, so that it can join its cluster.
    """

    name = "RabbitMQ"

    def __init__(self, directory: Path, beside: RabbitMq | None = None) -> None:
        if not SERVER.exists():
            raise BenchError(f"{SERVER} is missing: install the package rabbitmq-server")
        self.version = ""
        self.pid = 0
        self.start_seconds = 0.0
        self._directory = directory
        self._port, self._distribution_port = free_port(), free_port()
        self.node = f"bench{os.getpid()}x{self._port}@localhost"
        self._beside = beside
        # The cookie is in the home directory.
        self.home: Path = directory if beside is None else beside.home
        self.epmd_port: int = free_port() if beside is None else beside.epmd_port
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "enabled_plugins").write_text("[].")
        (directory / "rabbitmq-env.conf").write_text("")

    @property
    def uri(self) -> str:
        """Return the URI where it listens."""
        return f"amqp://guest:guest@127.0.0.1:{self._port}/"

    @property
    def log(self) -> Path:
        """Return what the server has printed."""
        return self._directory / "printed"

    def start(self) -> None:
        """Start on the data directory as it is; returns when a connection can be opened."""
        if self._epmd is None and self._beside is None:
            self._epmd = self._start_epmd()
        start = time.monotonic()
        self._process = spawn([str(SERVER)], broker_core(), self.log, self.environment)
        wait_for_amqp(self.uri, self._process, self.log)
        self.start_seconds = time.monotonic() - start
        # Told to run detached, the script becomes the Erlang machine itself: its pid is ours.
        self.pid = self._process.pid
        self.version = self._read_version()

    def stop(self) -> None:
        """Stop the server, then its port mapper."""
        for process in (self._process, self._epmd):
            if process is not None:
                end(process)
        self._process = self._epmd = None

    def kill(self) -> None:
        """End the server as `kill -9` does; its port mapper stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start_epmd(self) -> subprocess.Popen[bytes]:
        program = shutil.which("epmd") or next(
            (str(path) for path in Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None
        )
        if program is None:
            raise BenchError("epmd is missing: install the package erlang-base")
        command = [program, "-port", str(self.epmd_port), "-address", "127.0.0.1"]
        return spawn(command, broker_core(), self._directory / "epmd")

    @property
    def environment(self) -> dict[str, str]:
        """Return what the server, and its tools, need to know."""
        directory = self._directory
        return {
            "HOME": str(self.home),
            "detached": "1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
        }

    def _read_version(self) -> str:
        text = self.log.read_text(errors="replace")
        found = [re.search(each, text) for each in (r"RabbitMQ (\d\S+)", r"Erlang:\s+(\S+)")]
        return " on Erlang ".join(match.group(1) for match in found if match)
