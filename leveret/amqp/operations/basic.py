"""basic.qos, consume, cancel and recover; the reader handles publish and the acks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from leveret.amqp import direct_reply, frames
from leveret.amqp.added import AddedField
from leveret.amqp.arguments import plain_table
from leveret.amqp.consumer import ChannelConsumer, return_counts
from leveret.core.names import resource, stripped
from leveret.core.queues.declared_queue import check_keeps_messages
from leveret.core.queues.stream import Stream
from leveret.core.settings.arguments import check_consumer_arguments, type_of
from leveret.core.settings.contradictions import check_consumer
from leveret.core.settings.stream_offsets import STREAM_OFFSET
from leveret.errors import ChannelError, ConnectionClosingError, StorageError
from leveret.features.filters.filtered import check_filterable
from leveret.features.groups.rules import group_of, start_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.ports.definitions import Arguments

OFFSET = AddedField(STREAM_OFFSET)  # stream consumers get each message's offset


def qos(channel: Channel, method: commands.Basic.Qos) -> Awaitable[None] | None:
    """Set a prefetch limit: of the channel (`global`), or of consumers started later.

    As in RabbitMQ, a limit for later consumers lifts the channel's.
    """
    if method.prefetch_size:
        raise ConnectionClosingError(540, f"prefetch_size!=0 ({method.prefetch_size})")
    if not method.global_:
        channel.consumer_prefetch = method.prefetch_count
    shared = method.prefetch_count if method.global_ else 0
    if shared == channel.prefetch:
        channel.send(commands.Basic.QosOk())
        return None
    queues = dict.fromkeys(consumer.queue for consumer in channel.consumers.values())
    return channel.when_effective(queues, lambda: _share(channel, shared))


def _share(channel: Channel, prefetch: int) -> None:
    """Set the channel's shared prefetch and answer with qos-ok."""
    grows = not prefetch or 0 < channel.prefetch < prefetch
    held_back = channel.in_flight >= channel.prefetch
    channel.prefetch = prefetch
    if grows and held_back:
        channel.wake_consumers()
    channel.send(commands.Basic.QosOk())


def consume(channel: Channel, method: commands.Basic.Consume) -> Awaitable[None] | None:
    """Start a consumer (basic.consume)."""
    channel.broker.admission.check_consumer(len(channel.consumers))
    name = channel.queue_named(stripped(method.queue))
    if name == direct_reply.REPLY_NAME:
        _consume_replies(channel, method)
        return None
    tag = method.consumer_tag or channel.broker.random_name("amq.ctag-")
    channel.check_new_tag(tag)
    channel.require("read", "queue", name)

    def consume_opened() -> Awaitable[None] | None:
        return channel.when_effective(
            [channel.queue(name)], lambda: _start_consumer(channel, name, tag, method)
        )

    return channel.when_opened(channel.queue(name), consume_opened)


def _consume_replies(channel: Channel, method: commands.Basic.Consume) -> None:
    """Start a channel's consumer of direct replies: at most one, without acknowledgements."""
    tag = method.consumer_tag or channel.broker.random_name("amq.ctag-")
    channel.check_new_tag(tag)
    if not method.no_ack:
        raise ChannelError(406, "reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise ChannelError(406, "reply consumer already set")
    channel.reply_consumer = direct_reply.ReplyConsumer(channel, tag)
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=tag))


class ConsumeRequest(NamedTuple):
    """A basic.consume whose arguments were checked."""

    channel: Channel
    queue: DeclaredQueue
    tag: str
    arguments: Arguments
    method: commands.Basic.Consume


def _start_consumer(
    channel: Channel, name: str, tag: str, method: commands.Basic.Consume
) -> Awaitable[None] | None:
    queue = channel.queue(name)  # while this waited, it may have gone
    arguments = plain_table(method.arguments)
    channel.vhost.check_arguments(arguments, f"consumer '{tag}'")
    check_consumer_arguments(queue.definition, arguments)
    check_consumer(queue.definition, arguments, no_ack=bool(method.no_ack))
    check_filterable(queue, arguments)
    group = group_of(arguments)
    _check_credit(channel, queue, no_ack=method.no_ack, in_group=group is not None)
    request = ConsumeRequest(channel, queue, tag, arguments, method)
    if group is not None:
        return _join_group(request, group)
    _begin_consuming(request, queue)
    return None


def _begin_consuming(request: ConsumeRequest, source: Any) -> None:
    """Start a consumer of a queue, or of a group, which takes consumers as a queue does."""
    channel, _, tag, arguments, method = request
    if not source.admits(exclusive=method.exclusive):
        raise ChannelError(
            403, f"queue '{source.name}' in vhost '{channel.vhost.name}' in exclusive use"
        )
    consumer = ChannelConsumer(
        channel,
        source,
        tag,
        no_ack=method.no_ack,
        prefetch=channel.consumer_prefetch,
        priority=arguments.get("x-priority", 0),
        arguments=arguments,
        added=OFFSET if isinstance(source, Stream) else None,
        added_again=return_counts(source),
    )
    consumer.follow(channel.connection.limits)
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(consumer_tag=tag))
    channel.add_consumer(consumer, exclusive=method.exclusive)


def _join_group(request: ConsumeRequest, name: str) -> Awaitable[None] | None:
    """Start a member of a group, which is created where it does not exist."""
    check_keeps_messages(request.queue, _described(request.queue), "for consumer groups")
    if request.method.exclusive:
        raise ChannelError(406, f"members of consumer group '{name}' cannot be exclusive")
    group = request.channel.broker.groups.of_queue(request.queue).get(name)
    if group is None:
        return _create_group(request, name)
    _begin_consuming(request, group)
    return None


async def _create_group(request: ConsumeRequest, name: str) -> None:
    """Create a group, and start its first member once a restart would find the group."""
    channel, queue = request.channel, request.queue
    groups = channel.broker.groups
    try:
        starts = await groups.start_offsets(queue, start_of(request.arguments))
    except StorageError as error:
        raise ConnectionClosingError(541, f"cannot create group '{name}': {error}") from error
    if not channel.alive or queue.deleted:
        return
    group = groups.of_queue(queue).get(name)  # others may have been faster
    if group is None:
        group = groups.create(queue, name, starts)
        await channel.broker.metadata.flush()
    if channel.alive and not queue.deleted:
        channel.check_new_tag(request.tag)
        _begin_consuming(request, group)


def _check_credit(channel: Channel, queue: DeclaredQueue, *, no_ack: bool, in_group: bool) -> None:
    """Raise an error if the queue's type forbids global prefetch or no-ack, or needs a prefetch.

    A member of a group may do without acknowledgements, whatever its queue.
    """
    kind, name = type_of(queue.definition.arguments), _described(queue)
    if kind == "stream" and not (in_group and no_ack):
        if not channel.consumer_prefetch:
            raise ChannelError(406, f"consumer prefetch count is not set for stream {name}")
        if no_ack:
            raise ConnectionClosingError(
                540, f"automatic acknowledgement not supported by stream {name}"
            )
    if channel.prefetch and kind != "classic":
        raise ConnectionClosingError(540, f"{name} does not support global qos")


def _described(queue: DeclaredQueue) -> str:
    return resource("queue", queue.name, queue.definition.vhost)


def cancel(channel: Channel, method: commands.Basic.Cancel) -> Awaitable[None] | None:
    """Cancel a consumer; an unknown tag is no error."""
    consumer = channel.consumers.get(method.consumer_tag or "")
    queues = [] if consumer is None else [consumer.queue]
    return channel.when_effective(queues, lambda: _end_consumer(channel, method))


def _end_consumer(channel: Channel, method: commands.Basic.Cancel) -> None:
    tag = method.consumer_tag or ""
    consumer = channel.consumers.get(tag)
    if consumer is not None:
        channel.cancel_consumer(consumer)
    elif channel.reply_consumer is not None and channel.reply_consumer.tag == tag:
        channel.cancel_replies()
    if not method.nowait:
        channel.send(commands.Basic.CancelOk(consumer_tag=method.consumer_tag))


def cancel_ok(_channel: Channel, _method: commands.Basic.CancelOk) -> None:
    """Ignore a client's cancel-ok."""


def recover(channel: Channel, method: commands.Basic.Recover) -> None:
    """Return all outstanding deliveries to their queues (basic.recover)."""
    if not method.requeue:
        raise ConnectionClosingError(540, "requeue=false")
    channel.connection.take_time(_recovering(channel, method))


def _recovering(channel: Channel, method: commands.Basic.Recover) -> Iterator[None]:
    last = channel.slot.delivery_tag
    yield from channel.settling(frames.RETURN, last)
    channel.slot.settled_tag = last
    if channel.alive and isinstance(method, commands.Basic.Recover):
        channel.send(commands.Basic.RecoverOk())


OPERATIONS: Operations = {
    commands.Basic.Qos: qos,
    commands.Basic.Consume: consume,
    commands.Basic.Cancel: cancel,
    commands.Basic.CancelOk: cancel_ok,
    commands.Basic.Recover: recover,
    commands.Basic.RecoverAsync: recover,
}
