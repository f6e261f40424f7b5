"""Places in a queue where a consumer group begins, is moved to, or goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.definitions.administration import AdministrationError
from leveret.core.logs.window import LogWindow
from leveret.core.settings.stream_offsets import FromAge, FromOffset, FromTime, Place, interval_ms
from leveret.errors import CorruptBatchError
from leveret.features.filters.rules import FILTER_CHECKS, FILTER_TAGS, record_filter
from leveret.features.range_reads.bounds import first_readable
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.settings.stream_offsets import Start

__all__ = ["FromTags", "check_committed", "offset_of", "parse_reset"]

BY_TAGS = "tag:"
SHOWN_MAX = 64  # characters of what is no partition, in the text that refuses it


class FromTags(NamedTuple):
    """The first record whose tags match an expression (see features.filters)."""

    expression: str


def parse_reset(to: str) -> Start | FromTags:
    """Return the place that a text names. Raises AdministrationError.

    It is `earliest`, `latest`, an offset, an age such as `2h`, a time of ISO 8601, or `tag:` and an
    expression of tags, for the first message that has them.
    """
    if to.startswith(BY_TAGS):
        expression = to.removeprefix(BY_TAGS)
        problem = FILTER_CHECKS[FILTER_TAGS](expression, {})
        if problem is not None:
            raise AdministrationError("invalid", f"'{to}' is no place in a queue: {problem}")
        return FromTags(expression)
    if to in {"earliest", "latest"}:
        return Place.FIRST if to == "earliest" else Place.NEXT
    if to.isascii() and to.isdigit() and len(to) < len(str(1 << 63)):
        return FromOffset(int(to))
    age_ms = interval_ms(to)
    if age_ms is not None:
        return FromAge(age_ms)
    try:
        time = datetime.fromisoformat(to)
    except ValueError:
        raise AdministrationError(
            "invalid",
            f"'{to}' is no place in a queue: give earliest, latest, an offset, an age such as 2h, "
            "a time such as 2026-11-25T18:00:00, or tag: and tags",
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return FromTime(max(int(time.timestamp() * 1000), 0))


def check_committed(offsets: Mapping[str, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return offsets by number of partition, from those by its text. Raises AdministrationError.

    `ends` has the end of each partition.
    """
    numbers = {str(number): number for number in ends}
    for text, offset in offsets.items():
        number = numbers.get(text)
        if number is None:
            known = ", ".join(numbers)
            raise AdministrationError(
                "not_found", f"there is no partition {text[:SHOWN_MAX]!r}; there are {known}"
            )
        if not 0 <= offset <= ends[number]:
            raise AdministrationError(
                "invalid", f"the offset of partition {text} is from 0 to {ends[number]}, its end"
            )
    return {numbers[text]: offset for text, offset in offsets.items()}


async def offset_of(partition: OpenQueue, start: Start | FromTags, now_ms: int) -> int:
    """Return the offset of a place in a partition's log. Raises StorageError."""
    log = partition.log
    match start:
        case FromTags(expression):
            return await _first_tagged(partition, expression)
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


async def _first_tagged(partition: OpenQueue, expression: str) -> int:
    """Return the first offset whose tags match, settled or not; the end if there is none.

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
    return stop
