"""Delayed requeue: returned messages that wait before they are delivered again.

The delay is the queue's; features.delay is about delayed publishes. Owned by the queue state, which
adds offsets when they are returned and makes them ready when they are due. Until then they stay
leased in its ledger, to no consumer: a restart finds them unsettled, and ready. They take 24 bytes
for each range that was returned together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.deadlines import Deadlines
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.ledgers.sizes import BodySizes


class DelayedRequeue:
    """Delayed offsets. With sizes given by `weigh`, `bytes` is their total."""

    def __init__(self) -> None:
        self._due = Deadlines()
        self._offsets = RangeSet()
        self._sizes: BodySizes | None = None
        self.bytes = 0

    @property
    def count(self) -> int:
        """Number of delayed offsets."""
        return self._offsets.count

    @property
    def next_ms(self) -> int | None:
        """Due time of the next ones, or None."""
        return self._due.next

    @property
    def held_bytes(self) -> int:
        """Memory of the index, in bytes, without the messages."""
        return self._due.held_bytes + self._offsets.held_bytes

    def holds(self, offset: int) -> bool:
        """Whether an offset is delayed."""
        return offset in self._offsets

    def add(self, first: int, stop: int, due_ms: int) -> None:
        """Delay [first, stop) until `due_ms`."""
        self._due.add(first, stop, due_ms)
        self._offsets.add(first, stop)
        if self._sizes is not None:
            self.bytes += self._sizes.total(first, stop)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Remove and return due ranges, the earliest first."""
        due = self._due.take_due(now_ms)
        for first, stop in due:
            self._offsets.remove(first, stop)
            if self._sizes is not None:
                self.bytes -= self._sizes.total(first, stop)
        return due

    def clear(self) -> list[tuple[int, int]]:
        """Remove everything and return its ranges."""
        ranges = list(self._offsets)
        self._offsets.clear()
        self._due = Deadlines()
        self.bytes = 0
        return ranges

    def weigh(self, sizes: BodySizes | None) -> None:
        """Count bytes by these sizes from now on; None: do not."""
        self._sizes = sizes
        self.bytes = 0
        if sizes is not None:
            self.bytes = sum(sizes.total(first, stop) for first, stop in self._offsets)
