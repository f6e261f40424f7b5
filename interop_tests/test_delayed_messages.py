"""Applications of RabbitMQ's plugin for delayed messages, unchanged: exchanges of its type."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pika
import pytest

from interop_tests.brokers import LeveretBroker, candidate
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop_tests.brokers import Broker

pytestmark = pytest.mark.skipif(
    candidate() is not LeveretBroker, reason="RabbitMQ has this in a plugin that is not installed"
)

EXCHANGE, QUEUE = "interop.delayed", "interop.delayed"


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(broker.address.url())) as connection:
        channel = connection.channel()
        yield channel
        channel.exchange_delete(EXCHANGE)
        channel.queue_delete(QUEUE)


def declare(channel: Any, kind: str, key: str) -> None:
    channel.exchange_declare(
        EXCHANGE, "x-delayed-message", durable=True, arguments={"x-delayed-type": kind}
    )
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, key)


def publish(channel: Any, key: str, body: bytes, delay: object) -> None:
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
    channel.basic_publish(EXCHANGE, key, body, properties)


def received(channel: Any, count: int) -> list[tuple[bytes, Any]]:
    """Bodies, and the delays that come with them."""
    found: list[tuple[bytes, Any]] = []
    for _, properties, body in channel.consume(
        QUEUE, auto_ack=True, inactivity_timeout=LIMIT_SECONDS
    ):
        assert body is not None, f"only {found}"
        found.append((body, properties.headers["x-delay"]))
        if len(found) == count:
            break
    channel.cancel()
    return found


@pytest.mark.covers("B-176", "C-203")
def test_messages_come_in_the_order_of_their_delays(channel: Any) -> None:
    declare(channel, "direct", "key")
    begun = time.monotonic()
    for delay in (900, 100, 700, "500", 300):
        publish(channel, "key", str(delay).encode(), delay)
    assert received(channel, 5) == [
        (b"100", -100),
        (b"300", -300),
        (b"500", -500),
        (b"700", -700),
        (b"900", -900),
    ]
    assert time.monotonic() - begun >= 0.9


@pytest.mark.covers("B-176", "C-203")
@pytest.mark.parametrize(("kind", "key"), [("topic", "a.#"), ("fanout", ""), ("direct", "a.b")])
def test_it_routes_as_its_type(channel: Any, kind: str, key: str) -> None:
    declare(channel, kind, key)
    declare(channel, kind, key)  # as applications do at each start
    publish(channel, "a.b", b"at once", 0)
    publish(channel, "a.b", b"later", 200)
    assert received(channel, 2) == [(b"at once", 0), (b"later", -200)]


@pytest.mark.covers("C-203")
def test_what_was_delayed_can_be_published_again(channel: Any) -> None:
    declare(channel, "direct", "key")
    publish(channel, "key", b"m", 100)
    ((_, delay),) = received(channel, 1)
    publish(channel, "key", b"again", delay)
    assert received(channel, 1) == [(b"again", -100)]
