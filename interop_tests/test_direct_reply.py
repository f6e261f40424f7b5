"""Remote procedure calls over direct reply-to, as pika's and aio-pika's users write them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import aio_pika
import pika
import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop_tests.brokers import Broker

REPLY_TO = "amq.rabbitmq.reply-to"
CALLS = 50


def _opened(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.address.host, broker.address.port, blocked_connection_timeout=LIMIT_SECONDS
        )
    )


@pytest.fixture
def doubler(broker: Broker) -> Iterator[str]:
    """A queue with a server in a thread of its own that doubles numbers."""
    connection = _opened(broker)
    channel = connection.channel()
    queue: str = channel.queue_declare("", exclusive=True).method.queue

    def double(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
        assert properties.reply_to.startswith(f"{REPLY_TO}.")
        channel.basic_publish(
            "",
            properties.reply_to,
            b"%d" % (2 * int(body)),
            pika.BasicProperties(correlation_id=properties.correlation_id),
            mandatory=True,
        )
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, double)
    server = threading.Thread(target=channel.start_consuming)
    server.start()
    yield queue
    connection.add_callback_threadsafe(channel.stop_consuming)
    server.join(LIMIT_SECONDS)
    connection.close()


@pytest.mark.covers("B-110", "B-504")
def test_calls_with_pika(broker: Broker, doubler: str) -> None:
    with _opened(broker) as connection:
        channel = connection.channel()
        answers: dict[str, int] = {}

        def note(_channel: Any, _method: Any, properties: Any, body: bytes) -> None:
            answers[properties.correlation_id] = int(body)

        channel.basic_consume(REPLY_TO, note, auto_ack=True)
        for number in range(CALLS):
            properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id=str(number))
            channel.basic_publish("", doubler, b"%d" % number, properties)
        while len(answers) < CALLS:
            connection.process_data_events(time_limit=LIMIT_SECONDS)
        assert answers == {str(number): 2 * number for number in range(CALLS)}


@pytest.mark.covers("B-110", "B-503")
async def test_calls_with_aio_pika(broker: Broker, doubler: str) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        async with await aio_pika.connect(broker.address.url()) as connection:
            channel = await connection.channel()
            replies = await channel.get_queue(REPLY_TO)
            answered: asyncio.Queue[bytes] = asyncio.Queue()

            async def note(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await answered.put(message.body)

            await replies.consume(note, no_ack=True)
            for number in range(CALLS):
                question = aio_pika.Message(b"%d" % number, reply_to=REPLY_TO)
                await channel.default_exchange.publish(question, doubler)
                assert await answered.get() == b"%d" % (2 * number)
