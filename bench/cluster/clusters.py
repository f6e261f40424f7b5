"""Three nodes of Leveret with a ZooKeeper, and three of RabbitMQ: on loopback, on one core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import httpx
from pamqp import commands

from bench.processes import BenchError, broker_core, pinned
from bench.rabbitmq import RabbitMq
from leveret import __version__
from leveret.perf.plan import Address
from leveret.perf.session import LoadSession
from tests.cluster_processes.launcher import LocalCluster, NodeProcess

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BenchCluster", "LeveretCluster", "RabbitMqCluster"]

NODES = 3
PLACED_SECONDS_MAX = 60
POLL_SECONDS = 0.05
SESSION_MS = 3000  # Leveret's default; the launcher's own is shorter, for tests
CTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
CTL_SECONDS_MAX = 120


class BenchCluster(Protocol):
    """A cluster whose nodes have the numbers 1 to 3."""

    name: str
    version: str

    def start(self) -> None:
        """Start all nodes; returns when clients can connect to each."""

    def stop(self) -> None:
        """End everything that was started."""

    def uri(self, node: int) -> str:
        """Return where clients reach a node."""

    def pids(self) -> list[int]:
        """Return the processes of the nodes that run, in the order of their numbers."""

    def kill(self, node: int) -> None:
        """End a node as `kill -9` does."""

    def restart(self, node: int) -> None:
        """Start a node that was killed; returns once all replicas are in sync."""

    def declare(self, queue: str, kind: str, replicas: int, leader: int) -> None:
        """Declare a durable queue that this node leads, with so many replicas in sync."""

    def leader(self, queue: str) -> int | None:
        """Return the node that leads a queue; None while there is none."""


class LeveretCluster:
    """Three nodes of Leveret and a ZooKeeper, which runs on the brokers' core as well."""

    name = "Leveret"

    def __init__(self, directory: Path, durability: str, nodes: int = NODES) -> None:
        self.version = f"{__version__} on Python {sys.version.split()[0]}"
        self._cluster = LocalCluster(
            directory,
            nodes,
            arguments=("--durability", durability),
            session_timeout_ms=SESSION_MS,
        )

    def start(self) -> None:
        with pinned(broker_core()):
            self._cluster.start()
        for node in self._cluster.nodes.values():  # loads that behind its start: not in a reading
            with self._api(node) as api:
                api.get("partitions").raise_for_status()

    def stop(self) -> None:
        self._cluster.kill()

    def uri(self, node: int) -> str:
        host, port = self._cluster.nodes[node].amqp
        return f"amqp://guest:guest@{host}:{port}/"

    def pids(self) -> list[int]:
        return [each.process.pid for each in self._cluster.nodes.values() if each.is_running]

    def kill(self, node: int) -> None:
        self._cluster.nodes[node].kill()

    def restart(self, node: int) -> None:
        with pinned(broker_core()):
            self._cluster.nodes[node].start()
        deadline = time.monotonic() + PLACED_SECONDS_MAX
        while any(set(each["in_sync"]) != set(each["replicas"]) for each in self._partitions()):
            self._pause(deadline, "replicas are not in sync")

    def declare(self, queue: str, kind: str, replicas: int, leader: int) -> None:
        _declare(self.uri(leader), queue, kind, {"x-replicas": replicas})
        others = [node for node in self._cluster.nodes if node != leader]
        nodes = [leader, *others[: replicas - 1]]
        deadline = time.monotonic() + PLACED_SECONDS_MAX
        self._post(f"moves/%2F/{queue}", {"nodes": nodes})
        while True:
            state = self._partition(queue)
            if state and state["leader"] == leader and set(state["in_sync"]) == set(nodes):
                return
            self._pause(deadline, f"{queue} is not placed: {state}")

    def leader(self, queue: str) -> int | None:
        state = self._partition(queue)
        found: int | None = state["leader"] if state else None
        return found

    @staticmethod
    def _pause(deadline: float, text: str) -> None:
        if time.monotonic() > deadline:
            raise BenchError(f"{text}, after {PLACED_SECONDS_MAX} seconds")
        time.sleep(POLL_SECONDS)

    def _partition(self, queue: str) -> dict[str, Any] | None:
        return next((each for each in self._partitions() if each["queue"] == queue), None)

    def _partitions(self) -> list[dict[str, Any]]:
        with self._api() as api:
            answer = api.get("partitions").raise_for_status().json()
        return answer["partitions"] if isinstance(answer, dict) else list(answer)

    def _post(self, path: str, body: object) -> None:
        with self._api() as api:
            api.post(path, json=body).raise_for_status()

    def _api(self, node: NodeProcess | None = None) -> httpx.Client:
        """A client of a node, or of the first that runs: any of them knows the whole cluster."""
        node = node or next(each for each in self._cluster.nodes.values() if each.is_running)
        return httpx.Client(
            base_url=f"http://127.0.0.1:{node.ports.http}/api/leveret/cluster/",
            auth=("guest", "guest"),
            timeout=30,
            trust_env=False,
        )


class RabbitMqCluster:
    """Three nodes of RabbitMQ that share a port mapper and a cookie."""

    name = "RabbitMQ"

    def __init__(self, directory: Path, nodes: int = NODES) -> None:
        self.version = ""
        self._nodes: dict[int, RabbitMq] = {}
        for number in range(1, nodes + 1):
            first = self._nodes.get(1)
            self._nodes[number] = RabbitMq(directory / f"node-{number}", beside=first)
        self._running: set[int] = set()

    def start(self) -> None:
        for number, node in self._nodes.items():
            node.start()
            self._running.add(number)
            if number > 1:
                for words in (["stop_app"], ["join_cluster", self._nodes[1].node], ["start_app"]):
                    self._control(number, *words)
        self.version = self._nodes[1].version

    def stop(self) -> None:
        for node in reversed(self._nodes.values()):  # the first one has the port mapper
            node.stop()
        self._running.clear()

    def uri(self, node: int) -> str:
        return self._nodes[node].uri

    def pids(self) -> list[int]:
        return [self._nodes[number].pid for number in sorted(self._running)]

    def kill(self, node: int) -> None:
        self._running.discard(node)
        self._nodes[node].kill()

    def restart(self, node: int) -> None:
        self._nodes[node].start()
        self._running.add(node)
        self._control(node, "await_startup")

    def declare(self, queue: str, kind: str, replicas: int, leader: int) -> None:
        # It is led where it is declared.
        others = {"x-quorum-initial-group-size": replicas} if kind == "quorum" else {}
        _declare(self.uri(leader), queue, kind, others)
        if self.leader(queue) != leader:
            raise BenchError(f"{queue} is led by node {self.leader(queue)}")

    def leader(self, queue: str) -> int | None:
        at = min(self._running)
        told = self._control(
            at, "--quiet", "list_queues", "name", "leader", "pid", "--no-table-headers"
        )
        for line in told.splitlines():
            name, *where = line.split("\t")
            for number, node in self._nodes.items():
                if name == queue and any(node.node in word for word in where):
                    return number
        return None

    def _control(self, number: int, *words: str) -> str:
        node = self._nodes[number]
        done = subprocess.run(
            [CTL, "--node", node.node, *words],
            env={**os.environ, **node.environment},
            capture_output=True,
            text=True,
            timeout=CTL_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"rabbitmqctl {' '.join(words)}: {done.stdout} {done.stderr}")
        return done.stdout


def _declare(uri: str, queue: str, kind: str, others: dict[str, Any]) -> None:
    arguments = {"x-queue-type": kind, **others}
    with LoadSession.connect(Address.parse(uri)) as session:
        session.call(commands.Channel.Open(), 1)
        session.call(commands.Queue.Declare(queue=queue, durable=True, arguments=arguments), 1)
