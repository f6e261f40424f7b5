"""basic.get: at once if the queue is caught up and the record at hand, otherwise later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from leveret.amqp import direct_reply
from leveret.amqp.consumer import return_counts
from leveret.amqp.operations.operation import not_for_streams
from leveret.core.logs.log_writer import present_place
from leveret.core.names import resource, stripped
from leveret.core.queues.queue import Queue
from leveret.errors import ChannelError, ConnectionClosingError, StorageError
from leveret.ports.counters import GET

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.core.queues.declared_queue import DeclaredQueue
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
    if not queue.is_led_here:
        return _get_led_elsewhere(channel, queue, no_ack=method.no_ack)
    for part in queue.partitions:
        if part.touched:
            channel.broker.turn.flush_queue(part)
    if queue.is_caught_up:
        return _get_ready(channel, queue, no_ack=method.no_ack)
    return _get_when_caught_up(channel, queue, no_ack=method.no_ack)


def _readable_queue(channel: Channel, name: str) -> DeclaredQueue:
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
    if found.settings.is_stream:
        raise not_for_streams("basic.get", found)
    channel.readable = (name, found, generation) if name else None
    return found


async def _get_within_rates(channel: Channel, queue: DeclaredQueue, *, no_ack: bool) -> None:
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


async def _get_led_elsewhere(channel: Channel, queue: DeclaredQueue, *, no_ack: bool) -> None:
    """Deliver one message of the first partition that has one, wherever it is led."""
    await queue.refresh()
    for part in queue.in_turn():
        if await _get_of_place(channel, queue, present_place(part), no_ack=no_ack):
            return
    if channel.alive:
        _send_empty(channel, queue)


async def _get_of_place(
    channel: Channel, queue: DeclaredQueue, place: Any, *, no_ack: bool
) -> bool:
    """Deliver a message of one partition, whoever leads it. Returns whether there was one."""
    if not isinstance(place, Queue):
        return await _get_of_leader(channel, queue, place, no_ack=no_ack)
    found = place.get()
    if found is not None:
        await _get_fetched(channel, queue, Leased(place, *found), no_ack=no_ack)
    return found is not None


async def _get_of_leader(
    channel: Channel, queue: DeclaredQueue, part: Any, *, no_ack: bool
) -> bool:
    got = await part.get()
    if got is None:  # it is led here by now, or deleted
        place = present_place(part)
        return not place.deleted and await _get_of_place(channel, queue, place, no_ack=no_ack)
    if got.batch is None:
        return False
    leased = Leased(part, got.batch.base_offset, got.redelivered)
    if channel.alive:
        _send_got(channel, leased, got.batch, no_ack=no_ack)
    else:
        part.return_([(leased.offset, leased.offset + 1)], failed=False)
    return True


def _get_when_caught_up(
    channel: Channel, queue: DeclaredQueue, *, no_ack: bool
) -> Awaitable[None] | None:
    if not queue.is_led_here:
        return _get_led_elsewhere(channel, queue, no_ack=no_ack)

    def get_ready() -> Awaitable[None] | None:
        if not queue.is_led_here:  # any more
            return _get_led_elsewhere(channel, queue, no_ack=no_ack)
        return _get_ready(channel, queue, no_ack=no_ack)

    return channel.when_caught_up(queue, get_ready)


class Leased(NamedTuple):
    """Record that is leased for a basic.get."""

    part: Any  # a Queue, or what stands for one that is led elsewhere
    offset: int
    redelivered: bool


def _lease_next(queue: DeclaredQueue) -> Leased | None:
    """Lease the next ready record of the first partition that has one."""
    for part in queue.in_turn():
        assert isinstance(part, Queue), "streams were refused"
        leased = part.get()
        if leased is not None:
            return Leased(part, *leased)
    return None


def _get_ready(channel: Channel, queue: DeclaredQueue, *, no_ack: bool) -> Awaitable[None] | None:
    leased = _lease_next(queue)
    if leased is None:
        _send_empty(channel, queue)
        return None
    try:
        batch = leased.part.batch_at_hand(leased.offset)
    except StorageError as error:
        raise _cannot_get(leased, error) from error
    if batch is None:
        return _get_fetched(channel, queue, leased, no_ack=no_ack)
    _send_got(channel, leased, batch, no_ack=no_ack)
    return None


async def _get_fetched(
    channel: Channel, queue: DeclaredQueue, leased: Leased | None, *, no_ack: bool
) -> None:
    """Deliver the leased record, or the next one that is not lost."""
    while leased is not None:
        part, offset, _ = leased
        try:
            batch = await part.record_batch(offset)
        except StorageError as error:
            if not part.deleted:
                raise _cannot_get(leased, error) from error
            batch = None
        if batch is None and not queue.is_led_here:  # any more
            await _get_led_elsewhere(channel, queue, no_ack=no_ack)
            return
        if batch is None:
            leased = None if queue.deleted else _lease_next(queue)
        elif channel.alive:
            _send_got(channel, leased, batch, no_ack=no_ack)
            return
        else:
            part.return_([(offset, offset + 1)], failed=False)
            return
    if channel.alive:
        _send_empty(channel, queue)


def _cannot_get(leased: Leased, error: StorageError) -> ConnectionClosingError:
    part, offset, _ = leased
    part.return_([(offset, offset + 1)], failed=False)
    return ConnectionClosingError(541, f"Cannot get a message from queue '{part.name}': {error}")


def _send_got(channel: Channel, leased: Leased, batch: Batch, *, no_ack: bool) -> None:
    """Write basic.get-ok for a leased record."""
    part, offset, redelivered = leased
    connection, slot = channel.connection, channel.slot
    getter = channel.getter(part)
    connection.outbox.get_ok(
        slot,
        batch,
        offset,
        redelivered,
        part.whole.message_count,
        return_counts(part) if redelivered else None,
        getter.counted_no_ack if no_ack else getter.counted,
    )
    connection.touch()
    if channel.vhost.traced:
        channel.trace_deliveries(part, [batch], offset, offset + 1, redelivered=redelivered)
    if no_ack:
        slot.has_free_tags = True
        part.settle([(offset, offset + 1)])
    else:
        channel.unacked.add(slot.delivery_tag, 1, offset, getter)
        term_ms = part.settings.visibility_timeout_ms
        if term_ms is not None:
            channel.needed_leases().begin(getter, slot.delivery_tag, 1, term_ms)


def _send_empty(channel: Channel, queue: DeclaredQueue) -> None:
    channel.delivery_statistics(queue, GET).found_empty()
    channel.send(commands.Basic.GetEmpty())


OPERATIONS: Operations = {commands.Basic.Get: get}
