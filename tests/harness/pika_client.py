"""Connect, declare, publish and take everything, with pika's blocking connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from tests.harness.broker import BrokerProcess


def connect(broker: BrokerProcess) -> tuple[pika.BlockingConnection, BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    return connection, connection.channel()


def connected(broker: BrokerProcess) -> tuple[pika.BlockingConnection, BlockingChannel]:
    """Return a connection, and a channel with confirms."""
    connection, channel = connect(broker)
    channel.confirm_delivery()
    return connection, channel


def declare(channel: BlockingChannel, name: str, **arguments: object) -> int:
    """Declare a queue with arguments named without `x-`; returns how many messages it has."""
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.queue_declare(name, durable=True, arguments=named).method.message_count


def publish(channel: BlockingChannel, queue: str, body: bytes | str, **properties: Any) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def drained(channel: BlockingChannel, queue: str) -> list[str]:
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2].decode())
    return bodies


def await_count(channel: BlockingChannel, queue: str, count: int) -> None:
    def is_so() -> bool:
        return channel.queue_declare(queue, passive=True).method.message_count == count

    wait_until(is_so, f"{count} messages in {queue}")
