"""A cluster on this machine: a ZooKeeper and nodes, each a process that may be killed or stopped.

Everything lies below one directory, and is found again by the next cluster with that directory:

    DIR/secret              what the nodes share
    DIR/zookeeper/          ZooKeeper's data and log
    DIR/node-1/             data directory of node 1
    DIR/node-1.toml, .log   its settings, and what it says
"""

from __future__ import annotations

import json
import secrets
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tests.support.ports import free_ports
from tests.support.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.cluster_processes.network import ClusterNetwork

HOST = "127.0.0.1"
READY_SECONDS_MAX = 60  # three Pythons that start at once on a busy machine
STOP_SECONDS_MAX = 60
CHROOT = "/leveret-local"


@dataclass(frozen=True)
class NodePorts:
    """Ports of a node, which it keeps when it is started again."""

    amqp: int
    http: int
    metrics: int
    links: int


class NodeProcess:
    """One node. `number` is its id."""

    def __init__(self, cluster: LocalCluster, number: int, ports: NodePorts) -> None:
        self.number = number
        self.ports = ports
        self.data = cluster.directory / f"node-{number}"
        self.log = cluster.directory / f"node-{number}.log"
        self.is_paused = False
        self.process: subprocess.Popen | None = None
        self._settings = cluster.directory / f"node-{number}.toml"
        self._cluster = cluster

    @property
    def amqp(self) -> tuple[str, int]:
        """Where clients connect."""
        return HOST, self.ports.amqp

    @property
    def is_running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self.process is not None and self.process.poll() is None

    @property
    def is_live(self) -> bool:
        """Whether the process can answer."""
        return self.is_running and not self.is_paused

    def command(self) -> list[str]:
        """Return the command that runs the node."""
        cluster = self._cluster
        options = {
            "config": self._settings,
            "data-dir": self.data,
            "port": self.ports.amqp,
            "http-port": self.ports.http,
            "prometheus-port": self.ports.metrics,
            "cluster": f"{cluster.zookeeper_address(self.number)}{CHROOT}",
            "node-id": self.number,
            "advertise": cluster.link_address(self.number),
            "rack": f"rack-{self.number}",
            "cluster-secret-file": cluster.secret,
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return [sys.executable, "-m", "leveret", "serve", *words, *cluster.arguments]

    def launch(self) -> None:
        """Start the process."""
        assert not self.is_running, "it is running already"
        settings = {
            "link_host": HOST,
            "link_port": self.ports.links,
            "zookeeper_session_timeout_ms": self._cluster.session_timeout_ms,
            **self._cluster.settings,
        }
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
        self._settings.write_text("".join(lines))
        self.is_paused = False
        with self.log.open("ab") as log:
            # In a group of its own: an interrupt from the terminal is for the launcher alone.
            self.process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=log, process_group=0
            )

    def wait(self) -> None:
        """Wait until the node serves clients."""
        assert self.process is not None, "it is launched first"
        output = self.process.stdout
        found, _, _ = select.select([output], [], [], READY_SECONDS_MAX)
        ready = output.readline() if found else b""
        if not ready.startswith(b"ready "):
            told = self.log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"node {self.number} does not start:\n{told}")

    def start(self) -> None:
        """Start the node, and wait until it serves clients."""
        self.launch()
        self.wait()

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self._collect()

    def terminate(self) -> None:
        """Ask the process to end in order."""
        assert self.process is not None, "it is launched first"
        self.resume()
        self.process.terminate()

    def ended(self) -> int:
        """Wait until the process has ended. Returns its exit status."""
        assert self.process is not None, "it is launched first"
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        finally:
            self.kill()

    def stop(self) -> int:
        """End the process in order. Returns its exit status."""
        self.terminate()
        return self.ended()

    def restart(self) -> None:
        """Kill the process, and start it again with the same data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let the process stand still: its connections stay open, and nobody answers."""
        assert self.is_running, "only what runs can be stopped"
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let the process go on."""
        if self.is_running:
            self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def _collect(self) -> None:
        self.process.wait()
        self.process.stdout.close()
        self.process = None
        self.is_paused = False


class LocalCluster:
    """ZooKeeper and some nodes, with ids from 1 on, below one directory.

    `settings` are those of every node, as in its file of settings; `arguments` go to each command.
    With a `network`, the nodes reach each other and ZooKeeper through it.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        session_timeout_ms: int = 2000,
        network: ClusterNetwork | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.settings = dict(settings or {})
        self.arguments = list(arguments)
        self.session_timeout_ms = session_timeout_ms
        self.network = network
        self.secret = directory / "secret"
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.nodes = {
            number: NodeProcess(self, number, ports)
            for number, ports in enumerate(_node_ports(nodes), 1)
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start ZooKeeper, then all nodes at the same time."""
        if not self.secret.exists():
            self.secret.touch(0o600)
            self.secret.write_text(secrets.token_hex(32))
        self.zookeeper.start()
        if self.network is not None:
            self.network.start(self)
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait()

    def zookeeper_address(self, node: int) -> str:
        """Return where a node reaches ZooKeeper."""
        if self.network is None:
            return self.zookeeper.address
        return self.network.zookeeper_address(node)

    def link_address(self, node: int) -> str:
        """Return where other nodes reach a node."""
        if self.network is None:
            return f"{HOST}:{self.nodes[node].ports.links}"
        return self.network.link_address(node)

    def live_addresses(self) -> list[tuple[str, int]]:
        """Return where clients reach the nodes that can answer."""
        return [node.amqp for node in self.nodes.values() if node.is_live]

    def stop(self) -> dict[int, int]:
        """End the nodes in order, all at once, then ZooKeeper. Returns exit statuses by node."""
        running = [node for node in self.nodes.values() if node.is_running]
        for node in running:
            node.terminate()
        try:
            return {node.number: node.ended() for node in running}
        finally:
            self.kill()

    def kill(self) -> None:
        """End every process as `kill -9` does."""
        for node in self.nodes.values():
            node.kill()
        self.zookeeper.kill()
        if self.network is not None:
            self.network.close()

    def stop_zookeeper(self) -> None:
        """Kill ZooKeeper; it keeps its data."""
        self.zookeeper.kill()

    def start_zookeeper(self) -> None:
        """Start ZooKeeper again, at the same address."""
        self.zookeeper.start()


def _node_ports(nodes: int) -> list[NodePorts]:
    ports = free_ports(nodes * len(NodePorts.__dataclass_fields__))
    return [NodePorts(*ports[at::nodes]) for at in range(nodes)]
