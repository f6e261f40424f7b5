"""basic.qos, consume, cancel, get and recover; publish and the acks are the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import frames
from leveret.amqp.consumer import ChannelConsumer
from leveret.amqp.operations.arguments import plain_table
from leveret.core.names import stripped
from leveret.errors import ChannelError, ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.channel import Channel
    from leveret.core.queue import Queue


def qos(channel: Channel, method: commands.Basic.Qos) -> Awaitable[None] | None:
    """Limit unsettled deliveries: of the channel (`global`), or of consumers started later."""
    if method.prefetch_size:
        raise ConnectionClosingError(540, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.prefetch = method.prefetch_count
        channel.wake_consumers()
    else:
        channel.consumer_prefetch = method.prefetch_count
    return channel.answer(commands.Basic.QosOk())


def consume(channel: Channel, method: commands.Basic.Consume) -> Awaitable[None] | None:
    """Start a consumer."""
    name = channel.queue_named(stripped(method.queue))
    tag = method.consumer_tag or channel.broker.random_name("amq.ctag-")
    if tag in channel.consumers:
        raise ConnectionClosingError(530, f"attempt to reuse consumer tag '{tag}'")
    channel.require("read", "queue", name)
    queue = channel.vhost.check_queue(name, channel.connection)
    if not queue.machine.admits(exclusive=method.exclusive):
        raise ChannelError(403, f"queue '{name}' in vhost '{channel.vhost.name}' in exclusive use")
    consumer = ChannelConsumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        prefetch=channel.consumer_prefetch,
        priority=_priority(plain_table(method.arguments)),
    )
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=tag))
    channel.add_consumer(consumer, exclusive=method.exclusive)
    return None


def _priority(arguments: dict[str, object]) -> int:
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ChannelError(406, f"invalid arg 'x-priority': expected integer, got {priority!r}")
    return priority


def cancel(channel: Channel, method: commands.Basic.Cancel) -> Awaitable[None] | None:
    """Stop a consumer; an unknown tag is no error."""
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        channel.cancel_consumer(consumer)
    return channel.answer(
        commands.Basic.CancelOk(consumer_tag=method.consumer_tag), nowait=method.nowait
    )


def cancel_ok(_channel: Channel, _method: commands.Basic.CancelOk) -> None:
    """A client may answer our basic.cancel; nothing follows from it."""


def get(channel: Channel, method: commands.Basic.Get) -> Awaitable[None] | None:
    """Hand out one message."""
    name = channel.queue_named(stripped(method.queue))
    channel.require("read", "queue", name)
    queue = channel.vhost.check_queue(name, channel.connection)
    return channel.when_caught_up(queue, lambda: _get_ready(channel, queue, no_ack=method.no_ack))


def _get_ready(channel: Channel, queue: Queue, *, no_ack: bool) -> Awaitable[None] | None:
    leased = queue.get()
    if leased is None:
        channel.send(commands.Basic.GetEmpty())
        return None
    offset, redelivered = leased
    batch = queue.batch_at_hand(offset)
    if batch is None:
        return _get_fetched(channel, queue, offset, redelivered=redelivered, no_ack=no_ack)
    channel.send_got(queue, batch, offset, redelivered=redelivered, no_ack=no_ack)
    return None


async def _get_fetched(
    channel: Channel, queue: Queue, offset: int, *, redelivered: bool, no_ack: bool
) -> None:
    batch = await queue.record_batch(offset)
    channel.send_got(queue, batch, offset, redelivered=redelivered, no_ack=no_ack)


def recover(channel: Channel, method: commands.Basic.Recover) -> Awaitable[None] | None:
    """Return everything outstanding to its queues."""
    if not method.requeue:
        raise ConnectionClosingError(540, "requeue=false")
    channel.apply(frames.RETURN, channel.unacked.take_up_to(frames.ALL_TAGS))
    if isinstance(method, commands.Basic.Recover):
        channel.send(commands.Basic.RecoverOk())
    return None


OPERATIONS = {
    commands.Basic.Qos: qos,
    commands.Basic.Consume: consume,
    commands.Basic.Cancel: cancel,
    commands.Basic.CancelOk: cancel_ok,
    commands.Basic.Get: get,
    commands.Basic.Recover: recover,
    commands.Basic.RecoverAsync: recover,
}
