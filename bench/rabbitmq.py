"""RabbitMQ of this machine's own, from the distribution's package, in directories of its own.

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

__all__ = ["RabbitMq", "RabbitMqCluster"]

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMq(BrokerProcess):
    """RabbitMQ on a data directory below `directory`.

    `home` has the Erlang cookie: those that are to know each other have it in common, and the port
    mapper with it.
    """

    name = "RabbitMQ"

    def __init__(
        self,
        directory: Path,
        core: int | None = BROKER_CORE,
        *,
        home: Path | None = None,
        epmd_port: int = 0,
    ) -> None:
        if not SERVER.exists():
            raise BenchError(f"{SERVER} is missing: install the package rabbitmq-server")
        super().__init__(directory, core)
        self._distribution_port, self.epmd_port = free_port(), epmd_port or free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._has_own_epmd = not epmd_port
        self._home = home or directory
        self.node_name = f"bench{os.getpid()}x{self._port}@localhost"
        (directory / "enabled_plugins").write_text("[].")
        (directory / "rabbitmq-env.conf").write_text("")

    def start(self) -> None:
        """Start on the data directory as it is, after the port mapper."""
        if self._has_own_epmd and self._epmd is None:
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
        command = [program, "-port", str(self.epmd_port), "-address", "127.0.0.1"]
        return spawn(command, self.core, self._directory / "epmd")

    def _environment(self) -> dict[str, str]:
        directory = self._directory
        return {
            "HOME": str(self._home),
            "detached": "1",
            "RABBITMQ_NODENAME": self.node_name,
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


class RabbitMqCluster:
    """Nodes that form a cluster when they start for the first time. Clients use the first one.

    The first one runs the port mapper of all. A queue's leader is the node that its client uses.
    """

    def __init__(self, directory: Path, count: int, core: int | None = None) -> None:
        first = RabbitMq(directory / "0", core)
        others = [
            RabbitMq(directory / f"{n}", core, home=directory / "0", epmd_port=first.epmd_port)
            for n in range(1, count)
        ]
        self.nodes = [first, *others]
        names = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {node.node_name}\n"
            for number, node in enumerate(self.nodes, 1)
        )
        for number in range(count):
            (directory / f"{number}" / "rabbitmq.conf").write_text(
                f"cluster_formation.peer_discovery_backend = classic_config\n{names}"
            )

    @property
    def uri(self) -> str:
        """Return the URI of the node that leads the queues of its clients."""
        return self.nodes[0].uri

    def start(self) -> None:
        """Start one after the other: each finds those before it."""
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        """Stop all, the one with the port mapper last."""
        for node in reversed(self.nodes):
            node.stop()
