"""basic.get: at once if the queue is caught up and the record at hand, otherwise later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import direct_reply
from leveret.amqp.consumer import return_counts
from leveret.amqp.operations.operation import not_for_streams
from leveret.core.names import resource, stripped
from leveret.core.queues.queue import Queue
from leveret.errors import ChannelError, ConnectionClosingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.ports.records import Batch

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
    if queue.rates is not None or channel.connection.limits.consume:
        return _get_within_rates(channel, queue, no_ack=method.no_ack)
    if queue.touched:
        channel.broker.turn.flush_queue(queue)
    if queue.is_caught_up:
        return _get_ready(channel, queue, no_ack=method.no_ack)
    return _get_when_caught_up(channel, queue, no_ack=method.no_ack)


def _readable_queue(channel: Channel, name: str) -> Queue:
    """Return a queue to get from. Raises ChannelError 403, 404 and 405, and 540 for a stream.

    The result is cached until the queue or a permission changes, because each basic.get asks.
    """
    generation = channel.connection.rights.generation
    if channel.readable is not None:
        known, queue, answered = channel.readable
        if known == name and answered == generation and not queue.deleted:
            return queue
    resolved = channel.queue_named(stripped(name))
    if direct_reply.is_volatile(resolved):
        raise direct_reply.refuse_get(resource("queue", resolved, channel.vhost.name))
    channel.require("read", "queue", resolved)
    found = channel.queue(resolved)
    if not isinstance(found, Queue):
        raise not_for_streams("basic.get", found)
    channel.readable = (name, found, generation) if name else None
    return found


async def _get_within_rates(channel: Channel, queue: Queue, *, no_ack: bool) -> None:
    """Deliver one message when the rates allow it; the connection is not read meanwhile.

    A get-empty would be wrong, and would make many clients stop.
    """
    connection = channel.connection
    while (meter := connection.limits.meter(queue)) is not None and channel.alive:
        wait_ms = meter.wait_ms()
        if not wait_ms:
            break
        await connection.transport.pause(min(wait_ms, PAUSE_MS_MAX) / 1000)
    if not channel.alive:
        return
    before = channel.slot.delivery_tag
    work = _get_when_caught_up(channel, queue, no_ack=no_ack)
    if work is not None:
        await work
    if meter is not None:
        meter.delivered(channel.slot.delivery_tag - before)


def _get_when_caught_up(channel: Channel, queue: Queue, *, no_ack: bool) -> Awaitable[None] | None:
    return channel.when_caught_up(queue, lambda: _get_ready(channel, queue, no_ack=no_ack))


def _get_ready(channel: Channel, queue: Queue, *, no_ack: bool) -> Awaitable[None] | None:
    leased = queue.get()
    if leased is None:
        _send_empty(channel, queue)
        return None
    offset, redelivered = leased
    try:
        batch = queue.batch_at_hand(offset)
    except StorageError as error:
        raise _cannot_get(queue, offset, error) from error
    if batch is None:
        return _get_fetched(channel, queue, leased, no_ack=no_ack)
    _send_got(channel, queue, batch, offset, redelivered=redelivered, no_ack=no_ack)
    return None


async def _get_fetched(
    channel: Channel, queue: Queue, leased: tuple[int, bool] | None, *, no_ack: bool
) -> None:
    """Deliver the leased record, or the next one that is not lost."""
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
            _send_got(channel, queue, batch, offset, redelivered=redelivered, no_ack=no_ack)
            return
        else:
            queue.return_([(offset, offset + 1)], failed=False)
            return
    if channel.alive:
        _send_empty(channel, queue)


def _cannot_get(queue: Queue, offset: int, error: StorageError) -> ConnectionClosingError:
    queue.return_([(offset, offset + 1)], failed=False)
    return ConnectionClosingError(541, f"Cannot get a message from queue '{queue.name}': {error}")


def _send_got(
    channel: Channel, queue: Queue, batch: Batch, offset: int, *, redelivered: bool, no_ack: bool
) -> None:
    """Write basic.get-ok for a record that `queue.get` has leased."""
    connection, slot = channel.connection, channel.slot
    getter = channel.getter(queue)
    connection.outbox.get_ok(
        slot,
        batch,
        offset,
        redelivered,
        queue.message_count,
        return_counts(queue) if redelivered else None,
        getter.counted_no_ack if no_ack else getter.counted,
    )
    connection.touch()
    if channel.vhost.traced:
        channel.trace_deliveries(queue, [batch], offset, offset + 1, redelivered=redelivered)
    if no_ack:
        slot.has_free_tags = True
        queue.settle([(offset, offset + 1)])
    else:
        channel.unacked.add(slot.delivery_tag, 1, offset, getter)
        term_ms = queue.settings.visibility_timeout_ms
        if term_ms is not None:
            channel.needed_leases().begin(getter, slot.delivery_tag, 1, term_ms)


def _send_empty(channel: Channel, queue: Queue) -> None:
    channel.getter(queue).counted.found_empty()
    channel.send(commands.Basic.GetEmpty())


OPERATIONS: Operations = {commands.Basic.Get: get}
