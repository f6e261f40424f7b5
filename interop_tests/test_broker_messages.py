"""The messages of a broker's own making, compared with RabbitMQ's: events and the firehose.

The same things are done on both brokers; keys, headers, their types and their values must be the
same, but for what names a process, a node or a moment.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pika
import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pika.adapters.blocking_connection import BlockingChannel

    from interop_tests.brokers import Address, Broker

Message: TypeAlias = tuple[str, dict[str, Any], bytes]

# What is each broker's, connection's or moment's own: only that it is there is compared.
OWN = {
    *("pid", "connection", "channel", "node", "timestamp_in_ms", "connected_at", "port"),
    *("peer_port", "name", "connection_name", "owner_pid", "error"),
}
# Facts about TLS, which RabbitMQ tells as empty texts where there is none.
TLS = {
    *("ssl_hash", "ssl_cipher", "ssl_key_exchange", "ssl_protocol"),
    *("peer_cert_validity", "peer_cert_issuer", "peer_cert_subject"),
}


@contextmanager
def connected(address: Address, **options: Any) -> Iterator[BlockingChannel]:
    parameters = pika.ConnectionParameters(
        address.host, address.port, client_properties={"connection_name": "mine"}, **options
    )
    connection = pika.BlockingConnection(parameters)
    yield connection.channel()
    if connection.is_open:
        connection.close()


def listen(address: Address, exchange: str, last: str, act: Callable[[], None]) -> list[Message]:
    """Return what comes to `exchange` while `act` runs, up to the first message with key `last`."""
    found: list[Message] = []
    with connected(address) as channel:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange, "#")
        time.sleep(0.5)  # RabbitMQ hears of the first binding beside the answer
        channel.queue_purge(queue)
        act()
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline and (not found or found[-1][0] != last):
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None or method.routing_key is None:
                time.sleep(0.02)
            else:
                assert properties is not None
                found.append((method.routing_key, properties.headers or {}, body or b""))
    return found


def typed(message: Message) -> Message:
    """A message with what is its broker's own replaced by its type."""
    key, headers, body = message
    shown = {
        name: type(value).__name__ if name in OWN else value
        for name, value in headers.items()
        if name not in TLS
    }
    return key, shown, body


def live(address: Address) -> None:
    """One connection that does a little of everything."""
    with connected(address) as channel:
        channel.queue_declare("events.q", durable=True, arguments={"x-max-length": 5, "x-y": "z"})
        channel.exchange_declare(
            "events.x", "fanout", arguments={"alternate-exchange": "amq.topic"}
        )
        channel.queue_bind("events.q", "events.x", "k", {"a": 1, "b": True})
        channel.exchange_bind("amq.topic", "events.x", "kk")
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("events.q", lambda *_: None, consumer_tag="c", exclusive=True)
        channel.basic_cancel("c")
        channel.queue_unbind("events.q", "events.x", "k", {"a": 1, "b": True})
        channel.queue_delete("events.q")
        channel.exchange_delete("events.x")
        channel.close()


def without_deletions_in_progress(messages: list[Message]) -> list[Message]:
    """RabbitMQ 3.10 notes in a parameter that it is deleting an exchange."""
    return [
        message
        for message in messages
        if message[1].get("component") != "exchange-delete-in-progress"
    ]


@pytest.mark.covers("B-178")
def test_events_of_a_connections_life(rabbitmq: Broker, broker: Broker) -> None:
    wanted, found = (
        listen(
            each.address,
            "amq.rabbitmq.event",
            "connection.closed",
            lambda at=each: live(at.address),
        )
        for each in (rabbitmq, broker)
    )
    assert list(map(typed, found)) == list(map(typed, without_deletions_in_progress(wanted)))


@pytest.mark.covers("B-178")
def test_event_of_a_refused_login(rabbitmq: Broker, broker: Broker) -> None:
    def knock(address: Address) -> None:
        wrong = pika.PlainCredentials("guest", "wrong")
        with (
            pytest.raises(pika.exceptions.ProbableAuthenticationError),
            connected(address, credentials=wrong),
        ):
            pass

    wanted, found = (
        listen(
            each.address,
            "amq.rabbitmq.event",
            "user.authentication.failure",
            lambda at=each: knock(at.address),
        )
        for each in (rabbitmq, broker)
    )
    [(key, headers, body)] = map(typed, found)
    assert headers.pop("error") == "str"  # RabbitMQ tells it as a list of code points
    [(wanted_key, wanted_headers, wanted_body)] = map(typed, wanted)
    assert wanted_headers.pop("error") == "list"
    assert (key, headers, body) == (wanted_key, wanted_headers, wanted_body)


def exchange_messages(address: Address) -> None:
    with connected(address) as channel:
        channel.queue_declare("traced", exclusive=True)
        channel.queue_bind("traced", "amq.direct", "k")
        channel.confirm_delivery()
        properties = pika.BasicProperties(
            content_type="text/plain",
            delivery_mode=1,
            priority=3,
            message_id="m",
            timestamp=1_700_000_000,
            headers={"a": 1, "deep": {"b": [True, "x"]}},
        )
        channel.basic_publish("amq.direct", "k", b"all of it", properties)
        channel.basic_publish("", "traced", b"")
        channel.basic_publish("amq.direct", "nobody", b"lost")
        method, _, _ = channel.basic_get("traced")
        assert method is not None
        channel.basic_nack(method.delivery_tag, requeue=True)
        for count, _ in enumerate(channel.consume("traced", auto_ack=True), start=1):
            if count == 2:
                break
        channel.cancel()
        channel.basic_publish("amq.fanout", "", b"the end")


@pytest.mark.covers("B-179")
def test_the_firehose(rabbitmq: Broker, broker: Broker) -> None:
    def traced(each: Broker) -> list[Message]:
        each.trace(on=True)
        try:
            return listen(
                each.address,
                "amq.rabbitmq.trace",
                "publish.amq.fanout",
                lambda: exchange_messages(each.address),
            )
        finally:
            each.trace(on=False)

    assert list(map(typed, traced(broker))) == list(map(typed, traced(rabbitmq)))
