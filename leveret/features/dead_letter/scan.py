"""Reading of dead letters in a queue, independently of deliveries.

Any queue can be read; headers written by the broker identify dead letters. Reading has no side
effects: it uses its own window of the log, and leases nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.core.logs.window import LogWindow
from leveret.core.routing.message import StoredMessage
from leveret.features.dead_letter.redrive_rules import DeadLetter, DeadLetterFilter, dead_letter
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.queue import Queue
    from leveret.ports.records import Batch

__all__ = ["StoredDeadLetter", "dead_letter_at", "delete", "scan"]


class StoredDeadLetter(NamedTuple):
    """One message with its dead-letter history."""

    flags: int
    time_ms: int  # when it was stored in the queue
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    told: DeadLetter


def dead_letter_at(batch: Batch, offset: int) -> StoredDeadLetter:
    """Return a message of a batch; malformed properties count as absent."""
    flags, time_ms, exchange, routing_key, header, body = batch.record(offset)
    message = StoredMessage(exchange, routing_key, header, body, flags)
    told = dead_letter(
        offset,
        message.property("message_id"),
        message.open_headers,
        is_dead_letter=bool(flags & RecordFlag.DEAD_LETTERED),
    )
    return StoredDeadLetter(flags, time_ms, exchange, routing_key, header, body, told)


async def scan(
    queue: OpenQueue, selection: DeadLetterFilter, first: int, stop: int
) -> AsyncIterator[list[StoredDeadLetter]]:
    """Yield the selected, unsettled messages of [first, stop), one window of the log at a time.

    Raises StorageError; it does not repair damage, which is left to deliveries.
    """
    window = LogWindow(queue.log)
    offset = queue.log.settled.gaps(first, stop).first
    while offset is not None and not queue.deleted:
        batches = window.at_hand(offset) or await window.fill(offset)
        behind = min(batches[-1].stop_offset, stop)
        unsettled = list(queue.log.settled.gaps(offset, behind))
        yield [
            found
            for batch in batches
            for low, high in unsettled
            for at in range(max(low, batch.base_offset), min(high, batch.stop_offset))
            if selection.has((found := dead_letter_at(batch, at)).told)
        ]
        offset = queue.log.settled.gaps(behind, stop).first


async def delete(queue: Queue, selection: DeadLetterFilter) -> int:
    """Delete the selected messages that are ready. Returns their number. Raises StorageError."""
    count = 0
    first, stop = queue.log.first, queue.log.committed
    if selection.offsets:
        first, stop = max(first, min(selection.offsets)), min(stop, max(selection.offsets) + 1)
    async for found in scan(queue, selection, first, stop):
        # Nothing happens between these two: what was withdrawn is leased to no consumer.
        withdrawn = queue.state.withdraw([(at, at + 1) for at in (x.told.offset for x in found)])
        queue.erase(withdrawn)
        count += sum(stop - first for first, stop in withdrawn)
    return count
