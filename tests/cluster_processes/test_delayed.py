"""Delayed messages survive any node of a cluster, and every node shows and changes them."""

import time
from datetime import UTC, datetime, timedelta

import httpx
import pika
import pytest

from tests.cluster_processes.clients import channel_of
from tests.cluster_processes.launcher import LocalCluster
from tests.cluster_processes.partitions import ADMIN, leaders_of, url_of
from tests.support.waiting import wait_until

HOUR = 3_600_000
QUEUE = "leveret.delayed"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def delay(channel, queue, *bodies, milliseconds, **headers):
    headers["x-delay"] = milliseconds
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    for body in bodies:
        channel.basic_publish("", queue, body, properties)


def schedules(cluster, number, path="", **options):
    """Ask a node about delayed messages, or have it change them."""
    url = f"{url_of(cluster, number)}/api/leveret/schedules/%2F{path}"
    if path and not path.startswith("/messages"):
        answer = httpx.post(url, json=options, auth=ADMIN, timeout=60)
    else:
        answer = httpx.get(url, params=options, auth=ADMIN, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_confirmed_messages_come_whoever_is_killed(cluster):
    with channel_of(cluster.nodes[1]) as channel:
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        delay(channel, "q", *(b"%d" % number for number in range(20)), milliseconds=6000)
    leader = leaders_of(cluster, QUEUE)[0]
    cluster.nodes[leader].kill()
    due = time.monotonic() + 5
    other = next(node for node in cluster.nodes.values() if node.is_live)
    got = []
    with channel_of(other) as channel:
        for method, _, body in channel.consume("q", inactivity_timeout=1):
            if method is not None:
                got.append(int(body))
                channel.basic_ack(method.delivery_tag)
            elif time.monotonic() > due and len(got) >= 20:
                break
    assert got == list(range(20))
    cluster.nodes[leader].start()


def test_every_node_shows_and_changes_them(cluster):
    with channel_of(cluster.nodes[2]) as channel:
        channel.queue_declare("shown", durable=True)
        delay(channel, "shown", b"a", b"b", b"c", milliseconds=HOUR)
        delay(channel, "shown", b"d", milliseconds=HOUR, **{"x-schedule-id": "d"})
        for number in cluster.nodes:
            rows = schedules(cluster, number, routing_key="shown")["rows"]
            assert [row["routing_key"] for row in rows] == ["shown"] * 4
            assert rows[3]["id"] == "d"
            assert schedules(cluster, number, "/messages/d")["payload"] == "d"
        ids = [row["broker_id"] for row in rows[:3]]
        for number, id_ in zip(cluster.nodes, ids, strict=True):
            assert schedules(cluster, number, "/deliver", id=id_)["count"] == 1
        wait_until(lambda: channel.queue_declare("shown", passive=True).method.message_count == 3)
        assert schedules(cluster, 3, "/cancel", id="d")["count"] == 1
        assert schedules(cluster, 1, routing_key="shown")["rows"] == []


def test_commands_are_answered_by_every_node(cluster):
    for number, node in cluster.nodes.items():
        with channel_of(node) as channel:
            delay(channel, "commanded", b"a", milliseconds=HOUR)
            answers = channel.queue_declare("", exclusive=True).method.queue
            properties = pika.BasicProperties(
                reply_to=answers, headers={"x-routing-key": "commanded"}
            )
            channel.basic_publish("leveret.schedule", "cancel", b"", properties)
            _, _, body = next(channel.consume(answers, inactivity_timeout=30))
            assert body == b'{"count": 1}', number


def test_every_node_shows_the_tasks_that_a_queue_holds(cluster):
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    task = pika.BasicProperties(delivery_mode=2, headers={"task": "a", "id": "1", "eta": eta})
    held = {"x-queue-type": "quorum", "x-celery-eta": True}
    with channel_of(cluster.nodes[1]) as channel:
        channel.queue_declare("tasks", durable=True, arguments=held)
        channel.basic_publish("", "tasks", b"[[], {}, {}]", task)
    for number in cluster.nodes:
        (row,) = schedules(cluster, number, queue="tasks")["rows"]
        assert row["routing_key"] == "tasks"
