"""A RabbitMQ of this machine's own, from the distribution's package, in a directory of its own.

Everything is RabbitMQ's default except where it would meet another node: name, ports, directories
and the port mapper (epmd), which we run ourselves so that it can be ended by its pid. No plugin
is enabled, so nothing collects statistics.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import BROKER_CORE, BenchError, BrokerProcess, end, free_port, spawn

if TYPE_CHECKING:
    import subprocess

__all__ = ["RabbitMq"]

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMq(BrokerProcess):
    """RabbitMQ on a data directory below `directory`."""

    name = "RabbitMQ"

    def __init__(self, directory: Path, core: int | None = BROKER_CORE) -> None:
        if not SERVER.exists():
            raise BenchError(f"{SERVER} is missing: install the package rabbitmq-server")
        super().__init__(directory, core)
        self._distribution_port, self._epmd_port = free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        (directory / "enabled_plugins").write_text("[].")
        (directory / "rabbitmq-env.conf").write_text("")

    def start(self) -> None:
        """Start on the data directory as it is, after the port mapper."""
        if self._epmd is None:
            self._epmd = self._start_epmd()
        super().start()
        self.version = self._read_version()

    def stop(self) -> None:
        """Stop the server, then its port mapper."""
        super().stop()
        if self._epmd is not None:
            end(self._epmd)
        self._epmd = None

    def _command(self) -> list[str]:
        # Told to run detached, the script becomes the Erlang machine itself: its pid is ours.
        return [str(SERVER)]

    def _start_epmd(self) -> subprocess.Popen[bytes]:
        program = shutil.which("epmd") or next(
            (str(path) for path in Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None
        )
        if program is None:
            raise BenchError("epmd is missing: install the package erlang-base")
        command = [program, "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        return spawn(command, self.core, self._directory / "epmd")

    def _environment(self) -> dict[str, str]:
        directory = self._directory
        return {
            "HOME": str(directory),
            "detached": "1",
            "RABBITMQ_NODENAME": f"bench{os.getpid()}x{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
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
