"""A leader that is cut off from the other nodes, though not from ZooKeeper, is replaced soon."""

import json
import time
from urllib.request import Request, urlopen

import pytest

from tests.cluster_processes.clients import pika_connection
from tests.cluster_processes.launcher import LocalCluster
from tests.cluster_processes.network import ClusterNetwork
from tests.support.waiting import wait_until

LAG_SECONDS = 10  # after which it would be replaced anyway
SESSION_MS = 15_000  # so that ZooKeeper has nobody replaced


@pytest.fixture
def cluster(tmp_path):
    cluster = LocalCluster(tmp_path, network=ClusterNetwork(), session_timeout_ms=SESSION_MS)
    cluster.zookeeper.settings = {"maxSessionTimeout": SESSION_MS}
    with cluster:
        yield cluster


def partition(node):
    """Return what a node knows of the queue's partition."""
    url = f"http://localhost:{node.ports.http}/api/leveret/cluster/partitions"
    request = Request(url, headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urlopen(request) as answer:
        rows = json.load(answer)
    return next(row for row in rows if row["queue"] == "q")


def declared(cluster):
    """Declare the queue. Returns its leader, and another node."""
    first, second, _ = cluster.nodes.values()
    with pika_connection(first) as connection:
        arguments = {"x-queue-type": "quorum"}
        connection.channel().queue_declare("q", durable=True, arguments=arguments)
    wait_until(lambda: len(partition(first)["in_sync"]) == 3)
    leader = cluster.nodes[partition(first)["leader"]]
    return leader, second if leader is first else first


@pytest.mark.parametrize("silent", [False, True])
def test_others_go_on_soon(cluster, silent):
    leader, another = declared(cluster)
    with pika_connection(another) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"before")
        others = [each for each in cluster.nodes if each != leader.number]
        cluster.network.cut([frozenset((leader.number, each)) for each in others], silent=silent)
        began = time.monotonic()
        channel.basic_publish("", "q", b"meanwhile")  # until it is confirmed
        took = time.monotonic() - began
        print(f"confirmed after {took:.1f} s")
        assert took < 0.8 * LAG_SECONDS
        assert partition(another)["leader"] in others
        cluster.network.heal()
    wait_until(lambda: len(partition(another)["in_sync"]) == 3)


@pytest.mark.parametrize("seconds", [2.2, 4.5, 9])
def test_who_only_could_not_run_leads_on(cluster, seconds):
    leader, another = declared(cluster)
    before = partition(another)["epoch"]
    leader.pause()
    time.sleep(seconds)
    leader.resume()
    time.sleep(4)
    assert partition(another)["epoch"] == before
    with pika_connection(another) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"afterwards")
