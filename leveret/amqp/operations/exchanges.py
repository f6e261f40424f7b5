"""exchange.declare, delete, bind and unbind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.arguments import plain_table
from leveret.core.names import stripped
from leveret.core.settings.arguments import ALTERNATE_EXCHANGE
from leveret.ports.definition_changes import (
    AddBinding,
    DeclareExchange,
    DeleteExchange,
    RemoveBinding,
)
from leveret.ports.definitions import BindingDefinition

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.operations.operation import Operations
    from leveret.amqp.protocol import ChannelBase
    from leveret.ports.definitions import Arguments


def declare(channel: ChannelBase, method: commands.Exchange.Declare) -> Awaitable[None] | None:
    """Create an exchange, or check that the existing one is equivalent."""
    name = stripped(method.exchange)
    if method.passive:
        channel.require_any("exchange", name)
        channel.vhost.check_exchange(name)
    elif freeing := channel.vhost.freeing("exchange", name):
        channel.take_time_before(freeing, lambda: declare(channel, method))
        return None
    else:
        arguments = plain_table(method.arguments)
        channel.require("configure", "exchange", name)
        _require_alternate(channel, name, arguments)
        wanted = DeclareExchange(
            channel.vhost.name,
            name,
            method.exchange_type,
            method.durable,
            method.auto_delete,
            method.internal,
            arguments,
        )
        return channel.change(wanted, lambda _: _declared(channel, method))
    return _declared(channel, method)


def _declared(channel: ChannelBase, method: commands.Exchange.Declare) -> Awaitable[None] | None:
    kept = method.durable and not method.passive
    return channel.reply(commands.Exchange.DeclareOk(), nowait=method.nowait, kept=kept)


def _require_alternate(channel: ChannelBase, name: str, arguments: Arguments) -> None:
    """Require the permissions for an alternate exchange: read this one, write the alternate."""
    alternate = arguments.get(ALTERNATE_EXCHANGE)
    if isinstance(alternate, str) and name not in channel.vhost.exchanges:
        channel.require("read", "exchange", name)
        channel.require("write", "exchange", alternate)


def delete(channel: ChannelBase, method: commands.Exchange.Delete) -> Awaitable[None] | None:
    """Delete an exchange; a missing one is no error."""
    name = stripped(method.exchange)
    channel.require("configure", "exchange", name)
    change = DeleteExchange(channel.vhost.name, name, method.if_unused)
    answer = commands.Exchange.DeleteOk()
    return channel.change(change, lambda _: channel.reply(answer, nowait=method.nowait))


def bind(channel: ChannelBase, method: commands.Exchange.Bind) -> Awaitable[None] | None:
    """Bind exchange `destination` to exchange `source`."""
    change = AddBinding(_permitted_binding(channel, method))
    answer = commands.Exchange.BindOk()
    return channel.change(change, lambda _: channel.reply(answer, nowait=method.nowait))


def unbind(channel: ChannelBase, method: commands.Exchange.Unbind) -> Awaitable[None] | None:
    """Remove an exchange-to-exchange binding."""
    change = RemoveBinding(_permitted_binding(channel, method))
    answer = commands.Exchange.UnbindOk()
    return channel.change(change, lambda _: channel.reply(answer, nowait=method.nowait))


def _permitted_binding(
    channel: ChannelBase, method: commands.Exchange.Bind | commands.Exchange.Unbind
) -> BindingDefinition:
    """Return the binding that a method is about, if the user may change it."""
    destination, source = stripped(method.destination), stripped(method.source)
    key = method.routing_key
    channel.require("write", "exchange", destination)
    channel.require("read", "exchange", source)
    channel.require_topic("read", source, key)
    arguments = plain_table(method.arguments)
    return BindingDefinition(channel.vhost.name, source, destination, "exchange", key, arguments)


OPERATIONS: Operations = {
    commands.Exchange.Declare: declare,
    commands.Exchange.Delete: delete,
    commands.Exchange.Bind: bind,
    commands.Exchange.Unbind: unbind,
}
