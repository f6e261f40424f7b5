"""pika's Twisted adapter: declare, confirm, consume, close. Run by test_twisted.py."""

# mypy: allow-untyped-calls

from __future__ import annotations

import sys
from typing import Any

import pika  # type: ignore[import-untyped]
from pika.adapters import twisted_connection  # type: ignore[import-untyped]
from twisted.internet import defer, protocol, reactor, task

MESSAGES = 20


async def round_trip(host: str, port: int) -> None:
    """Raises when anything is not as it should be."""
    creator = protocol.ClientCreator(
        reactor, twisted_connection.TwistedProtocolConnection, pika.ConnectionParameters()
    )
    connection = await (await creator.connectTCP(host, port)).ready
    channel = await connection.channel()
    await channel.confirm_delivery()
    declared = await channel.queue_declare("twisted.q", exclusive=True)
    await channel.basic_qos(prefetch_count=5)
    for number in range(MESSAGES):
        await channel.basic_publish("", declared.method.queue, b"%d" % number)
    messages, _ = await channel.basic_consume("twisted.q")
    got: list[int] = []
    while len(got) < MESSAGES:
        _, method, _, body = await messages.get()
        channel.basic_ack(method.delivery_tag)
        got.append(int(body))
    assert got == list(range(MESSAGES)), got
    await expect_channel_error(connection)
    await connection.close()


async def expect_channel_error(connection: Any) -> None:
    """A missing queue closes the channel with 404, and the connection lives on."""
    channel = await connection.channel()
    try:
        await channel.queue_declare("twisted.missing", passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404, error  # noqa: PT017 - not run by pytest
    else:
        raise AssertionError("a missing queue was found")


if __name__ == "__main__":
    address = sys.argv[1], int(sys.argv[2])
    task.react(lambda _: defer.ensureDeferred(round_trip(*address)))
