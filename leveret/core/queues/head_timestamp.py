"""When the message at the head of a queue was made, as its publisher says (`timestamp`).

Nobody keeps that: it stands in the message, and the message may lie on the disk. What was read is
remembered until another message is at the head. Lists look into memory only; who asks for one
queue, or for a page of them, has it read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.queue import Queue
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.properties import timestamp_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import QueueLike
    from leveret.ports.records import Batch

__all__ = ["HEADS_READ_MAX", "head_timestamp", "read_heads"]

# In one answer. Each is one read of 64 KiB, most often from the page cache.
HEADS_READ_MAX = 100


def head_timestamp(queue: QueueLike) -> int | None:
    """Seconds since 1970. None where the message has no timestamp or is not in memory.

    Streams have no head, as everybody reads them from where he likes.
    """
    offset = _head(queue)
    if offset is None or not isinstance(queue, Queue):
        return None
    known = queue.reader.head
    if known is not None and known[0] == offset:
        return known[1]
    batch = queue.reader.in_memory(offset)
    return None if batch is None else _note(queue, batch, offset)


async def read_heads(queues: Iterable[QueueLike]) -> None:
    """Read what `head_timestamp` has to know of some queues; of more than a bound, the first.

    What cannot be read is left for those who deliver it.
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


def _head(queue: QueueLike) -> int | None:
    """The offset of the message that is next, if any is ready."""
    if not isinstance(queue, Queue) or queue.deleted:
        return None
    ranges = queue.machine.ledger.next_ranges(1)
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
