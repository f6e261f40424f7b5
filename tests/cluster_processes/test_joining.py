"""A node by itself becomes the first of a cluster, and others join it."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pika
import pytest

from leveret.clustering.transactions.placing import PARTITIONS as DECISION_PARTITIONS
from tests.cluster_processes.clients import channel_of
from tests.cluster_processes.launcher import CHROOT, LocalCluster
from tests.support.waiting import wait_until

DURABLE = pika.BasicProperties(delivery_mode=2)


@contextmanager
def cluster_without_nodes(directory):
    """A cluster whose ZooKeeper runs, and none of its nodes."""
    cluster = LocalCluster(directory, 2)
    cluster.secret.touch(0o600)
    cluster.secret.write_text("the secret of all the nodes\n")
    cluster.zookeeper.start()
    try:
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def cluster(tmp_path):
    with cluster_without_nodes(tmp_path) as cluster:
        yield cluster


def leveret(*words, status=0):
    command = [sys.executable, "-m", "leveret", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


class Alone:
    """The first node's directory, run by itself."""

    def __init__(self, node):
        self.node = node

    def __enter__(self):
        ports = self.node.ports
        options = {"port": ports.amqp, "http-port": ports.http, "prometheus-port": ports.metrics}
        words = [str(each) for name, value in options.items() for each in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leveret", "serve", "--data-dir", self.node.data, *words],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline().startswith(b"ready ")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


def join(cluster, node, status=0):
    return leveret(*_arguments(cluster, node), status=status)


def bodies(channel, queue):
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def test_nothing_is_lost_by_joining(cluster):
    first, second = cluster.nodes.values()
    sent = [b"%d" % number for number in range(50)]
    with Alone(first), channel_of(first) as channel:
        channel.queue_declare("plain", durable=True)
        channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("parts", durable=True, arguments={"x-partitions": 3})
        channel.exchange_declare("x", "fanout", durable=True)
        for queue in ("plain", "quorum", "parts"):
            channel.queue_bind(queue, "x")
        for body in sent:
            channel.basic_publish("x", body.decode(), body, DURABLE)
        for _ in range(5):
            channel.basic_get("plain", auto_ack=True)
        channel.queue_declare(
            "retried", durable=True, arguments={"x-retry-attempts": 3, "x-retry-delay": 100}
        )
        channel.basic_publish("", "retried", b"failed once", DURABLE)
        got = channel.basic_get("retried")[0]
        channel.basic_nack(got.delivery_tag, requeue=False)
        channel.queue_declare("retried", passive=True)  # the nack was taken
        channel.queue_declare("late", durable=True)
        an_hour = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
        for body in sent:
            channel.basic_publish("", "late", body, an_hour)
    told = join(cluster, first)
    assert "node 1 is the first of cluster" in told
    assert "5 queues" in told
    first.start()
    with channel_of(first) as channel:
        channel.basic_publish("x", "50", b"50", DURABLE)
    sent.append(b"50")
    second.start()
    leveret("cluster", "add", 2, "--wait", "--data-dir", first.data)
    status = json.loads(leveret("cluster", "status", "--json", "--data-dir", second.data))
    assert [row["state"] for row in status["nodes"]] == ["up", "up"]
    assert status["partitions"]["all"] == 8 + DECISION_PARTITIONS  # delayed messages have one
    rows = json.loads(leveret("cluster", "partitions", "--json", "--data-dir", first.data))
    assert [row["in_sync"] for row in rows if row["queue"] == "quorum"] == [[1, 2]]
    with channel_of(second) as channel:
        assert bodies(channel, "plain") == sent[5:]
        assert bodies(channel, "quorum") == sent
        assert sorted(bodies(channel, "parts")) == sorted(sent)
        got = []
        wait_until(lambda: got.extend(bodies(channel, "retried")) or got)
        assert got == [b"failed once"]
        leveret("schedule", "deliver-now", "--all", "--data-dir", second.data)
        late = []
        wait_until(lambda: late.extend(bodies(channel, "late")) or len(late) >= 50)
        assert late == sent[:50]


def test_who_cannot_join_may_go_on_alone(cluster):
    first, second = cluster.nodes.values()
    with Alone(first):
        pass
    second.start()  # the cluster has definitions now
    assert "definitions of its own" in join(cluster, first, status=1)
    second.stop()
    with Alone(first), channel_of(first):
        pass


def test_a_cluster_waits_for_who_is_joining(cluster):
    first, second = cluster.nodes.values()
    with Alone(first), channel_of(first) as channel:
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"kept", DURABLE)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *_arguments(cluster, first)], timeout=60, check=False
    )
    assert killed.returncode == 9
    second.launch()
    assert second.process.wait(60) == 1
    assert "has not finished joining" in second.log.read_text()
    second.kill()
    join(cluster, first)
    first.start()
    with channel_of(first) as channel:
        assert bodies(channel, "q") == [b"kept"]


def test_a_backup_of_a_node_becomes_the_first_of_a_new_cluster(tmp_path):
    backups = tmp_path / "backups"
    sent = [b"%d" % number for number in range(50)]
    with LocalCluster(tmp_path / "old", 2) as old:
        first, second = old.nodes.values()
        with channel_of(first) as channel:
            two = {"x-queue-type": "quorum", "x-replicas": 2}
            channel.queue_declare("quorum", durable=True, arguments=two)
            channel.queue_declare("parts", durable=True, arguments={"x-partitions": 3, **two})
            channel.queue_declare("empty", durable=True)
            channel.queue_declare("transient", exclusive=True)
            channel.exchange_declare("x", "fanout", durable=True)
            for queue in ("quorum", "parts", "transient"):
                channel.queue_bind(queue, "x")
            for body in sent:
                channel.basic_publish("x", body.decode(), body, DURABLE)
            leveret("vhost", "add", "other", "--data-dir", second.data)
            made = leveret("backup", "create", backups, "--data-dir", second.data)
            assert "definitions" not in made
        second.stop()
        made = leveret("backup", "create", tmp_path / "stopped", "--data-dir", second.data)
        assert "no definitions are in it" in made
    with cluster_without_nodes(tmp_path / "new") as new:
        first, second = new.nodes.values()
        told = leveret("restore", backups / "latest", "--data-dir", first.data)
        assert "leveret cluster join" in told
        told = leveret("restore", tmp_path / "stopped" / "latest", "--data-dir", tmp_path / "bare")
        assert "it has no definitions" in told
        with Alone(first), channel_of(first) as channel:
            assert channel.queue_declare("quorum", passive=True).method.message_count == 50
        assert "with 3 queues, 1 user and 2 virtual hosts" in join(new, first)
        first.start()
        second.start()
        leveret("cluster", "add", 2, "--wait", "--data-dir", first.data)
        with channel_of(second) as channel:
            assert bodies(channel, "quorum") == sent
            assert sorted(bodies(channel, "parts")) == sorted(sent)
            channel.basic_publish("x", "50", b"50", DURABLE)
            assert bodies(channel, "quorum") == [b"50"]
            channel.queue_declare("empty", passive=True)


# As `leveret cluster join`, killed once the definitions are written.
KILLED = """
import os, sys
from leveret.node import joining
async def end(_): os._exit(9)
joining._set_definitions_aside = end
from leveret.cli.app import app
sys.argv[0] = "leveret"
app()
"""


def _arguments(cluster, node):
    options = {
        "data-dir": node.data,
        "node-id": node.number,
        "cluster": f"{cluster.zookeeper.address}{CHROOT}",
        "advertise": f"127.0.0.1:{node.ports.links}",
        "cluster-secret-file": cluster.secret,
    }
    words = [str(each) for name, value in options.items() for each in (f"--{name}", value)]
    return ["cluster", "join", *words]
