"""basic.qos, consume, cancel, get and recover; publish and the acks are the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands

from leveret.amqp import direct_reply, frames
from leveret.amqp.consumer import ChannelConsumer
from leveret.amqp.operations.arguments import plain_table
from leveret.core.arguments import integer, type_of
from leveret.core.names import resource, stripped
from leveret.errors import ChannelError, ConnectionClosingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.core.queue import Queue


def qos(channel: Channel, method: commands.Basic.Qos) -> None:
    """Limit unsettled deliveries: of the channel (`global`), or of consumers started later.

    As in RabbitMQ, a limit for consumers to come lifts the channel's.
    """
    if method.prefetch_size:
        raise ConnectionClosingError(540, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.prefetch = method.prefetch_count
    else:
        channel.consumer_prefetch = method.prefetch_count
        channel.prefetch = 0
    channel.wake_consumers()
    channel.send(commands.Basic.QosOk())


def consume(channel: Channel, method: commands.Basic.Consume) -> None:
    """Start a consumer."""
    channel.broker.admission.check_consumer(len(channel.consumers))
    name = channel.queue_named(stripped(method.queue))
    if name == direct_reply.REPLY_NAME:
        direct_reply.consume(channel, method)
        return
    tag = method.consumer_tag or channel.broker.random_name("amq.ctag-")
    channel.check_new_tag(tag)
    channel.require("read", "queue", name)
    queue = channel.queue(name)
    _check_prefetch(channel, queue)
    if not queue.admits(exclusive=method.exclusive):
        raise ChannelError(403, f"queue '{name}' in vhost '{channel.vhost.name}' in exclusive use")
    arguments = plain_table(method.arguments)
    consumer = ChannelConsumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        prefetch=channel.consumer_prefetch,
        priority=_priority(queue, arguments),
        arguments=arguments,
    )
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=tag))
    channel.add_consumer(consumer, exclusive=method.exclusive)


def _check_prefetch(channel: Channel, queue: Queue) -> None:
    """Only classic queues count what a whole channel holds, as in RabbitMQ."""
    if channel.prefetch and type_of(queue.definition.arguments) != "classic":
        name = resource("queue", queue.name, queue.definition.vhost)
        raise ConnectionClosingError(540, f"{name} does not support global qos")


def _priority(queue: Queue, arguments: dict[str, Any]) -> int:
    """x-priority of a consumer. Raises ChannelError 406 unless it is a whole number."""
    priority = arguments.get("x-priority", 0)
    problem = integer(priority, arguments)
    if problem is not None:
        name = resource("queue", queue.name, queue.definition.vhost)
        raise ChannelError(406, f"invalid arg 'x-priority' for {name}: {problem}")
    return int(priority)


def cancel(channel: Channel, method: commands.Basic.Cancel) -> None:
    """Stop a consumer; an unknown tag is no error."""
    tag = method.consumer_tag or ""
    consumer = channel.consumers.get(tag)
    if consumer is not None:
        channel.cancel_consumer(consumer)
    elif channel.reply_consumer is not None and channel.reply_consumer.tag == tag:
        direct_reply.cancel(channel)
    if not method.nowait:
        channel.send(commands.Basic.CancelOk(consumer_tag=method.consumer_tag))


def cancel_ok(_channel: Channel, _method: commands.Basic.CancelOk) -> None:
    """A client may answer our basic.cancel; nothing follows from it."""


def get(channel: Channel, method: commands.Basic.Get) -> Awaitable[None] | None:
    """Hand out one message."""
    queue = channel.readable_queue(method.queue)
    queue.flush()
    if queue.is_caught_up:
        return _get_ready(channel, queue, no_ack=method.no_ack)
    return channel.when_caught_up(queue, lambda: _get_ready(channel, queue, no_ack=method.no_ack))


def _get_ready(channel: Channel, queue: Queue, *, no_ack: bool) -> Awaitable[None] | None:
    leased = queue.get()
    if leased is None:
        channel.send(commands.Basic.GetEmpty())
        return None
    offset, redelivered = leased
    try:
        batch = queue.batch_at_hand(offset)
    except StorageError as error:
        raise _cannot_get(queue, offset, error) from error
    if batch is None:
        return _get_fetched(channel, queue, leased, no_ack=no_ack)
    channel.send_got(queue, batch, offset, redelivered=redelivered, no_ack=no_ack)
    return None


async def _get_fetched(
    channel: Channel, queue: Queue, leased: tuple[int, bool] | None, *, no_ack: bool
) -> None:
    """Hand out what was leased, or the next after it that is not lost."""
    while leased is not None:
        offset, redelivered = leased
        try:
            batch = await queue.record_batch(offset)
        except StorageError as error:
            if queue.deleted:
                break
            raise _cannot_get(queue, offset, error) from error
        if batch is None:
            leased = queue.get()
        elif channel.alive:
            channel.send_got(queue, batch, offset, redelivered=redelivered, no_ack=no_ack)
            return
        else:
            queue.return_([(offset, offset + 1)])
            return
    if channel.alive:
        channel.send(commands.Basic.GetEmpty())


def _cannot_get(queue: Queue, offset: int, error: StorageError) -> ConnectionClosingError:
    queue.return_([(offset, offset + 1)])
    return ConnectionClosingError(541, f"Cannot get a message from queue '{queue.name}': {error}")


def recover(channel: Channel, method: commands.Basic.Recover) -> None:
    """Return everything outstanding to its queues."""
    if not method.requeue:
        raise ConnectionClosingError(540, "requeue=false")
    channel.apply(frames.RETURN, channel.unacked.take_up_to(frames.ALL_TAGS))
    channel.slot.settled_tag = channel.slot.delivery_tag
    if isinstance(method, commands.Basic.Recover):
        channel.send(commands.Basic.RecoverOk())


OPERATIONS: Operations = {
    commands.Basic.Qos: qos,
    commands.Basic.Consume: consume,
    commands.Basic.Cancel: cancel,
    commands.Basic.CancelOk: cancel_ok,
    commands.Basic.Get: get,
    commands.Basic.Recover: recover,
    commands.Basic.RecoverAsync: recover,
}
