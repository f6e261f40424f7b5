"""In a cluster one node runs a shovel, whichever is asked; another one does when that is killed."""

from __future__ import annotations

import httpx
import pika
import pytest

from tests.cluster_processes.launcher import LocalCluster
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ADMIN = ("guest", "guest")
QUORUM = {"x-queue-type": "quorum"}
VALUE = {
    "src-uri": "amqp://",
    "src-queue": "a",
    "src-queue-args": QUORUM,
    "dest-uri": "amqp://",
    "dest-queue": "b",
    "dest-queue-args": QUORUM,
    "reconnect-delay": 0.1,
}


@pytest.fixture
def cluster(tmp_path):
    with LocalCluster(tmp_path) as cluster:
        yield cluster


def ask(node, method, path, body=None):
    url = f"http://127.0.0.1:{node.ports.http}/api/{path}"
    return httpx.request(method, url, json=body, auth=ADMIN, timeout=PATIENCE_SECONDS)


def running_on(node):
    """Return the names of the nodes that run the shovel, as a node sees it."""
    rows = ask(node, "GET", "shovels").json()
    return [row["node"] for row in rows if row["state"] == "running"]


def publish(node, first, count):
    host, port = node.amqp
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(first, first + count):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "a", str(number).encode(), properties)


def test_another_node_takes_over(cluster):
    nodes = cluster.nodes
    assert ask(nodes[1], "PUT", "parameters/shovel/%2F/s", {"value": VALUE}).status_code == 201
    wait_until(lambda: all(len(running_on(each)) == 1 for each in nodes.values()), "one runs it")
    (runner,) = running_on(nodes[1])
    number = int(runner.partition("@")[0].rpartition("-")[2])
    for each in nodes.values():
        assert ask(each, "DELETE", "shovels/vhost/%2F/s/restart").status_code == 204
    others = [each for other, each in nodes.items() if other != number]
    publish(others[0], 0, 50)
    nodes[number].kill()
    wait_until(lambda: len(running_on(others[0])) == 1, "another one runs it")
    assert running_on(others[0]) != [runner]
    publish(others[0], 50, 50)
    host, port = others[1].amqp
    found = set()
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()

        def has_come():
            body = channel.basic_get("b", auto_ack=True)[2]
            found.update(() if body is None else {int(body)})
            return found == set(range(100))

        wait_until(has_come, "all have come")
    nodes[number].start()
    assert ask(others[0], "DELETE", "shovels/vhost/%2F/s").status_code == 204
    wait_until(lambda: not any(running_on(each) for each in nodes.values()), "it is gone")
