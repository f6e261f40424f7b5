"""Deliveries of one forwarded consumer: what came of the leader, and what may still come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.ports.records import Batch

__all__ = ["CREDIT_BYTES", "BufferedDeliveries"]

# Messages that may be on their way to a consumer without prefetch limit: as many small ones as the
# bytes below have room for. With fewer, those of one turn would come in several messages.
CREDIT_MESSAGES: Final = 16384
# Messages that the leader is told of at a time, or fewer when it may send none.
CREDIT_STEP: Final = 1024
# Bytes that may be on their way to one consumer, and one message more.
CREDIT_BYTES: Final = 1 << 20


class BufferedRun(NamedTuple):
    """Records that have come, and are not delivered yet."""

    batch: Batch
    redelivered: bool


class BufferedDeliveries:
    """Credit and buffer of one consumer. The leader never sends more than was granted."""

    def __init__(self, number: int, consumer: QueueConsumer, *, exclusive: bool) -> None:
        self.number = number
        self.consumer = consumer
        self.exclusive = exclusive
        self.next_offset: int | None = None  # that it is delivered, as far as is known
        self._runs: deque[BufferedRun] = deque()
        self._reached = 0  # offset in the first run
        self._granted = 0  # messages that may still come
        self._buffered = 0  # messages that have come
        self._freed = 0  # bytes that the leader may send again, and does not know of

    def restart(self) -> int:
        """Forget what came of another leader; return the credit for a new one."""
        self._runs.clear()
        self._reached = self._buffered = self._freed = 0
        self._granted = max(min(self.consumer.capacity(), CREDIT_MESSAGES), 0)
        return self._granted

    def came(self, batch: Batch, *, redelivered: bool) -> None:
        """Keep records until the consumer takes them."""
        self._runs.append(BufferedRun(batch, redelivered))
        self._granted -= batch.count
        self._buffered += batch.count

    def deliver(self) -> list[tuple[int, int]]:
        """Deliver as much as the consumer takes. Returns the ranges that it took."""
        taken: list[tuple[int, int]] = []
        consumer = self.consumer
        while self._runs:
            capacity = consumer.capacity()
            if capacity <= 0:
                break
            batch, redelivered = self._runs[0]
            first = max(self._reached, batch.base_offset)
            stop = min(batch.stop_offset, first + capacity)
            reached = consumer.send([batch], first, stop, redelivered=redelivered)
            if reached == first:
                break
            taken.append((first, reached))
            self.next_offset = reached
            self._buffered -= reached - first
            self._reached = reached
            if reached == batch.stop_offset:
                self._runs.popleft()
                self._reached = 0
                self._freed += batch.size
        return taken

    def credit(self) -> tuple[int, int] | None:
        """Return (messages, bytes) that the leader may send beyond what it knows; None if few."""
        room = min(self.consumer.capacity(), CREDIT_MESSAGES) - self._granted - self._buffered
        wants = room > 0 and (self._granted == 0 or room >= CREDIT_STEP)
        if not wants and self._freed < CREDIT_BYTES // 4:
            return None
        messages, size = max(room, 0), self._freed
        self._granted += messages
        self._freed = 0
        return messages, size

    def drop(self) -> RangeSet:
        """Forget what was not delivered; return its offsets."""
        dropped = RangeSet()
        for batch, _ in self._runs:
            dropped.add(max(self._reached, batch.base_offset), batch.stop_offset)
            self._reached = 0
        self._runs.clear()
        self._buffered = 0
        return dropped
