"""Publish time of a queue's head message, by its `timestamp` property.

It is only in the message, which may be on disk. What was read is cached until another message is at
the head. Listings look into memory only; requests for one queue, or a page of them, read it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.deadlines import timestamp_of
from leveret.core.queues.queue import Queue
from leveret.errors import CorruptBatchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.ports.records import Batch

__all__ = ["HEADS_READ_MAX", "head_timestamp", "read_heads"]

# Heads read for one answer. Each is one read of 64 KiB, most often from the page cache.
HEADS_READ_MAX = 100


def head_timestamp(queue: object) -> int | None:
    """Return the head's timestamp in seconds since 1970; None if it has none or is not in memory.

    Streams have no head, since each consumer reads at its own position.
    """
    offset = _head(queue)
    if offset is None or not isinstance(queue, Queue):
        return None
    known = queue.reader.head
    if known is not None and known[0] == offset:
        return known[1]
    batch = queue.reader.in_memory(offset)
    return None if batch is None else _note(queue, batch, offset)


async def read_heads(queues: Iterable[object]) -> None:
    """Read the heads that `head_timestamp` needs, at most HEADS_READ_MAX.

    Unreadable messages are skipped; deliveries handle the damage.
    """
    left = HEADS_READ_MAX
    for queue in queues:
        offset = _head(queue)
        if offset is None or not isinstance(queue, Queue) or _is_known(queue, offset):
            continue
        if not left:
            return
        left -= 1
        try:
            batches = await queue.log.fetch(offset, 1)
        except StorageError:
            continue
        if batches:
            _note(queue, batches[0], offset)


def _head(queue: object) -> int | None:
    """Return the offset of the next ready message, or None."""
    if not isinstance(queue, Queue) or queue.deleted or not queue.message_count:
        return None
    ranges = queue.state.next_ranges(1)
    return ranges[0][0] if ranges else None


def _is_known(queue: Queue, offset: int) -> bool:
    known = queue.reader.head
    return (known is not None and known[0] == offset) or queue.reader.in_memory(offset) is not None


def _note(queue: Queue, batch: Batch, offset: int) -> int | None:
    try:
        seconds = timestamp_of(batch, offset)
    except CorruptBatchError:
        return None
    queue.reader.head = offset, seconds
    return seconds
