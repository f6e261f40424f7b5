"""Messages that a queue keeps for nobody: its groups have read them, and it has no consumers.

Only consumers of the queue settle its messages, and groups that it names. Where there are none of
them, retention deletes nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.features.groups.groups import ConsumerGroup
    from leveret.ports import LogFile, Retention

__all__ = ["unsettled_beyond_retention"]


def unsettled_beyond_retention(
    queue: DeclaredQueue, groups: Collection[ConsumerGroup], now_ms: int
) -> int:
    """Return how many messages retention would delete if somebody settled them.

    Counted are those that all groups have read, in partitions without consumers. 0 for a stream.
    """
    retention = queue.settings.retention
    if retention is None or not retention.keeps_settled or not groups:
        return 0
    partitions = (cast("Queue", part) for part in queue.partitions if part.is_opened)
    return sum(_of_partition(part, groups, retention, now_ms) for part in partitions)


def _of_partition(
    part: Queue, groups: Collection[ConsumerGroup], retention: Retention, now_ms: int
) -> int:
    if part.state.consumer_count:
        return 0
    read = min(group.subscriptions[part.number].committed_offset for group in groups)
    stop = min(read, _beyond(part.log.list_files(), retention, now_ms))
    return sum(after - first for first, after in part.state.ready_in(0, stop))


def _beyond(files: Sequence[LogFile], retention: Retention, now_ms: int) -> int:
    """Return the offset below which all is beyond some limit: whole files, as retention counts."""
    size = sum(file.size for file in files)
    stop = 0
    for file, after in pairwise(files):
        is_too_old = (
            retention.age_ms_max is not None
            and after.began_ms is not None
            and after.began_ms < now_ms - retention.age_ms_max
        )
        is_too_large = retention.bytes_max is not None and size > retention.bytes_max
        kept = files[-1].stop - file.stop
        are_too_many = retention.records_max is not None and kept >= retention.records_max
        if not (is_too_old or is_too_large or are_too_many):
            break
        size -= file.size
        stop = file.stop
    return stop
