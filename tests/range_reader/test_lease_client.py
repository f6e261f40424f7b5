"""Batch leases as a job sees them, of a node that is killed and restarted."""

import pika
import pytest

from leveret.range_reader import LeaseClient, LeasedOffsets, LeaseLostError, LeaseName
from leveret.range_reader.client import ReadRefusedError
from tests.harness.broker import BrokerProcess
from tests.support.node import node_in_thread


@pytest.fixture
def broker(tmp_path, processes):
    """A node that can be killed."""
    with BrokerProcess(tmp_path / "data", http=True) as broker:
        yield broker


@pytest.fixture
def node(tmp_path):
    with node_in_thread(tmp_path, http_port=0) as node:
        yield node


def connected(node):
    return LeaseClient(f"http://{node.addresses['http']}", "guest", "guest")


def publish(node, count, queue="work"):
    parameters = pika.ConnectionParameters("127.0.0.1", node.port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(count):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", queue, b"%d" % number, properties)


def get(node, queue="work", **options):
    """Return what basic.get brings: (body, redelivered), None if there is nothing."""
    parameters = pika.ConnectionParameters("127.0.0.1", node.port)
    with pika.BlockingConnection(parameters) as connection:
        method, _, body = connection.channel().basic_get(queue, **options)
    return None if method is None else (body, method.redelivered)


def bodies(client, name, leased, **options):
    return [
        bytes(chunk.columns["value"][row])
        for partition in leased.ranges
        for chunk in client.leased_chunks(name, partition, *leased.bounds(partition), **options)
        for row in range(chunk.rows)
    ]


def test_a_batch_is_leased_read_and_settled(node):
    publish(node, 10)
    name = LeaseName("work", "job/7 ä", 1)
    with connected(node) as client:
        assert client.ready("work") == 10
        leased = client.lease(name, messages_max=4, idle_ms=60_000)
        assert (leased.messages, leased.ranges) == (4, {0: [(0, 4)]})
        assert bodies(client, name, leased) == [b"0", b"1", b"2", b"3"]
        assert bodies(client, name, leased, columns=["value"], bytes_max=1)[3:] == [b"3"]
        assert client.settle(name) == (4, 0)
        assert client.ready("work") == 6
        following = name._replace(number=2)
        assert client.lease(following, messages_max=1).ranges == {0: [(4, 5)]}
        assert client.release("work", name.holder) == 1
        with pytest.raises(LeaseLostError) as caught:
            list(client.leased_chunks(following, 0, 4, 5))
        assert not caught.value.is_other_queue
        with pytest.raises(ReadRefusedError) as refused:
            client.ready("none")
        assert refused.value.status == 404
        assert client.lease(name._replace(number=3), bytes_max=1, wait_ms=1).messages == 1


def test_after_a_crash_a_lease_has_again_what_nobody_took_meanwhile(broker):
    publish(broker, 6)
    name = LeaseName("work", "job", 5)
    with connected(broker) as client:
        leased = client.lease(name, messages_max=4)
    broker.kill()
    broker.start()
    assert get(broker) == (b"0", True)  # and it goes back, since it is not acknowledged
    assert get(broker, auto_ack=True) == (b"0", True)
    with connected(broker) as client:
        with pytest.raises(LeaseLostError):
            list(client.leased_chunks(name, 0, 0, 4))
        again = client.lease_again(name, leased, idle_ms=60_000)
        assert (again.ranges, again.missing) == ({0: [(1, 4)]}, 1)
        assert bodies(client, name, again) == [b"1", b"2", b"3"]
        assert client.lease(name._replace(number=6)).ranges == {0: [(4, 6)]}
    broker.stop()  # and no crash, which might bring the first message back again
    broker.start()
    with connected(broker) as client:
        assert client.settle(name, leased) == (3, 1)
        assert client.settle(name, leased) == (0, 0)
        assert client.ready("work") == 2
    assert get(broker) == (b"4", True)


def test_offsets_of_a_deleted_queue_are_not_those_of_the_next(node):
    publish(node, 2)
    name = LeaseName("work", "job", 1)
    with connected(node) as client:
        leased = client.lease(name)
        with node.connected() as connection:
            connection.channel().queue_delete("work")
        publish(node, 2)
        for act in (client.lease_again, client.settle):
            with pytest.raises(LeaseLostError) as caught:
                act(name, leased)
            assert caught.value.is_other_queue
        assert client.ready("work") == 2


def test_offsets_are_written_and_read_as_json():
    leased = LeasedOffsets("log", {0: [(1, 3), (5, 6)], 2: [(0, 1)]})
    assert leased.messages == 4
    assert leased.bounds(0) == (1, 6)
    told = leased.ranges_json()
    assert told == {"0": [[1, 3], [5, 6]], "2": [[0, 1]]}
    assert LeasedOffsets.parse_ranges(told) == leased.ranges
