"""Mistakes of people who run a cluster: each is told with what to do, and the others go on."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from leveret.cluster.entries import CLUSTER, ClusterValue
from tests.harness.broker import REPOSITORY
from tests.harness.confirmed_publisher import ConfirmedPublisher
from tests.support.cluster_processes import ClusterNodeProcess, ProcessCluster
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("processes")]

NEW = 3  # number of a node that the cluster does not have
OTHER_PROTOCOLS = "import leveret.cluster.links.handshake as links\nlinks.PROTOCOLS = (2, 3)\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(autouse=True)
def others_go_on(cluster: ProcessCluster) -> Iterator[None]:
    """Clients are served meanwhile, and all nodes are in sync at the end."""
    with ConfirmedPublisher([node.port for node in cluster.nodes], "numbers", 10) as publisher:
        yield
        publisher.wait_for_more()
    cluster.wait_in_sync()
    assert publisher.read_all() >= set(publisher.confirmed)
    for node in cluster.nodes:
        assert "Traceback" not in node.log()


class NodeBeside(ClusterNodeProcess):
    """A node that is started by mistake, beside those of a cluster."""

    def __init__(self, cluster: ProcessCluster, number: int, directory: Path) -> None:
        ports = free_ports(3)
        link = cluster.nodes[0].link
        super().__init__(number, directory, (ports[0], ports[1], ports[2]), link)
        cluster.end_with(self)

    def refusal(self) -> str:
        """Start; return what it says before it ends by itself."""
        self.launch()
        wait_until(lambda: not self.is_alive, "the end of a node")
        assert self.end() == 1
        return self.log().splitlines()[-1]


def test_a_number_that_another_node_has(cluster: ProcessCluster, tmp_path: Path) -> None:
    refusal = NodeBeside(cluster, 1, tmp_path).refusal()
    assert "node 1 is registered with a data directory, and this is another one" in refusal
    assert "choose another one" in refusal


def test_a_data_directory_that_a_node_uses(cluster: ProcessCluster, tmp_path: Path) -> None:
    beside = NodeBeside(cluster, 1, tmp_path)
    beside.data = cluster.nodes[1].data
    assert f"{beside.data} is in use by process" in beside.refusal()


def test_a_data_directory_of_another_node(cluster: ProcessCluster, tmp_path: Path) -> None:
    follower = cluster.followers()[0]
    follower.end()
    beside = NodeBeside(cluster, NEW, tmp_path)
    shutil.copytree(follower.data, beside.data)
    refusal = beside.refusal()
    assert f"is that of node {follower.number}, and this one is node {NEW}" in refusal
    assert "give each node a directory of its own" in refusal
    follower.start()


def test_a_data_directory_that_was_lost(cluster: ProcessCluster, tmp_path: Path) -> None:
    follower = cluster.followers()[0]
    follower.end()
    follower.data.rename(tmp_path / "lost")
    follower.launch()
    wait_until(lambda: not follower.is_alive, "the end of a node")
    assert follower.end() == 1
    assert "start with --replace" in follower.log().splitlines()[-1]
    follower.environment["LEVERET_CLUSTER_REPLACE"] = "true"
    follower.start()
    cluster.wait_in_sync()
    del follower.environment["LEVERET_CLUSTER_REPLACE"]


def test_a_node_of_another_cluster(cluster: ProcessCluster, tmp_path: Path) -> None:
    beside = NodeBeside(cluster, NEW, tmp_path)
    beside.root = "/another"
    beside.start()
    assert beside.end() == 0
    beside.root = cluster.nodes[0].root
    assert "check the address and the path of ZooKeeper" in beside.refusal()


def test_zookeeper_where_there_is_none(cluster: ProcessCluster, tmp_path: Path) -> None:
    beside = NodeBeside(cluster, NEW, tmp_path)
    beside.zookeeper = f"127.0.0.1:{free_ports(1)[0]}"
    beside.launch()
    wait_until(lambda: "no session with ZooKeeper at 127.0.0.1" in beside.log(), "a warning")
    assert "Is it running" in beside.log()
    assert beside.is_alive, "it tries again"
    assert beside.end() == 0


def test_another_password_for_zookeeper(cluster: ProcessCluster, tmp_path: Path) -> None:
    first = NodeBeside(cluster, 0, tmp_path / "first")
    second = NodeBeside(cluster, 1, tmp_path / "second")
    for node, password in ((first, "dandelion"), (second, "clover")):
        node.data.parent.mkdir()
        node.root = "/guarded"
        node.environment["LEVERET_ZOOKEEPER_USER"] = "leveret"
        node.environment["LEVERET_ZOOKEEPER_PASSWORD"] = password
    first.start()
    refusal = second.refusal()
    assert "check the user and password for ZooKeeper" in refusal
    assert first.end() == 0
    for node in (first, second):
        assert "dandelion" not in node.log()
        assert "clover" not in node.log()


def test_a_release_with_which_no_protocol_is_common(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    follower = cluster.followers()[0]
    (tmp_path / "sitecustomize.py").write_text(OTHER_PROTOCOLS)
    with started_otherwise(follower, PYTHONPATH=f"{tmp_path}:{REPOSITORY}"):
        for node in (follower, cluster.leader()):
            wait_until(lambda node=node: "speaks protocols 2 to 3" in node.log(), "a refusal")
            assert "upgrade the node that accepted it" in node.log()


def test_another_secret_for_links(cluster: ProcessCluster) -> None:
    follower = cluster.followers()[0]
    client = KazooClient(cluster.zookeeper.address + follower.root)
    client.start()
    value, _ = client.get(CLUSTER)
    changed = ClusterValue.model_validate_json(value).model_copy(update={"secret": "ab" * 32})
    client.set(CLUSTER, changed.to_bytes())
    try:
        with started_otherwise(follower):
            told = "the two nodes have different secrets for links"
            wait_until(lambda: told in follower.log(), "a refusal")
            client.set(CLUSTER, value)
    finally:
        client.stop()
        client.close()
    assert changed.secret not in follower.log()


@contextmanager
def started_otherwise(node: ClusterNodeProcess, **environment: str) -> Iterator[None]:
    """Start a node anew with other variables, until the end of the block."""
    node.end()
    node.environment = environment
    node.start()
    yield
    node.end()
    node.environment = {}
    node.start()
