"""Looking at dead letters: what lies in a queue, whoever is delivered what meanwhile.

Any queue can be looked at; what its messages tell of their deaths makes them dead letters. Reading
disturbs nobody: it takes a window of the log of its own, and leases nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.core.logs.window import LogWindow
from leveret.core.routing.message import StoredMessage
from leveret.features.redrive import DeadLetter, Selection, dead_letter
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.core.queues.queue import Queue
    from leveret.ports.records import Batch

__all__ = ["StoredDeadLetter", "dead_letter_at", "delete", "scan"]


class StoredDeadLetter(NamedTuple):
    """One message with what it tells of its death."""

    flags: int
    time_ms: int  # when it came into the queue
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    told: DeadLetter


def dead_letter_at(batch: Batch, offset: int) -> StoredDeadLetter:
    """The message of a batch; properties that cannot be read are none."""
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
    queue: Queue, selection: Selection, first: int, stop: int
) -> AsyncIterator[list[StoredDeadLetter]]:
    """Those of [first, stop) that are selected and not settled, a window of the log at a time.

    Raises StorageError; what is lost to damage is left to whoever must have it.
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


async def delete(queue: Queue, selection: Selection) -> int:
    """Settle what is selected and nobody has. Returns how many that were. Raises StorageError."""
    count = 0
    first, stop = queue.log.first, queue.log.committed
    if selection.offsets:
        first, stop = max(first, min(selection.offsets)), min(stop, max(selection.offsets) + 1)
    async for found in scan(queue, selection, first, stop):
        # Nothing else happens between these two: what was withdrawn is nobody's.
        withdrawn = queue.machine.withdraw([(at, at + 1) for at in (x.told.offset for x in found)])
        queue.settle(withdrawn)
        count += sum(stop - first for first, stop in withdrawn)
    return count
