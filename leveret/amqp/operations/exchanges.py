"""exchange.declare, delete, bind and unbind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.operations.arguments import plain_table
from leveret.core.names import stripped

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations


def declare(channel: Channel, method: commands.Exchange.Declare) -> Awaitable[None] | None:
    """Create an exchange, or check that the one of this name is the same."""
    name = stripped(method.exchange)
    if method.passive:
        channel.vhost.check_exchange(name)
    else:
        channel.require("configure", "exchange", name)
        channel.vhost.declare_exchange(
            name,
            method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=plain_table(method.arguments),
        )
    kept = method.durable and not method.passive
    return channel.reply(commands.Exchange.DeclareOk(), nowait=method.nowait, kept=kept)


def delete(channel: Channel, method: commands.Exchange.Delete) -> Awaitable[None] | None:
    """Delete an exchange; a missing one is no error."""
    name = stripped(method.exchange)
    channel.require("configure", "exchange", name)
    channel.vhost.delete_exchange(name, if_unused=method.if_unused)
    return channel.reply(commands.Exchange.DeleteOk(), nowait=method.nowait)


def bind(channel: Channel, method: commands.Exchange.Bind) -> Awaitable[None] | None:
    """Let messages of `source` flow into `destination`."""
    destination, source = stripped(method.destination), stripped(method.source)
    channel.require("write", "exchange", destination)
    channel.require("read", "exchange", source)
    channel.vhost.bind_exchange(
        destination, source, method.routing_key, plain_table(method.arguments)
    )
    return channel.reply(commands.Exchange.BindOk(), nowait=method.nowait)


def unbind(channel: Channel, method: commands.Exchange.Unbind) -> Awaitable[None] | None:
    """Undo `bind`."""
    destination, source = stripped(method.destination), stripped(method.source)
    channel.require("write", "exchange", destination)
    channel.require("read", "exchange", source)
    channel.vhost.unbind_exchange(
        destination, source, method.routing_key, plain_table(method.arguments)
    )
    return channel.reply(commands.Exchange.UnbindOk(), nowait=method.nowait)


OPERATIONS: Operations = {
    commands.Exchange.Declare: declare,
    commands.Exchange.Delete: delete,
    commands.Exchange.Bind: bind,
    commands.Exchange.Unbind: unbind,
}
