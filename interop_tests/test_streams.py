"""Streams as pika's users read them: from anywhere, again, and after the broker has died."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pika
import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pika.adapters.blocking_connection import BlockingChannel

    from interop_tests.brokers import Broker

QUIET_SECONDS = 0.3
STREAM = {"x-queue-type": "stream"}


def _opened(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.address.host, broker.address.port, blocked_connection_timeout=LIMIT_SECONDS
        )
    )


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = _opened(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=100)
    yield channel
    connection.close()


@pytest.fixture
def stream(channel: BlockingChannel, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"stream.{request.node.name}"
    channel.queue_declare(name, durable=True, arguments=STREAM)
    yield name
    channel.queue_delete(name)


def _publish(channel: BlockingChannel, stream: str, *bodies: bytes, **headers: Any) -> None:
    for body in bodies:
        channel.basic_publish(
            "", stream, body, pika.BasicProperties(delivery_mode=2, headers=headers or None)
        )


def _read(
    channel: BlockingChannel, stream: str, count: int, **arguments: Any
) -> list[tuple[int, bytes]]:
    """Offset and body of `count` messages, and of what else comes at once."""
    found = []
    asked = {f"x-stream-{name.replace('_', '-')}": value for name, value in arguments.items()}

    def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)

    tag = channel.basic_consume(stream, take, arguments=asked)
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        channel.connection.process_data_events(0.1)
    channel.connection.process_data_events(QUIET_SECONDS)
    channel.basic_cancel(tag)
    return found


@pytest.mark.covers("B-129", "B-504", "C-212")
def test_a_stream_is_read_from_wherever_one_asks(channel: BlockingChannel, stream: str) -> None:
    _publish(channel, stream, b"0", b"1", b"2")
    time.sleep(1.1)
    between = datetime.now(tz=UTC)
    time.sleep(1.1)
    _publish(channel, stream, b"3", b"4")
    everything = [(number, b"%d" % number) for number in range(5)]
    assert _read(channel, stream, 5, offset="first") == everything
    assert _read(channel, stream, 5, offset="first") == everything
    assert _read(channel, stream, 1, offset="last") == everything[4:]
    assert _read(channel, stream, 3, offset=2) == everything[2:]
    assert _read(channel, stream, 2, offset=between) == everything[3:]
    assert _read(channel, stream, 5, offset=between - timedelta(hours=1)) == everything
    assert _read(channel, stream, 5, offset="1h") == everything
    assert _read(channel, stream, 0, offset="next") == []
    assert _read(channel, stream, 0) == []


@pytest.mark.covers("B-129")
def test_two_connections_read_each_at_its_own_pace(
    broker: Broker, channel: BlockingChannel, stream: str
) -> None:
    bodies = [b"%d" % number for number in range(1000)]
    _publish(channel, stream, *bodies)
    with _opened(broker) as connection:
        other = connection.channel()
        other.basic_qos(prefetch_count=7)
        assert [body for _, body in _read(other, stream, 1000, offset="first")] == bodies
    assert [body for _, body in _read(channel, stream, 1000, offset="first")] == bodies


@pytest.mark.covers("B-508")
def test_a_client_may_find_out_whether_there_are_streams(channel: BlockingChannel) -> None:
    name = "nsb.delay.check"
    channel.queue_declare(name, durable=True, arguments=STREAM)
    channel.queue_declare(name, passive=True)
    channel.queue_delete(name)


@pytest.fixture
def filtering(broker: Broker) -> None:
    if broker.name == "rabbitmq":
        pytest.skip("RabbitMQ filters streams since 3.13; the one at hand is older")


@pytest.mark.usefixtures("filtering")
def test_filters_let_through_exactly_what_was_asked_for(
    channel: BlockingChannel, stream: str
) -> None:
    for number in range(30):
        value = ("a", "b", None)[number % 3]
        headers = {} if value is None else {"x-stream-filter-value": value}
        _publish(channel, stream, b"%s" % str(value).encode(), **headers)
    for wanted, unfiltered, found in (
        ("a", False, [b"a"] * 10),
        (["a", "b"], False, [b"a", b"b"] * 10),
        ("b", True, [b"b", b"None"] * 10),
        ("c", False, []),
    ):
        read = _read(
            channel, stream, len(found), offset="first", filter=wanted, match_unfiltered=unfiltered
        )
        assert [body for _, body in read] == found


@pytest.mark.covers("B-129")
def test_a_stream_outlives_its_broker(own_broker: Broker) -> None:
    with _opened(own_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True, arguments=STREAM)
        channel.basic_publish("", "kept", b"transient", pika.BasicProperties(delivery_mode=1))
        _publish(channel, "kept", b"persistent")
    own_broker.kill()
    own_broker.start()
    with _opened(own_broker) as reopened:
        channel = reopened.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=10)
        _publish(channel, "kept", b"later")
        bodies = [body for _, body in _read(channel, "kept", 3, offset="first")]
    assert bodies == [b"transient", b"persistent", b"later"]
