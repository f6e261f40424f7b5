"""Jobs use any node by HTTP: range reads, pulls and batch leases of what others lead."""

from __future__ import annotations

import http.client
import re
from contextlib import ExitStack, suppress

import httpx
import pika
import pytest

from leveret.batch_writer import BatchWriter
from leveret.batch_writer.packing import PERSISTENT_HEADER, pack_chunk, repeated, row_bytes
from leveret.range_reader import LeaseClient, LeaseLostError, LeaseName, RangeReader
from tests.cluster_processes.launcher import LocalCluster
from tests.cluster_processes.partitions import ADMIN, leaders_of, url_of
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def opened():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def channel(cluster):
    host, port = next(node for node in cluster.nodes.values() if node.is_live).amqp
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    with suppress(pika.exceptions.AMQPConnectionError):  # the test may have killed its node
        connection.close()


def other_node(cluster, *leaders):
    return next(
        number for number, node in cluster.nodes.items() if node.is_live and number not in leaders
    )


def declare(channel, request, count, **arguments):
    name = re.sub(r"\W", "-", request.node.name)
    kind = {"x-queue-type": "quorum", **arguments}
    channel.queue_declare(name, durable=True, arguments=kind)
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    return name


def bodies(chunks):
    return [chunk.columns["value"][row] for chunk in chunks for row in range(chunk.rows)]


def led_by_all(cluster, queue):
    """Have each node lead one partition of a queue."""
    url = f"{url_of(cluster, 1)}/api/leveret/cluster/elections/%2F/{queue}"

    def is_led(partition, node):
        asked = {"node": node, "partition": partition}
        httpx.post(url, json=asked, auth=ADMIN, timeout=60)
        return leaders_of(cluster, queue)[partition] == node

    for partition, node in enumerate(cluster.nodes):
        wait_until(lambda partition=partition, node=node: is_led(partition, node))
    return leaders_of(cluster, queue)


def test_ranges_are_read_of_all_partitions(cluster, channel, opened, request):
    kept = {"x-partitions": 3, "x-partition-by": "round-robin", "x-retention": "1d"}
    queue = declare(channel, request, 60, **kept)
    leaders = led_by_all(cluster, queue)
    for number in cluster.nodes:
        reader = opened.enter_context(RangeReader(url_of(cluster, number), *ADMIN))
        bounds = {each.partition: (each.first, each.end) for each in reader.offsets(queue)}
        assert bounds == dict.fromkeys(leaders, (0, 20))
        found = [
            body
            for partition in leaders
            for body in bodies(reader.chunks(queue, partition, 0, 20, rows_max=7))
        ]
        assert sorted(map(int, found)) == list(range(60))


def test_messages_are_pulled_where_nothing_is_led(cluster, channel, request):
    queue = declare(channel, request, 5)
    leader = leaders_of(cluster, queue)[0]
    first = other_node(cluster, leader)
    second = other_node(cluster, leader, first)
    path = f"/api/leveret/queues/%2F/{queue}"

    def asked(number, verb, **body):
        url = f"{url_of(cluster, number)}{path}/{verb}"
        answer = httpx.post(url, json=body, auth=ADMIN, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    pulled = asked(first, "receive", count=5, wait_ms=1000)["messages"]
    assert [each["payload"] for each in pulled] == list("01234")
    handles = [each["receipt_handle"] for each in pulled]
    results = asked(second, "ack", receipt_handles=handles)["results"]
    assert {each["result"] for each in results} == {"ok"}
    assert asked(second, "receive")["messages"] == []


def test_leases_live_as_long_as_their_leader(cluster, channel, opened, request):
    queue = declare(channel, request, 40)
    leader = leaders_of(cluster, queue)[0]
    first = other_node(cluster, leader)
    second = other_node(cluster, leader, first)
    taking = opened.enter_context(LeaseClient(url_of(cluster, first), *ADMIN))
    settling = opened.enter_context(LeaseClient(url_of(cluster, second), *ADMIN))
    name = LeaseName(queue, "job", 1)
    leased = taking.lease(name, messages_max=25, wait_ms=5000)
    assert leased.messages == 25
    found = bodies(settling.leased_chunks(name, 0, *leased.bounds(0)))
    assert [int(body) for body in found] == list(range(25))
    assert settling.settle(name, leased).settled == 25

    name = LeaseName(queue, "job", 2)
    leased = taking.lease(name, wait_ms=5000)
    cluster.nodes[leader].kill()
    leaders_of(cluster, queue)
    wait_until(lambda: is_lost(settling, name, leased))
    again = settling.lease_again(name, leased)
    assert (again.messages, again.missing) == (leased.messages, 0)
    found = bodies(taking.leased_chunks(name, 0, *again.bounds(0)))
    assert [int(body) for body in found] == list(range(25, 40))
    assert taking.settle(name, again).settled == leased.messages
    cluster.nodes[leader].start()


def is_lost(client, name, leased):
    """Whether a lease is known to be lost; before that, there may be no leader yet."""
    try:
        list(client.leased_chunks(name, 0, *leased.bounds(0)))
    except LeaseLostError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    return False


def test_a_batch_is_committed_into_queues_that_others_lead(cluster, channel, opened, request):
    queue = declare(channel, request, 0, **{"x-partitions": 3, "x-partition-by": "round-robin"})
    asked = other_node(cluster, leaders_of(cluster, queue)[0])
    writer = opened.enter_context(BatchWriter(url_of(cluster, asked), *ADMIN))
    for part in ("0", "1"):
        values = [b"%s-%d" % (part.encode(), number) for number in range(15)]
        writer.stage("job", 1, part, [chunk_for(queue, values)])
    told = writer.commit("job", 1, ["0", "1"], mandatory=True)
    assert (told.messages, told.unrouted) == (30, 0)
    assert writer.commit("job", 1, ["0", "1"], mandatory=True).is_repeated
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 30)


def chunk_for(queue, values):
    rows = len(values)
    return pack_chunk(
        rows,
        exchange=repeated(b"", rows),
        routing_key=repeated(queue.encode(), rows),
        header=repeated(PERSISTENT_HEADER, rows),
        value=row_bytes(values),
    )
