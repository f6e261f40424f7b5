"""Which offsets of a partition can be read, whatever its queue's consumers have settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.ports import SharedLog

__all__ = ["Bounds", "bounds_of", "first_readable", "offset_rows", "readable"]

STEP_OFFSETS = 4096  # looked through at first; then twice as many each time


class Bounds(NamedTuple):
    """Offsets [first, end) of a partition that readers may ask for."""

    first: int
    end: int


def readable(holes: Sequence[RangeSet], first: int, stop: int) -> list[tuple[int, int]]:
    """Return the ranges of [first, stop) that are in no hole."""
    ranges = [(first, stop)] if first < stop else []
    for hole in holes:
        if hole and hole.overlap(first, stop):
            ranges = [part for each in ranges for part in hole.gaps(*each)]
    return ranges


def first_readable(holes: Sequence[RangeSet], first: int, stop: int) -> int:
    """Return the lowest offset of [first, stop) that is in no hole, else `stop`."""
    step = STEP_OFFSETS
    while first < stop:
        until = min(first + step, stop)
        found = readable(holes, first, until)
        if found:
            return found[0][0]
        first, step = until, 2 * step
    return stop


def bounds_of(partition: OpenQueue) -> Bounds:
    """Return the bounds of a partition: below the first offset, retention has removed records."""
    log = partition.log
    end = log.committed
    begin = min(log.first, end)
    first = first_readable(partition.unreadable, begin, end)
    if log.retained_from is not None:  # compaction has removed the rest: that is no loss
        return Bounds(min(log.retained_from, first), end)
    # What was published in vain, or deleted, at the log's beginning is not missing to anybody.
    if log.undone.overlap(begin, first) + log.erased.overlap(begin, first) == first - begin:
        first = begin
    return Bounds(first, end)


async def offset_rows(
    queue: Any, time_ms: int | None = None, *, sizes: bool = False
) -> list[dict[str, int]]:
    """Return the bounds of all partitions; with a time also the first offset stored then or later.

    With `sizes` also the bytes of each log. Raises StorageError.
    """
    rows: list[dict[str, int]] = []
    for partition in queue.partitions:
        row = {"partition": partition.number, "first": 0, "end": 0}
        at = None if time_ms is None else await partition.log.offset_at(time_ms)
        row["first"], row["end"] = bounds_of(partition)
        if at is not None:
            row["offset"] = min(max(at, row["first"]), row["end"])
        if sizes:
            row["bytes"] = _stored_bytes(partition.log, row["first"])
        rows.append(row)
    return rows


def _stored_bytes(log: SharedLog, first: int) -> int:
    """Return the bytes of the files that have anything from an offset on."""
    return sum(each.size for each in log.list_files() if each.stop > first)
