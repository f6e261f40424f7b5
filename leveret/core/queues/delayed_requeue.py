"""Messages that were returned and must wait before they are delivered again.

The delay is the queue's, for what comes back to it; core.delay is about messages that come later.

Owned by the queue machine, which puts offsets in when they are returned and makes them ready when
their time has come. Until then they stay leased in its ledger, to nobody: a restart finds them
unsettled, and ready. They cost 24 bytes for each stretch that came back together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.deadlines import Deadlines
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from leveret.core.queues.sizes import BodySizes


class DelayedRequeue:
    """Offsets that came back and wait. Once `weigh` was told of sizes, `bytes` are theirs."""

    def __init__(self) -> None:
        self._due = Deadlines()
        self._offsets = RangeSet()
        self._sizes: BodySizes | None = None
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many offsets wait."""
        return self._offsets.count

    @property
    def next_ms(self) -> int | None:
        """When the next of them have waited long enough."""
        return self._due.next

    @property
    def held_bytes(self) -> int:
        """Memory that they take, beside their messages."""
        return self._due.held_bytes + self._offsets.held_bytes

    def holds(self, offset: int) -> bool:
        """Whether a message waits."""
        return offset in self._offsets

    def add(self, first: int, stop: int, due_ms: int) -> None:
        """[first, stop) waits until then."""
        self._due.add(first, stop, due_ms)
        self._offsets.add(first, stop)
        if self._sizes is not None:
            self.bytes += self._sizes.total(first, stop)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Remove what has waited long enough: its ranges, whose time came first in front."""
        due = self._due.take_due(now_ms)
        for first, stop in due:
            self._offsets.remove(first, stop)
            if self._sizes is not None:
                self.bytes -= self._sizes.total(first, stop)
        return due

    def clear(self) -> list[tuple[int, int]]:
        """Remove everything; returns its ranges."""
        ranges = list(self._offsets)
        self._offsets.clear()
        self._due = Deadlines()
        self.bytes = 0
        return ranges

    def weigh(self, sizes: BodySizes | None) -> None:
        """Count bytes from now on, by what is known now; None: do not."""
        self._sizes = sizes
        self.bytes = 0
        if sizes is not None:
            self.bytes = sum(sizes.total(first, stop) for first, stop in self._offsets)
