"""basic.get: what decides whether a client may get from a queue, and when rates allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import direct_reply
from leveret.amqp.getting import Getting
from leveret.amqp.operations.operation import not_for_streams
from leveret.core.names import resource, stripped
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.core.queues.declared_queue import DeclaredQueue

PAUSE_MS_MAX = 1000  # a limit that was lifted is noticed this late


def get(channel: Channel, method: commands.Basic.Get) -> Awaitable[None] | None:
    """Deliver one message (basic.get)."""
    queue = _readable_queue(channel, method.queue)
    if queue.settings.single_active_by_priority:
        name = resource("queue", queue.name, queue.definition.vhost)
        raise ChannelError(
            405,
            f"cannot obtain access to locked {name}. basic.get operations are not supported by "
            "quorum queues with single active consumer",
        )
    getting = Getting(channel, queue, no_ack=method.no_ack)
    if queue.rates is not None or channel.connection.limits.consume:
        return _get_within_rates(channel, getting)
    if method.queue:
        channel.remember(method, getting)
    return getting.get()


def _readable_queue(channel: Channel, name: str) -> DeclaredQueue:
    """Return a queue to get from. Raises ChannelError 403, 404 and 405, and 540 for a stream."""
    resolved = channel.queue_named(stripped(name))
    if direct_reply.is_volatile(resolved):
        raise direct_reply.refuse_get(resource("queue", resolved, channel.vhost.name))
    channel.require("read", "queue", resolved)
    found = channel.queue(resolved)
    if found.settings.is_stream:
        raise not_for_streams("basic.get", found)
    return found


async def _get_within_rates(channel: Channel, getting: Getting) -> None:
    """Deliver one message when the rates allow it; the connection is not read meanwhile.

    A get-empty would be wrong, and would make many clients stop.
    """
    connection, queue = channel.connection, getting.queue
    while (meter := connection.limits.meter(queue)) is not None and channel.alive:
        wait_ms = meter.wait_ms()
        if not wait_ms:
            break
        await connection.transport.pause(min(wait_ms, PAUSE_MS_MAX) / 1000)
    if not channel.alive:
        return
    before = channel.slot.delivery_tag
    work = getting.get()
    if work is not None:
        await work
    if meter is not None:
        meter.delivered(channel.slot.delivery_tag - before)


OPERATIONS: Operations = {commands.Basic.Get: get}
