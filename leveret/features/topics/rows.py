"""Topics and their partitions as rows of lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.settings.arguments import type_of
from leveret.core.settings.partitioning import layout_of

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.groups.groups import ConsumerGroups

__all__ = ["describe_topic", "is_topic", "partition_row", "topic_row"]


def is_topic(queue: DeclaredQueue) -> bool:
    """Whether a queue has partitions, or keeps messages to be read again."""
    settings = queue.settings
    return settings.partitioning is not None or settings.retention is not None


def topic_row(queue: DeclaredQueue, groups: ConsumerGroups) -> dict[str, Any]:
    """Return a topic with its totals."""
    layout, settings = layout_of(queue.definition), queue.settings
    retention = settings.retention
    return {
        "vhost": queue.definition.vhost,
        "name": queue.name,
        "type": type_of(queue.definition.arguments),
        "partitions": len(layout.active),
        "retired": len(layout.retired),
        "partition_by": None if settings.partitioning is None else settings.partitioning.by,
        "messages": queue.message_count,
        "unacked": queue.leased_count,
        "consumers": queue.consumer_count,
        "groups": len(groups.of_queue(queue)),
        "retention_ms": None if retention is None else retention.age_ms_max,
        "retention_bytes": None if retention is None else retention.bytes_max,
        "retention_messages": None if retention is None else retention.records_max,
    }


def describe_topic(queue: DeclaredQueue, groups: ConsumerGroups) -> dict[str, Any]:
    """Return a topic with its totals, each of its partitions, and the lag of its groups."""
    retired = set(layout_of(queue.definition).retired)
    return {
        **topic_row(queue, groups),
        "partition_details": [
            partition_row(part, is_retired=part.number in retired) for part in queue.partitions
        ],
        "group_lags": {name: group.lag for name, group in sorted(groups.of_queue(queue).items())},
    }


def partition_row(part: OpenQueue, *, is_retired: bool) -> dict[str, Any]:
    """Return the counts and offsets of one partition. One that holds nothing is not opened.

    `end` is that of readers and groups: what is written and not safe yet lies behind it.
    """
    row: dict[str, Any] = {
        "partition": part.number,
        "state": "retired" if is_retired else "active",
        "messages": part.message_count,
        "unacked": part.leased_count,
        "first": 0,
        "end": 0,
        "bytes": 0,
    }
    if part.is_opened:
        log = part.log
        size = sum(file.size for file in log.list_files())
        row |= {"first": log.first, "end": log.committed, "bytes": size}
    return row
