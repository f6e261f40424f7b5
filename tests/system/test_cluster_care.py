"""Care of a cluster: restarts, a backup, and a beginning anew from what is left."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pika
import pytest

from tests.harness.broker import REPOSITORY
from tests.harness.confirmed_publisher import ConfirmedPublisher
from tests.harness.pika_client import publish
from tests.process import running_node
from tests.support.cluster_processes import ClusterNodeProcess, ProcessCluster
from tests.support.ports import free_ports
from tests.support.waiting import LIMIT_SECONDS, wait_until
from tests.support.zookeeper import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("processes")]

MEMBERSHIP = "cluster.json"
QUEUE = "numbers"
HOST_NAME = "tenant"  # a virtual host


@pytest.fixture
def cluster(tmp_path: Path, processes: None) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path) as made:
        yield made


def run(data: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command on a node."""
    return subprocess.run(
        [sys.executable, "-m", "leveret", *map(str, words), "--data-dir", str(data)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )


def command(data: Path, *words: object) -> str:
    """Run a command that succeeds; return what it prints."""
    done = run(data, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_in_sync(data: Path) -> bool:
    """Whether a node has everything that its cluster has."""
    return run(data, "health", "--in-sync").returncode == 0


class OtherNode(ClusterNodeProcess):
    """A node of another cluster, which is founded by the first one."""

    def __init__(self, cluster: ProcessCluster, number: int, directory: Path) -> None:
        directory.mkdir()
        ports = free_ports(3)
        link = cluster.nodes[0].link
        super().__init__(number, directory, (ports[0], ports[1], ports[2]), link)
        self.root = "/another"
        cluster.end_with(self)

    def wait_in_sync(self) -> None:
        """Start, and wait until it has everything that its cluster has."""
        self.start()
        wait_until(lambda: is_in_sync(self.data), "a node in sync")

    def read_all(self) -> set[int]:
        """Take all numbers out of the queue."""
        return ConfirmedPublisher([self.port], QUEUE).read_all()


def test_one_node_after_the_other_is_restarted(cluster: ProcessCluster) -> None:
    with ConfirmedPublisher(cluster.ports, QUEUE, 10) as publisher:
        publisher.wait_for_more()
        leader = cluster.leader()
        for node in sorted(cluster.nodes, key=lambda node: node is leader):
            assert node.end() == 0
            publisher.wait_for_more()
            node.start()
            cluster.wait_in_sync()
        publisher.wait_for_more()
    assert cluster.leader() is not leader
    assert publisher.read_all() >= set(publisher.confirmed)
    ended = [event for event in publisher.events if event == "refused"]
    assert ended == [], publisher.events
    assert cluster.troubles() == []


def test_a_backup_is_the_beginning_of_another_cluster(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    with ConfirmedPublisher(cluster.ports, QUEUE, 10) as publisher:
        publisher.wait_for_more(200)
    command(cluster.leader().data, "backup", "create", tmp_path / "backups")
    (backup,) = (tmp_path / "backups").glob("*Z")
    restored = OtherNode(cluster, 7, tmp_path / "restored")
    command(restored.data, "restore", backup)
    with in_sync_with_another(cluster, restored, tmp_path):
        assert restored.read_all() == set(publisher.confirmed)
    assert publisher.read_all() == set(publisher.confirmed)


@pytest.mark.parametrize("alone", [False, True])
def test_a_copy_that_is_left_is_a_node_of_its_own_or_founds_another_cluster(
    cluster: ProcessCluster, tmp_path: Path, *, alone: bool
) -> None:
    cluster.have_lead(cluster.followers()[0])  # in another epoch than the first one
    with ConfirmedPublisher(cluster.ports, QUEUE, 10) as publisher:
        publisher.wait_for_more(200)
    left = cluster.followers()[0]
    for node in cluster.nodes:
        node.kill()
    founder = OtherNode(cluster, left.number, tmp_path / "founder")
    founder.data = left.data
    founder.launch()
    wait_until(lambda: not founder.is_alive, "the end of a node")
    assert founder.end() == 1
    assert MEMBERSHIP in founder.log().splitlines()[-1]
    (left.data / MEMBERSHIP).unlink()
    if alone:
        with pytest.raises(AssertionError, match="has not made its definitions its own"):
            command(left.data, "user", "list")
        with running_node(left.data) as port:
            with ConfirmedPublisher([port], QUEUE, 10) as second:
                second.wait_for_more()
            command(left.data, "queue", "declare", "later")
    with in_sync_with_another(cluster, founder, tmp_path):
        assert founder.read_all() >= set(publisher.confirmed)
        # What was declared since is not undone by what the cluster knew.
        assert ("later" in command(left.data, "queue", "list")) == alone


@contextmanager
def in_sync_with_another(
    cluster: ProcessCluster, founder: OtherNode, directory: Path
) -> Iterator[None]:
    """Have a node found a cluster, which an empty one joins and is in sync with."""
    founder.wait_in_sync()
    joining = OtherNode(cluster, founder.number + 1, directory / "joining")
    joining.wait_in_sync()
    yield
    with ConfirmedPublisher([founder.port], QUEUE, 10) as publisher:
        publisher.wait_for_more()  # what is written now stands behind what was there
    assert publisher.events == []
    assert is_in_sync(joining.data)
    assert (joining.end(), founder.end()) == (0, 0)
    for node in (joining, founder):
        assert "Traceback" not in node.log()


def test_a_damaged_file_of_a_follower_is_copied_anew(cluster: ProcessCluster) -> None:
    with ConfirmedPublisher(cluster.ports, QUEUE) as publisher:
        publisher.wait_for_more(100)
        follower = cluster.followers()[0]
        follower.kill()
        wait_until(lambda: follower.number not in cluster.in_sync(), "its end is known")
        publisher.wait_for_more()
        damage(follower.data)
        follower.start()
        cluster.wait_in_sync()
        publisher.wait_for_more()
    cluster.have_lead(follower)
    assert publisher.read_all() >= set(publisher.confirmed)


def test_a_virtual_host_that_is_made_anew_while_a_node_is_away(cluster: ProcessCluster) -> None:
    """The node must not take the internal topics that it has for those of the new one."""
    make_host(cluster.leader())
    publish_delayed(cluster.leader(), range(30))
    leader, follower = cluster.followers()
    cluster.have_lead(leader)
    publish_delayed(leader, range(30, 50))  # into another file, and another epoch
    cluster.wait_in_sync()
    (deleted,) = topics_of_host(follower)
    follower.kill()
    wait_until(lambda: follower.number not in cluster.in_sync(), "its end is known")
    publish_delayed(leader, range(50, 90))
    command(leader.data, "vhost", "delete", HOST_NAME)
    make_host(leader)
    publish_delayed(leader, range(100, 120))
    follower.start()
    cluster.wait_in_sync()
    publish_delayed(leader, range(120, 130))
    cluster.have_lead(follower)
    wait_until(lambda: delayed(follower) == list(range(100, 130)), "the delayed messages")
    (made,) = topics_of_host(follower)
    assert made != deleted
    assert cluster.troubles() == []


def make_host(node: ClusterNodeProcess) -> None:
    """Make a virtual host that guest may use."""
    command(node.data, "vhost", "add", HOST_NAME)
    command(node.data, "permission", "set", "guest", ".*", ".*", ".*", "--vhost", HOST_NAME)


def topics_of_host(node: ClusterNodeProcess) -> list[str]:
    """Return the directories of the virtual host's logs."""
    return [path.name for path in node.data.glob(f"topics/{HOST_NAME}/*")]


def publish_delayed(node: ClusterNodeProcess, numbers: range) -> None:
    """Publish confirmed messages of the virtual host that are due in an hour."""
    parameters = pika.ConnectionParameters(HOST, node.port, HOST_NAME, heartbeat=0)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in numbers:
            headers = {"x-delay": 3_600_000, "x-schedule-id": str(number)}
            publish(channel, "anywhere", str(number), headers=headers)


def delayed(node: ClusterNodeProcess) -> list[int]:
    """Return the numbers of the virtual host that are not due yet."""
    text = command(node.data, "schedule", "list", "--vhost", HOST_NAME, "--json")
    return sorted(int(row["id"]) for row in json.loads(text))


def damage(data: Path) -> None:
    """Change a byte in the middle of the newest file of the queue's log."""
    (file,) = data.glob(f"topics/*/{QUEUE}~~*/0/*.log")
    with file.open("r+b") as opened:
        content = opened.read().rstrip(b"\0")
        opened.seek(len(content) // 2)
        opened.write(bytes([content[len(content) // 2] ^ 1]))
