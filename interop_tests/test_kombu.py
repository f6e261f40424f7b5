"""kombu over py-amqp: round trips, acknowledgements, fanout, and errors by class."""

# mypy: allow-untyped-calls

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from amqp import exceptions  # type: ignore[import-untyped]
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.message import Message

    from interop_tests.brokers import Broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    options = {"confirm_publish": True}
    with Connection(broker.address.url(), transport_options=options) as opened:
        yield opened


def test_simple_queue_round_trip(connection: Connection) -> None:
    queue = connection.SimpleQueue("kombu.simple")
    payloads: list[Any] = [{"number": 1, "text": "é"}, [1, 2, 3], "text", None, 2.5]
    for payload in payloads:
        queue.put(payload, serializer="json")
    assert queue.qsize() == len(payloads)
    got = []
    for _ in payloads:
        message = queue.get(block=True, timeout=60)
        got.append(message.payload)
        message.ack()
    assert got == payloads
    queue.close()
    queue.queue.delete()


def test_consumer_requeues_and_rejects(connection: Connection) -> None:
    queue = Queue("kombu.requeue", exclusive=True)
    seen: list[tuple[str, bool]] = []

    def handle(body: str, message: Message) -> None:
        again = bool(message.delivery_info["redelivered"])
        seen.append((body, again))
        if body == "twice" and not again:
            message.requeue()
        elif body == "rejected":
            message.reject()
        else:
            message.ack()

    with connection.Consumer(queue, callbacks=[handle], prefetch_count=1):
        producer = connection.Producer()
        for body in ("twice", "rejected", "once"):
            producer.publish(body, routing_key=queue.name)
        while len(seen) < 4:
            connection.drain_events(timeout=60)
    assert sorted(seen) == [("once", False), ("rejected", False), ("twice", False), ("twice", True)]


def test_fanout_and_topic(connection: Connection) -> None:
    channel = connection.channel()
    fanout = Exchange("kombu.fanout", "fanout", durable=False, auto_delete=True)
    topic = Exchange("kombu.topic", "topic", durable=False, auto_delete=True)
    queues = [Queue(f"kombu.f{n}", fanout, exclusive=True) for n in range(3)]
    queues.append(Queue("kombu.t", topic, routing_key="stock.#", exclusive=True))
    for queue in queues:
        queue(channel).declare()
    producer = Producer(channel)
    producer.publish("to all", exchange=fanout)
    producer.publish("to one", exchange=topic, routing_key="stock.usd.nyse")
    producer.publish("to none", exchange=topic, routing_key="bond.eur")
    got = [queue(channel).get(no_ack=True) for queue in queues]
    assert [message.payload if message else None for message in got] == [*["to all"] * 3, "to one"]
    assert all(queue(channel).get(no_ack=True) is None for queue in queues)


def test_priorities_and_expiry(connection: Connection) -> None:
    channel = connection.channel()
    queue = Queue("kombu.priority", max_priority=5, exclusive=True)(channel)
    queue.declare()
    producer = Producer(channel)
    for priority in (0, 5, 2):
        producer.publish(priority, routing_key=queue.name, priority=priority)
    got = [queue.get(no_ack=True) for _ in range(3)]
    assert [message.payload for message in got if message] == [5, 2, 0]


@pytest.mark.covers("B-502")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"queue": "kombu.missing", "passive": True}, exceptions.NotFound),
        ({"queue": "amq.reserved"}, exceptions.AccessRefused),
        ({"queue": "kombu.held", "auto_delete": True}, exceptions.PreconditionFailed),
    ],
)
def test_errors_become_their_classes(
    connection: Connection, options: dict[str, Any], error: type[Exception]
) -> None:
    connection.channel().queue_declare(queue="kombu.held", exclusive=True, auto_delete=False)
    arguments = {"auto_delete": False, "exclusive": "held" in str(options["queue"]), **options}
    with pytest.raises(error):
        connection.channel().queue_declare(**arguments)


@pytest.mark.covers("B-502")
def test_heartbeats_keep_the_connection(broker: Broker) -> None:
    with Connection(broker.address.url(), heartbeat=2) as opened:
        opened.connect()
        for _ in range(6):
            opened.heartbeat_check(rate=2)
            with pytest.raises((socket.timeout, TimeoutError)):
                opened.drain_events(timeout=0.5)
        assert opened.connected


def test_publish_retries_over_a_new_connection(broker: Broker) -> None:
    with Connection(broker.address.url()) as opened:
        queue = Queue("kombu.retry", expires=60)
        producer = opened.Producer()
        producer.publish("one", routing_key=queue.name, declare=[queue], retry=True)
        opened.connection.transport.sock.shutdown(socket.SHUT_RDWR)
        producer.publish("two", routing_key=queue.name, retry=True)
        bound = queue(opened.default_channel)
        got = [bound.get(no_ack=True) for _ in range(2)]
        assert [message.payload for message in got if message] == ["one", "two"]
        bound.delete()
