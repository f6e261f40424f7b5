"""Three nodes as processes, and the ZooKeeper that coordinates them: killed, stopped, and cut off.

Each reaches ZooKeeper through a relay of its own. Logs of all are in the directory of the test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from examples.cluster.nodes import COUNT, Ports, serve_command
from leveret.cluster.entries import LiveValue, ShardValue, live_path, shard_path
from leveret.storage.names import TRASH
from tests.harness.broker import REPOSITORY
from tests.support.ports import free_ports
from tests.support.waiting import LIMIT_SECONDS, wait_until
from tests.support.zookeeper import HOST, ZooKeeperServer, relay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.replication.shard import ShardEntry
    from tests.support.zookeeper import Relay

ROOT = "/cluster"
READ_SECONDS = 5.0  # for ZooKeeper to answer
LOOK_SECONDS = 0.2
STILL_SECONDS = 1.0  # for which an entry does not change that is the last of several
STOP_SECONDS = 30.0
# In a node's log: what it is from then on.
STATES = r"starting leveret|node: begins anew|begins anew as a member|incarnation \d+$"
TROUBLE = re.compile(r"Traceback|report this as a bug|^[-\d]+ [\d:,]+ (ERROR|CRITICAL) ")


class ClusterNodeProcess:
    """A node that is started on the same directory and ports each time.

    A node that has led and leads no more begins anew in the same process: its number stays.
    """

    def __init__(self, number: int, directory: Path, ports: tuple[int, int, int], link: Relay):
        self.number = number
        self.link = link  # to ZooKeeper
        self.port, self.http_port, cluster_port = ports
        self._ports = Ports(self.port, self.http_port, -1, cluster_port)
        self.data = directory / f"data{number}"
        self.log_path = directory / f"node{number}.log"
        self.zookeeper = f"{HOST}:{link.port}"
        self.root = ROOT
        self.environment: dict[str, str] = {}  # beside that of the tests, from the next start on
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process without waiting until it is a member."""
        assert self._process is None, "one process at a time"
        command = serve_command(self.data, self.number, self.zookeeper + self.root, self._ports)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET")}
        own = {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", **self.environment}
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**kept, **own},
                start_new_session=True,
            )

    def start(self) -> None:
        """Start, and wait until it is a member."""
        starts = self.starts
        self.launch()
        wait_until(lambda: not self.is_alive or self.starts > starts, f"node {self.number}")
        self.check_alive()

    @property
    def starts(self) -> int:
        """How often it has said that it is ready."""
        return len(re.findall(r"^ready amqp=", self.log(), re.MULTILINE))

    @property
    def incarnation(self) -> int:
        """The one in which it is a member; 0 where it has begun anew since."""
        states = re.findall(STATES, self.log(), re.MULTILINE)
        last = states[-1] if states else ""
        return int(last.split()[1]) if last.startswith("incarnation") else 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check_alive(self) -> None:
        """Raise AssertionError if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            text = f"node {self.number} ended by itself with {status}"
            raise AssertionError(f"{text}:\n{self.log()[-4000:]}")

    def log(self) -> str:
        """Return what it has said over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """End it at once."""
        self.check_alive()
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(LIMIT_SECONDS)
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self) -> int | None:
        """Stop it in good order; return its status, or None where it had to be killed."""
        if self._process is None:
            return 0
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait(LIMIT_SECONDS)
            return None
        finally:
            self._process = None


class ProcessCluster:
    """The nodes and the server, from their start to their end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self.zookeeper = ZooKeeperServer(directory / "zookeeper", free_ports(1)[0])
        self.nodes: list[ClusterNodeProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.zookeeper.stop)
            self.zookeeper.start()
            self.zookeeper.wait_ready()
            ports = free_ports(3 * COUNT)
            for number in range(COUNT):
                link = stack.enter_context(relay(self.zookeeper.port))
                own = ports[number], ports[COUNT + number], ports[2 * COUNT + number]
                node = ClusterNodeProcess(number, self._directory, own, link)
                self.prepare(node)
                stack.callback(node.end)
                self.nodes.append(node)
                node.launch()
            wait_until(self._is_ready, "three nodes that are members")
            self.wait_in_sync()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self, node: ClusterNodeProcess) -> None:
        """Change what one node differs in from the others, before it is started."""

    def end_with(self, node: ClusterNodeProcess) -> None:
        """Have a node that is not one of these end when they do, at the latest."""
        self._stack.callback(node.end)

    def _is_ready(self) -> bool:
        self.check_alive()
        return all(node.starts for node in self.nodes)

    @property
    def ports(self) -> list[int]:
        """Ports for AMQP, of all nodes."""
        return [node.port for node in self.nodes]

    def check_alive(self) -> None:
        """Raise AssertionError if a node has ended by itself."""
        for node in self.nodes:
            node.check_alive()

    def entry(self) -> tuple[ShardEntry | None, dict[int, int]]:
        """Return the entry of the shard, and the incarnations of the live nodes by their numbers.

        There is neither while ZooKeeper does not answer.
        """
        client = KazooClient(self.zookeeper.address + ROOT, timeout=READ_SECONDS)
        live = {}
        try:
            client.start(READ_SECONDS)
            value, _ = client.get_async(shard_path(0)).get(timeout=READ_SECONDS)
            for number in range(COUNT):
                with suppress(NoNodeError):
                    found, _ = client.get_async(live_path(number)).get(timeout=READ_SECONDS)
                    live[number] = LiveValue.model_validate_json(found).incarnation
        except (KazooException, KazooTimeoutError):
            return None, {}
        finally:
            client.stop()
            client.close()
        return ShardValue.model_validate_json(value).entry, live

    def leader(self) -> ClusterNodeProcess:
        """Return the node that leads, as soon as one does."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            entry, _ = self.entry()
            if entry is not None and entry.leader is not None:
                return self.nodes[entry.leader]
            assert time.monotonic() < deadline, f"no node leads: {entry}"
            time.sleep(LOOK_SECONDS)

    def followers(self) -> list[ClusterNodeProcess]:
        """Return the nodes that do not lead."""
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def have_lead(self, node: ClusterNodeProcess) -> None:
        """Have a node lead: it is alone for a while, if it does not lead already."""
        if self.leader() is node:
            return
        others = [other for other in self.nodes if other is not node]
        for other in sorted(others, key=lambda other: other is self.leader()):
            other.end()
            wait_until(lambda other=other: other.number not in self.in_sync(), "its end is known")
        wait_until(lambda: self.leader() is node, f"node {node.number} leads")
        for other in others:
            other.start()
        self.wait_in_sync()

    def in_sync(self) -> frozenset[int]:
        """Return the in-sync set; empty while ZooKeeper does not answer."""
        entry, _ = self.entry()
        return frozenset() if entry is None else entry.isr

    def wait_in_sync(self) -> ShardEntry:
        """Return the entry, once all are members and in the in-sync set, and it changes no more."""
        deadline = time.monotonic() + LIMIT_SECONDS
        since, seen = 0.0, None
        while True:
            self.check_alive()
            entry, live = self.entry()
            now = time.monotonic()
            if entry != seen:
                since, seen = now, entry
            if entry is not None and self._is_whole(entry, live) and now - since > STILL_SECONDS:
                return entry
            assert now < deadline, f"not all in sync: {entry}, live {live}"
            time.sleep(LOOK_SECONDS)

    def _is_whole(self, entry: ShardEntry, live: dict[int, int]) -> bool:
        """Whether all are there, as what they are now: what is dead is not yet gone for a while."""
        return (
            len(entry.isr) == COUNT
            and entry.leader is not None
            and entry.incarnation == live.get(entry.leader)
            and all(node.incarnation == live.get(node.number) for node in self.nodes)
        )

    def end(self) -> dict[int, int | None]:
        """Stop all nodes, those that follow first; return their statuses."""
        leader = self.leader()
        nodes = sorted(self.nodes, key=lambda node: node is leader)
        return {node.number: node.end() for node in nodes}

    def troubles(self) -> list[str]:
        """Return what the nodes have logged as errors, which no fault of others excuses."""
        return [
            f"node {node.number}: {line}"
            for node in self.nodes
            for line in node.log().splitlines()
            if TROUBLE.search(line)
        ]

    def differences(self) -> list[str]:
        """Return the files of logs that the nodes, which have ended, do not have in common.

        Who led may have written to the end of one after the others had ended.
        """
        roots = [node.data / "topics" for node in self.nodes]
        files = {
            path.relative_to(root)
            for root in roots
            for path in root.rglob("*.log")
            if path.relative_to(root).parts[0] != TRASH
        }
        return [
            str(file) for file in sorted(files) if not _is_same([root / file for root in roots])
        ]


def _is_same(copies: Sequence[Path]) -> bool:
    """Whether each of some files is there and begins as the shortest; zeros at the end are room."""
    if not all(path.exists() for path in copies):
        return False
    contents = [path.read_bytes().rstrip(b"\0") for path in copies]
    size = min(map(len, contents))
    return len({content[:size] for content in contents}) == 1
