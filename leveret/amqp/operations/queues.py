"""queue.declare, bind, unbind, purge and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import direct_reply
from leveret.amqp.arguments import plain_table
from leveret.amqp.methods import build
from leveret.amqp.operations.operation import not_for_streams
from leveret.core.names import not_found, resource, stripped
from leveret.core.queues.queue import Queue
from leveret.core.settings.arguments import DEAD_LETTER_EXCHANGE, type_of
from leveret.errors import ConnectionClosingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from pamqp import base

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.ports.definitions import Arguments


def declare(channel: Channel, method: commands.Queue.Declare) -> Awaitable[None] | None:
    """Create a queue, or check that the existing one is equivalent; answer with its counts."""
    name = stripped(method.queue)
    if direct_reply.is_volatile(name):
        return _declare_volatile(channel, name, method)
    if method.passive:
        channel.require_any("queue", name)
        queue = channel.queue(name)
    elif freeing := channel.vhost.freeing("queue", name):
        channel.take_time_before(freeing, lambda: declare(channel, method))
        return None
    else:
        arguments = plain_table(method.arguments)
        declared = channel.vhost.declare_queue(
            name,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=arguments,
            owner=channel.connection,
            permit=lambda name: _require_declare(channel, name, arguments),
        )
        queue = channel.queue(declared.definition.name)
        name = name or queue.name
    channel.last_queue = name  # a queue that was renamed is known to its clients as before
    return channel.when_caught_up(queue, lambda: _declared(channel, queue, name, method))


def _require_declare(channel: Channel, name: str, arguments: Arguments) -> None:
    """Require configure; for a dead-letter exchange also read (queue) and write (exchange)."""
    channel.require("configure", "queue", name)
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(exchange, str) and channel.vhost.find_queue(name) is None:
        channel.require("read", "queue", name)
        channel.require("write", "exchange", exchange)


def _declare_volatile(
    channel: Channel, name: str, method: commands.Queue.Declare
) -> Awaitable[None] | None:
    """Answer whether a direct-reply address still has a consumer (else 404); create nothing."""
    if not direct_reply.is_awaited(channel.broker, name):
        raise not_found("queue", name, channel.vhost.name)
    answer = build(commands.Queue.DeclareOk, queue=name, message_count=0, consumer_count=1)
    return channel.reply(answer, nowait=method.nowait, kept=False)


def _declared(
    channel: Channel, queue: DeclaredQueue, name: str, method: commands.Queue.Declare
) -> Awaitable[None] | None:
    queue.used()
    channel.broker.statistics.churn.happened("queue.declared")
    answer = build(
        commands.Queue.DeclareOk,
        queue=name,
        message_count=queue.message_count,
        consumer_count=queue.consumer_count,
    )
    kept = queue.definition.durable and not method.passive
    return channel.reply(answer, nowait=method.nowait, kept=kept)


def bind(channel: Channel, method: commands.Queue.Bind) -> Awaitable[None] | None:
    """Bind a queue to an exchange."""
    name, exchange, key = _permitted_binding(channel, method)
    channel.vhost.bind_queue(name, exchange, key, plain_table(method.arguments), channel.connection)
    return channel.reply(commands.Queue.BindOk(), nowait=method.nowait)


def unbind(channel: Channel, method: commands.Queue.Unbind) -> Awaitable[None] | None:
    """Remove a queue binding."""
    name, exchange, key = _permitted_binding(channel, method)
    channel.vhost.unbind_queue(
        name, exchange, key, plain_table(method.arguments), channel.connection
    )
    return channel.reply(commands.Queue.UnbindOk())


def _permitted_binding(
    channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind
) -> tuple[str, str, str]:
    """Return queue name, exchange name and routing key, if the user may change their binding.

    An empty queue name and an empty key mean the queue declared last and its name.
    """
    given = stripped(method.queue)
    name = channel.queue_named(given)
    direct_reply.check_bindable(name)
    key = method.routing_key if given or method.routing_key else name
    exchange = stripped(method.exchange)
    channel.require("write", "queue", name)
    channel.require("read", "exchange", exchange)
    channel.require_topic("read", exchange, key)
    return name, exchange, key


def purge(channel: Channel, method: commands.Queue.Purge) -> Awaitable[None] | None:
    """Purge the ready messages of a queue; answer when they are gone after a crash, too."""
    name = channel.queue_named(stripped(method.queue))
    channel.require("read", "queue", name)
    queue = channel.queue(name)
    if queue.settings.is_stream:
        raise not_for_streams("queue.purge", queue)

    def purge_ready() -> Awaitable[None] | None:
        parts = [part for part in queue.partitions if isinstance(part, Queue)]
        count = sum(part.purge() for part in parts)
        answer = commands.Queue.PurgeOk(message_count=count)
        if parts and not method.nowait:
            return _send_when_safe(channel, parts, answer)
        return channel.reply(answer, nowait=method.nowait, kept=False)

    return channel.when_caught_up(queue, purge_ready)


async def _send_when_safe(
    channel: Channel, parts: Sequence[Queue], answer: commands.Queue.PurgeOk
) -> None:
    """Answer a purge whose messages nobody will get any more, however the node ends.

    One that has found none waits as well: an earlier purge may have failed here.
    """
    for part in parts:
        try:
            await part.log.settlements_safe()
        except StorageError as error:
            text = f"queue '{part.name}' is purged, but a restart may undo this: {error}"
            raise ConnectionClosingError(541, text) from error
    if channel.alive:
        channel.send(answer)


def delete(channel: Channel, method: commands.Queue.Delete) -> Awaitable[None] | None:
    """Delete a queue with its messages; a missing one counts as empty."""
    name = channel.queue_named(stripped(method.queue))
    channel.require("configure", "queue", name)
    if name not in channel.vhost.queues:
        return channel.reply(commands.Queue.DeleteOk(message_count=0), nowait=method.nowait)
    queue = channel.queue(name)
    _check_condition(queue, method)

    def delete_now() -> Awaitable[None] | None:
        with channel.holding_back_cancels() as cancels:
            count = channel.broker.delete_queue(
                channel.vhost, queue, if_unused=method.if_unused, if_empty=method.if_empty
            )
        answer = commands.Queue.DeleteOk(message_count=count)
        answered = channel.reply(answer, nowait=method.nowait)
        if answered is None:
            channel.send_all(cancels)
            return None
        return _send_behind(answered, channel, cancels)

    return channel.when_caught_up(queue, delete_now)


async def _send_behind(
    answered: Awaitable[None], channel: Channel, cancels: list[base.Frame]
) -> None:
    await answered
    if channel.alive:
        channel.send_all(cancels)


def _check_condition(queue: DeclaredQueue, method: commands.Queue.Delete) -> None:
    """Raise 540 for if-unused and if-empty on quorum queues, as RabbitMQ does."""
    if type_of(queue.definition.arguments) != "quorum":
        return
    for flag, given in (("if-unused", method.if_unused), ("if-empty", method.if_empty)):
        if given:
            name = resource("queue", queue.name, queue.definition.vhost)
            raise ConnectionClosingError(
                540,
                f"cannot delete {name}. queue.delete operations with {flag} flag set are not "
                "supported by quorum queues",
            )


OPERATIONS: Operations = {
    commands.Queue.Declare: declare,
    commands.Queue.Bind: bind,
    commands.Queue.Unbind: unbind,
    commands.Queue.Purge: purge,
    commands.Queue.Delete: delete,
}
