"""Places in a queue where a consumer group begins, is moved to, or goes on."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from leveret.core.definitions.administration import AdministrationError
from leveret.core.logs.window import LogWindow
from leveret.core.settings.stream_offsets import (
    FromAge,
    FromOffset,
    FromTime,
    Place,
    parse_group_start,
)
from leveret.errors import CorruptBatchError
from leveret.features.filters.rules import FILTER_CHECKS, FILTER_TAGS, record_filter
from leveret.features.range_reads.bounds import first_readable
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.settings.stream_offsets import Start
    from leveret.features.groups.subscription import Subscription

__all__ = [
    "FromTags",
    "Shift",
    "check_committed",
    "offset_of",
    "parse_reset",
    "partition_named",
    "reset_offsets",
]

BY_TAGS = "tag:"
SHIFT: Final = re.compile(r"shift:([+-]?[0-9]{1,18})", re.ASCII)
SHOWN_MAX = 64  # characters of what is no partition, in the text that refuses it


class FromTags(NamedTuple):
    """The first record whose tags match an expression (see features.filters)."""

    expression: str


class Shift(NamedTuple):
    """Some records behind where the group is in each partition, or before it if negative."""

    by: int


Reset: TypeAlias = "Start | FromTags | Shift"


def parse_reset(to: str) -> Reset:
    """Return the place that a text names. Raises AdministrationError.

    It is `first` or `earliest`, `last`, `next` or `latest`, an offset, an age such as `2h`, a time
    of ISO 8601, `shift:` and a number, or `tag:` and an expression of tags.
    """
    if to.startswith(BY_TAGS):
        expression = to.removeprefix(BY_TAGS)
        problem = FILTER_CHECKS[FILTER_TAGS](expression, {})
        if problem is not None:
            raise AdministrationError("invalid", f"'{to}' is no place in a queue: {problem}")
        return FromTags(expression)
    if shift := SHIFT.fullmatch(to):
        return Shift(int(shift[1]))
    if to.isascii() and to.isdigit() and len(to) < len(str(1 << 63)):
        return FromOffset(int(to))
    start = parse_group_start(to)
    return FromTime(_epoch_ms(to)) if start is None else start


def _epoch_ms(to: str) -> int:
    """Return a time of ISO 8601 in ms since 1970. Raises AdministrationError."""
    try:
        time = datetime.fromisoformat(to)
    except ValueError:
        raise AdministrationError(
            "invalid",
            f"'{to}' is no place in a queue: give earliest, latest, last, an offset, an age such "
            "as 2h, a time such as 2026-11-25T18:00:00, shift: and a number, or tag: and tags",
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(int(time.timestamp() * 1000), 0)


def partition_named(text: str, numbers: Iterable[int]) -> int:
    """Return the one of these partitions that a text names. Raises AdministrationError."""
    known = {str(number): number for number in numbers}
    if text not in known:
        there_are = ", ".join(known)
        raise AdministrationError(
            "not_found", f"there is no partition {text[:SHOWN_MAX]!r}; there are {there_are}"
        )
    return known[text]


def check_committed(offsets: Mapping[str, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return offsets by number of partition, from those by its text. Raises AdministrationError.

    `ends` has the end of each partition.
    """
    checked: dict[int, int] = {}
    for text, offset in offsets.items():
        number = partition_named(text, ends)
        if not 0 <= offset <= ends[number]:
            raise AdministrationError(
                "invalid", f"the offset of partition {text} is from 0 to {ends[number]}, its end"
            )
        checked[number] = offset
    return checked


async def reset_offsets(
    subscriptions: Iterable[Subscription], to: Reset, now_ms: int
) -> dict[int, int]:
    """Return where a group goes on by partition, without those that stay where they are.

    A partition stays if no message there has the tags. Raises AdministrationError if that is so in
    all of them, or if an offset is behind the end of one; StorageError.
    """
    found: dict[int, int] = {}
    for subscription in subscriptions:
        part = subscription.partition
        log = part.log
        if isinstance(to, FromTags):
            tagged = await _first_tagged(part, to.expression)
            if tagged is not None:
                found[part.number] = tagged
        elif isinstance(to, Shift):
            shifted = subscription.committed_offset + to.by
            found[part.number] = min(max(shifted, log.first), log.committed)
        elif isinstance(to, FromOffset) and to.offset > log.committed:
            raise AdministrationError(
                "invalid",
                f"partition {part.number} has the offsets {log.first} to {log.committed}, its end, "
                f"and not {to.offset}; a time is written as 2026-11-25T18:00:00, an age as 2h",
            )
        else:
            found[part.number] = await offset_of(part, to, now_ms)
    if isinstance(to, FromTags) and not found:
        raise AdministrationError(
            "invalid", f"no message has the tags '{to.expression}', so the group stays where it is"
        )
    return found


async def offset_of(partition: OpenQueue, start: Start, now_ms: int) -> int:
    """Return the offset of a place in a partition's log. Raises StorageError."""
    log = partition.log
    match start:
        case FromOffset(offset):
            return min(max(offset, log.first), log.committed)
        case FromTime(time) | FromAge(time):
            time_ms = time if isinstance(start, FromTime) else max(now_ms - time, 0)
            return min(await log.offset_at(time_ms), log.committed)
        case Place.FIRST:
            return log.first
        case Place.LAST:
            return max(log.committed - 1, log.first)
        case _:
            return log.committed


async def _first_tagged(partition: OpenQueue, expression: str) -> int | None:
    """Return the first offset whose tags match, settled or not; None if there is none.

    The log is read from its beginning, between other work. Damaged records match nothing.
    """
    log, window = partition.log, LogWindow(partition.log)
    wanted = record_filter({FILTER_TAGS: expression})
    assert wanted is not None, "it has a filter"
    stop = log.committed
    at = first_readable(partition.unreadable, log.first, stop)
    while at < stop and not partition.deleted:
        try:
            batches = await window.fill(at)
        except CorruptBatchError:
            at += 1
        else:
            until = min(batches[-1].stop_offset, stop)
            found, end = wanted.run(batches, at, until)
            if found < end:
                return found
            at = until
            await let_others_run()
        at = first_readable(partition.unreadable, at, stop)
    return None
