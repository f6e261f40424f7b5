"""Setting up both ends of a shovel: queues are declared or waited for, then consumed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from leveret.amqp.client import ClientClosedError
from leveret.amqp.methods import build
from leveret.features.shovels.parameters import QUEUE_LENGTH, AckMode

if TYPE_CHECKING:
    from pamqp import base

    from leveret.amqp.client import AmqpClient
    from leveret.features.shovels.parameters import ShovelDefinition, ShovelEnd

__all__ = ["CHANNEL", "consume", "prepare_destination", "prepare_source"]

CHANNEL: Final = 1  # of the messages
CHECK_CHANNEL: Final = 2  # of declarations that may close it
NOT_FOUND: Final = 404


async def prepare_destination(client: AmqpClient, shovel: ShovelDefinition) -> None:
    """Have the destination ready for publishes. Raises ClientError, TimeoutError."""
    await client.open_channel(CHANNEL)
    end = shovel.destination
    if end.queue is not None:
        await _have_queue(client, end, end.queue)
    if end.exchange:
        await _check_exchange(client, end.exchange)
    if shovel.ack_mode is AckMode.ON_CONFIRM:
        await client.call(commands.Confirm.Select(), CHANNEL)


async def prepare_source(client: AmqpClient, shovel: ShovelDefinition) -> tuple[str, int | None]:
    """Have the source ready; return the queue to consume from, and how many messages to move.

    None: without end. Raises ClientError, TimeoutError.
    """
    await client.open_channel(CHANNEL)
    end = shovel.source
    if end.queue is not None:
        queue = end.queue
        await _have_queue(client, end, queue)
    else:
        declared = await client.call(_declare("", is_durable=False, is_exclusive=True), CHANNEL)
        queue = str(declared.queue)
        await client.call(_bind(queue, end.exchange or "", end.key or ""), CHANNEL)
    if shovel.ack_mode is not AckMode.NO_ACK:
        await client.call(commands.Basic.Qos(0, shovel.prefetch, False), CHANNEL)
    remaining = shovel.delete_after
    if remaining == QUEUE_LENGTH:
        found = await client.call(_declare(queue, is_passive=True), CHANNEL)
        remaining = int(found.message_count)
    return queue, remaining if isinstance(remaining, int) else None


async def consume(client: AmqpClient, shovel: ShovelDefinition, queue: str) -> None:
    """Start the consumer. Raises ClientError, TimeoutError."""
    method = build(
        commands.Basic.Consume,
        ticket=0,
        queue=queue,
        consumer_tag="",
        no_local=False,
        no_ack=shovel.ack_mode is AckMode.NO_ACK,
        exclusive=False,
        nowait=False,
        arguments=dict(shovel.consumer_arguments),
    )
    await client.call(method, CHANNEL)


async def _have_queue(client: AmqpClient, end: ShovelEnd, queue: str) -> None:
    """Declare a queue unless it exists or must exist already. Raises ClientError."""
    await client.open_channel(CHECK_CHANNEL)
    try:
        await client.call(_declare(queue, is_passive=True), CHECK_CHANNEL)
    except ClientClosedError as error:  # and with it the channel
        if error.code != NOT_FOUND or end.is_predeclared:
            raise
        await client.open_channel(CHECK_CHANNEL)
        await client.call(_declare(queue, arguments=dict(end.queue_arguments)), CHECK_CHANNEL)
    await client.call(build_close(), CHECK_CHANNEL)


async def _check_exchange(client: AmqpClient, exchange: str) -> None:
    """Raise ClientError unless an exchange exists: publishes to none would close the channel."""
    await client.open_channel(CHECK_CHANNEL)
    method = build(
        commands.Exchange.Declare,
        ticket=0,
        exchange=exchange,
        exchange_type="",
        passive=True,
        durable=False,
        auto_delete=False,
        internal=False,
        nowait=False,
        arguments={},
    )
    await client.call(method, CHECK_CHANNEL)
    await client.call(build_close(), CHECK_CHANNEL)


def build_close() -> base.Frame:
    """Return the close of a channel."""
    return commands.Channel.Close(200, "Goodbye", 0, 0)


def _declare(
    queue: str,
    *,
    arguments: dict[str, Any] | None = None,
    is_passive: bool = False,
    is_durable: bool = True,
    is_exclusive: bool = False,
) -> base.Frame:
    return build(
        commands.Queue.Declare,
        ticket=0,
        queue=queue,
        passive=is_passive,
        durable=is_durable,
        exclusive=is_exclusive,
        auto_delete=False,
        nowait=False,
        arguments=arguments or {},
    )


def _bind(queue: str, exchange: str, key: str) -> base.Frame:
    return build(
        commands.Queue.Bind,
        ticket=0,
        queue=queue,
        exchange=exchange,
        routing_key=key,
        nowait=False,
        arguments={},
    )
