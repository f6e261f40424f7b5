"""Nodes on loopback that one ZooKeeper coordinates, each a process with files of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from examples.cluster.zookeeper import HOST, ZooKeeper
from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import CONTROL_SOCKET, request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["COUNT", "ClusterNode", "LocalCluster", "Ports", "serve_command"]

COUNT = 3
ROOT = "/leveret"  # the cluster's path in ZooKeeper
STOP_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 2.0


@dataclass(frozen=True)
class Ports:
    """Ports of one node; `metrics` may be -1 for none."""

    amqp: int
    http: int
    metrics: int
    cluster: int


def serve_command(data: Path, number: int, coordinator: str, ports: Ports) -> list[str]:
    """Return the command that starts a node; `coordinator` is ZooKeeper's HOST:PORT/PATH."""
    options: Mapping[str, object] = {
        "data-dir": data,
        "cluster": coordinator,
        "node-id": number,
        "advertise": f"{HOST}:{ports.cluster}",
        "port": ports.amqp,
        "http-port": ports.http,
        "prometheus-port": ports.metrics,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, "-P", "-m", "leveret", "serve", *words]


class ClusterNode:
    """A node that is started on the same directory and ports each time."""

    def __init__(
        self,
        number: int,
        directory: Path,
        coordinator: str,
        ports: Ports,
        settings: Mapping[str, str],
    ) -> None:
        self.number = number
        self.ports = ports
        self._environment = {**os.environ, **settings}
        self.data = directory / f"node{number}"
        self.log = directory / f"node{number}.log"
        self.command = serve_command(self.data, number, coordinator, ports)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Return where clients connect."""
        return f"amqp://guest:guest@{HOST}:{self.ports.amqp}/"

    @property
    def pid(self) -> int:
        """Return the number of the process; 0 if there is none."""
        return self.process.pid if self.process else 0

    def start(self) -> None:
        """Start the process; the node is not ready yet."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches who has started it, who stops all in order
            )

    def members(self) -> list[dict[str, Any]]:
        """Return what the node knows of all: `cluster status`; empty if it does not answer."""
        try:
            answer = request(
                self.data / CONTROL_SOCKET, "cluster.nodes", {}, seconds_max=ANSWER_SECONDS_MAX
            )
        except StorageError:
            return []
        return answer.get("result") or []

    def stop(self) -> None:
        """Stop in order, and kill what does not stop."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class LocalCluster:
    """ZooKeeper and nodes below one directory, from their start to their end.

    `settings` are variables of the nodes' environment.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper_port: int,
        ports: Iterable[Ports],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.zookeeper = ZooKeeper(directory / "zookeeper", zookeeper_port)
        coordinator = self.zookeeper.address + ROOT
        self.nodes = [
            ClusterNode(number, directory, coordinator, own, settings or {})
            for number, own in enumerate(ports)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._stop)
            self.zookeeper.start()
            self.zookeeper.wait_ready()
            for node in self.nodes:
                node.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stop(self) -> None:
        """Stop all, the node that leads behind the others, so that none is elected."""
        leader = self.leader()
        try:
            for node in sorted(self.nodes, key=lambda node: node is leader):
                node.stop()
        finally:
            self.zookeeper.stop()

    def members(self) -> list[dict[str, Any]]:
        """Return what the first node that answers knows of all, the leader before others."""
        found: list[dict[str, Any]] = []
        for node in self.nodes:
            told = node.members()
            if any(each["is_this"] and each["role"] == "leader" for each in told):
                return told
            found = found or told
        return found

    @property
    def is_in_sync(self) -> bool:
        """Whether all nodes are in sync."""
        return sum(each["is_in_sync"] for each in self.members()) == len(self.nodes)

    def leader(self) -> ClusterNode | None:
        """Return the node that leads; None while no node knows."""
        for each in self.members():
            if each["role"] == "leader" and each["is_live"]:
                return self.nodes[each["node"]]
        return None
