"""Administrators use any node: what is about messages is answered by the node that leads them."""

from __future__ import annotations

import re
from contextlib import ExitStack

import httpx
import pika
import pytest

from tests.cluster_processes.launcher import LocalCluster
from tests.support.waiting import wait_until

ADMIN = ("guest", "guest")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def nodes(cluster):
    """Return an HTTP client of each node, by its number."""
    with ExitStack() as opened:
        yield {
            number: opened.enter_context(
                httpx.Client(
                    base_url=f"http://127.0.0.1:{node.ports.http}/api", auth=ADMIN, timeout=60
                )
            )
            for number, node in cluster.nodes.items()
        }


@pytest.fixture
def channel(cluster):
    host, port = cluster.nodes[1].amqp
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def leader_of(nodes, queue):
    """Return the node that leads the only partition of a queue."""
    found = []

    def is_led():
        rows = nodes[1].get("/leveret/cluster/partitions").json()
        found[:] = [row["leader"] for row in rows if row.get("queue") == queue]
        return found and found[0] is not None

    wait_until(is_led)
    return found[0]


@pytest.fixture
def queue(nodes, channel, request):
    name = re.sub(r"\W", "-", request.node.name)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    for number in range(5):
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}")
        channel.basic_publish("", name, b"%d" % number, properties)
    yield name
    channel.queue_delete(name)


@pytest.fixture
def elsewhere(nodes, queue):
    """Return a client of a node that does not lead the queue."""
    leader = leader_of(nodes, queue)
    return nodes[next(number for number in nodes if number != leader)]


def test_messages_are_shown(elsewhere, queue):
    told = elsewhere.get(f"/leveret/queues/%2F/{queue}/messages")
    assert [row["payload"] for row in told.json()["messages"]] == ["0", "1", "2", "3", "4"]
    shown = elsewhere.get(f"/leveret/queues/%2F/{queue}/messages/3").json()
    assert shown["properties"]["message_id"] == "m3"


def test_messages_are_changed(elsewhere, queue, channel):
    path = f"/leveret/queues/%2F/{queue}/messages"
    deleted = elsewhere.post(f"{path}/delete", json={"select": {"message_ids": ["m1"]}})
    assert deleted.json()["deleted"] == 1
    assert elsewhere.patch(f"{path}/2", json={"payload": "two"}).status_code == 200
    bodies = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(4)]
    assert sorted(bodies) == [b"0", b"3", b"4", b"two"]


def test_a_queue_is_purged(elsewhere, queue, channel):
    assert elsewhere.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    assert channel.basic_get(queue, auto_ack=True)[0] is None


def test_every_node_counts_messages_wherever_they_are(nodes, queue, channel):
    channel.basic_get(queue)
    leader = leader_of(nodes, queue)

    def told(client):
        row = client.get(f"/queues/%2F/{queue}").json()
        listed = client.get("/queues").json()
        assert [one["messages"] for one in listed if one["name"] == queue] == [row["messages"]]
        assert client.get("/overview").json()["queue_totals"]["messages_unacknowledged"] == 1
        return {name: row[name] for name in ("messages_ready", "messages_unacknowledged", "node")}

    name = nodes[leader].get("/overview").json()["node"]
    wanted = {"messages_ready": 4, "messages_unacknowledged": 1, "node": name}
    for client in nodes.values():
        wait_until(lambda client=client: told(client) == wanted)


def test_every_node_names_the_replicas(nodes, queue):
    leader_of(nodes, queue)
    names = sorted(client.get("/overview").json()["node"] for client in nodes.values())
    for client in nodes.values():
        row = client.get(f"/queues/%2F/{queue}").json()
        assert sorted(row["members"]) == sorted(row["online"]) == names
        assert row["leader"] == row["node"] in names


def test_one_node_has_the_metrics_of_a_queue(cluster, nodes, queue):
    leader = leader_of(nodes, queue)
    wanted = re.compile(
        rf'^rabbitmq_detailed_queue_messages{{[^}}]*queue="{queue}"[^}}]*}} (\d+)', re.M
    )
    path = "/metrics/detailed?family=queue_coarse_metrics"
    found = {}
    for number, client in nodes.items():
        text = client.get(str(client.base_url).removesuffix("/api/") + path).text
        found[number] = wanted.findall(text)
    assert found == {number: ["5"] if number == leader else [] for number in nodes}
