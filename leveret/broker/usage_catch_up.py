"""Usage of messages that an earlier run has stored and not counted, since a crash has ended it.

The usage store notes up to which offset each log was counted (ports.usage.CountedLogs). What lies
behind that is counted when the node starts, for the hour in which it was stored. Messages whose
files are gone by then still count, by their offsets; their bytes are not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.errors import StorageError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import HEADER_BYTES
from leveret.ports.usage import HOUR_SECONDS, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.ports.records import Batch

__all__ = ["UncountedPart", "first_uncounted", "uncounted"]

HOUR_MS: Final = HOUR_SECONDS * 1000
READ_BYTES: Final = 4 << 20  # at a time: reads are large, and memory stays small


class UncountedPart(NamedTuple):
    """Usage of records below `stop` and above the part before; `hour` in seconds since 1970."""

    hour: int
    usage: Usage
    stop: int


async def first_uncounted(queue: OpenQueue, counted_ms: int) -> int:
    """Return where to begin in a log of which nothing was noted, when others were at `counted_ms`.

    It is new, or was first used after that. Raises StorageError.
    """
    if queue.definition.created_ms >= counted_ms:
        return 0
    return await queue.log.offset_at(counted_ms + 1)


async def uncounted(
    queue: OpenQueue, first: int, stop: int, now_ms: int
) -> AsyncIterator[UncountedPart]:
    """Yield the usage of [first, stop), a part for each hour.

    What can be read no more counts for the hour of what follows it, or else for the last one.
    """
    at, hour, used = first, None, Usage()
    async for batch in _batches(queue, first, stop):
        for hour_of, begin, end in _hours(batch, at, stop):
            if hour is not None and hour != hour_of:
                yield UncountedPart(hour, used, at)
                used = Usage()
            hour = hour_of
            used = used.plus(Usage(end - at, _bytes_below(batch, end) - _bytes_below(batch, begin)))
            at = end
    if at < stop:
        used = used.plus(Usage(stop - at))
    if any(used):
        yield UncountedPart(_hour(now_ms) if hour is None else hour, used, stop)


async def _batches(queue: OpenQueue, first: int, stop: int) -> AsyncIterator[Batch]:
    """Yield the batches with records of [first, stop), as far as they can be read."""
    log, at = queue.log, first
    while at < min(stop, log.committed):
        readable = RangeSet([(at, min(stop, log.committed))])
        for gone in queue.unreadable:
            readable = RangeSet(part for span in readable for part in gone.gaps(*span))
        if readable.first is None:
            return
        try:
            batches = await log.fetch(readable.first, READ_BYTES)
        except StorageError:  # deliveries handle the damage
            return
        if not batches or batches[-1].stop_offset <= at:
            return
        for batch in batches:
            if batch.base_offset < stop:
                yield batch
        at = batches[-1].stop_offset


def _hours(batch: Batch, first: int, stop: int) -> list[tuple[int, int, int]]:
    """Return (hour, begin, end) of a batch's records in [first, stop), most often of one hour."""
    begin, stop = max(first, batch.base_offset), min(stop, batch.stop_offset)
    found = []
    last_time = max(batch.last_time, batch.first_time)  # a clock may step back
    for hour in range(_hour(batch.first_time), _hour(last_time) + 1, HOUR_SECONDS):
        behind = (hour + HOUR_SECONDS) * 1000
        end = stop if last_time < behind else min(batch.offset_at(behind), stop)
        if begin < end:
            found.append((hour, begin, end))
            begin = end
    return found


def _bytes_below(batch: Batch, offset: int) -> int:
    """Return the bytes of a batch's records below an offset, as if all had the same size."""
    return (batch.size - HEADER_BYTES) * (offset - batch.base_offset) // batch.count


def _hour(time_ms: int) -> int:
    return time_ms // HOUR_MS * HOUR_SECONDS
