"""Length limits of a queue, and the overflow policy.

Ready messages count, and those delayed after a requeue. A publish is judged as if it came alone:
messages that consumers can take at once do not count. Bytes are those of bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.publish_tags import PublishTags
from leveret.core.queues.state import QueueState
from leveret.core.settings.queue_settings import Overflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leveret.core.queues.queue import Queue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports.records import Batch, BatchBuilder

UNLIMITED = (1 << 64) - 1


class OverflowPolicy:
    """Length limits of one queue. With a limit in bytes its state counts the bytes of bodies.

    A partition's limits are those of the whole queue, to which all partitions together are held.
    """

    def __init__(self, queue: Queue, settings: QueueSettings) -> None:
        self._queue = queue
        self._state = queue.state
        self._log = queue.log
        self.reconfigure(settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply the limits of these settings from now on."""
        self._rejects = settings.rejects
        self._keeps_rejected = settings.overflow is Overflow.REJECT_PUBLISH_DLX
        self._length = UNLIMITED if settings.max_length is None else settings.max_length
        self._bytes = UNLIMITED if settings.max_length_bytes is None else settings.max_length_bytes
        builder = self._log.builder
        if not self._rejects:
            builder.publish_tags = None
        elif builder.publish_tags is None:
            builder.publish_tags = PublishTags()
        self._state.count_bytes(wanted=self._bytes != UNLIMITED)

    # -- refusing publishes

    def refuse(self, builder: BatchBuilder) -> Batch | None:
        """Apply the overflow policy: remove refused records from `builder`, nack their publishes.

        Returns the refused records if they go to the dead-letter exchange.
        """
        if not self._rejects:
            return None
        records_max, bytes_max = self._room(builder.count)
        tags = builder.publish_tags.take()
        if builder.count <= records_max and builder.size <= bytes_max:
            return None
        refused, kept = builder.refuse(records_max, bytes_max, self._keeps_rejected)
        for first_index, stop_index, publisher, tag in tags:
            for first, stop in refused.gaps(first_index, stop_index).gaps(first_index, stop_index):
                publisher.refused(tag + first - first_index, tag + stop - first_index)
        return kept

    def has_room(self, count: int, body_bytes: int) -> bool:
        """Whether `refuse` would accept so many records, with so many bytes in their bodies.

        What is gathered goes first.
        """
        if not self._rejects:
            return True
        records_max, bytes_max = self._room(count)
        for part in (self._queue, *self._others()):
            count += part.builder.count
            body_bytes += part.builder.body_bytes()
        return count <= records_max and body_bytes <= bytes_max

    def _room(self, wanted: int) -> tuple[int, int]:
        """Return how many records and bytes of bodies fit, when `wanted` records are published."""
        count, size = self._queue.waiting
        for part in self._others():
            more = part.waiting
            count, size = count + more[0], size + more[1]
        records_max, bytes_max = max(0, self._length - count), max(0, self._bytes - size)
        if self._length and self._bytes:  # a limit of zero refuses everything
            taken_at_once = self._queue.credit_once_sent()
            if self._queue.part_of is not None:  # the other partitions have the same consumers
                taken_at_once = max(0, taken_at_once - max(0, count - self._length))
            records_max += taken_at_once
            bytes_max += UNLIMITED // 2 if taken_at_once >= wanted else 0
        return min(records_max, UNLIMITED), min(bytes_max, UNLIMITED)

    def _others(self) -> Sequence[Queue]:
        """Return the other partitions of the queue; what is not opened holds nothing."""
        queue = self._queue
        if queue.part_of is None:
            return ()
        parts: Sequence[Queue] = queue.whole.partitions  # type: ignore[assignment]  # of its type
        return [part for part in parts if part is not queue and part.is_opened]

    # -- dropping the head

    def overflowing(self) -> list[tuple[Queue, list[tuple[int, int]]]]:
        """Withdraw the messages beyond the limits, in delivery order.

        Returns their ranges. Of a queue's partitions the fullest ones lose their heads.
        """
        if self._rejects:
            return []
        parts = [self._queue, *self._others()]
        return [
            *withdrawn(parts, self._length, _count, QueueState.next_ranges),
            *withdrawn(parts, self._bytes, _bytes, QueueState.next_ranges_of),
        ]


def _count(queue: Queue) -> int:
    return queue.state.waiting_count


def _bytes(queue: Queue) -> int:
    return queue.state.waiting_bytes


def withdrawn(
    parts: Sequence[Queue],
    limit: int,
    measure: Callable[[Queue], int],
    next_ranges: Callable[[QueueState, int], list[tuple[int, int]]],
) -> Iterator[tuple[Queue, list[tuple[int, int]]]]:
    """Withdraw what is beyond a limit from the heads of partitions, from the fullest first."""
    sizes = {part: measure(part) for part in parts}
    while (excess := sum(sizes.values()) - limit) > 0 and sizes:
        fullest = max(sizes, key=lambda part: sizes[part])
        next_size = sorted(sizes.values())[-2] if len(sizes) > 1 else 0
        share = min(excess, max(sizes[fullest] - next_size, excess // len(sizes), 1))
        ranges = fullest.state.withdraw(next_ranges(fullest.state, share))
        if ranges:
            yield fullest, ranges
        left = measure(fullest)
        if left > sizes[fullest] - share:
            limit -= left  # the rest of it is leased to a delay
            del sizes[fullest]
        else:
            sizes[fullest] = left
