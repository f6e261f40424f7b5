"""A ledger that knows how many bytes are ready: for queues whose bytes are limited."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.ledgers.ledger import Ledger
    from leveret.core.queues.sizes import BodySizes
    from leveret.ports.ranges import RangeSet

    Ranges = Iterable[tuple[int, int]]


class WeighedLedger:
    """Has the methods of `Ledger` and hands every call on; counts bytes on the way.

    What `sizes` does not know weighs nothing: `weigh` when it has learned of records that are
    ready already.
    """

    def __init__(self, ledger: Ledger, sizes: BodySizes) -> None:
        self.inner = ledger
        self._sizes = sizes
        self.ready_bytes = 0
        self.weigh()

    def weigh(self) -> None:
        """Count what is ready anew."""
        ready = self.inner.ready_in(0, self.inner.committed)
        self.ready_bytes = self._total(ready)

    def _total(self, ranges: Ranges) -> int:
        return sum(self._sizes.total(first, stop) for first, stop in ranges)

    @property
    def first_ready(self) -> int | None:
        """See Ledger."""
        return self.inner.first_ready

    @property
    def ready_count(self) -> int:
        """See Ledger."""
        return self.inner.ready_count

    @property
    def leased_count(self) -> int:
        """See Ledger."""
        return self.inner.leased_count

    @property
    def held_bytes(self) -> int:
        """See Ledger."""
        return self.inner.held_bytes + self._sizes.held_bytes

    @property
    def committed(self) -> int:
        """See Ledger."""
        return self.inner.committed

    @property
    def redelivered_stop(self) -> int:
        """See Ledger."""
        return self.inner.redelivered_stop

    def ready_in(self, first: int, stop: int) -> list[tuple[int, int]]:
        """See Ledger."""
        return self.inner.ready_in(first, stop)

    def leased_in(self, first: int, stop: int) -> list[tuple[int, int]]:
        """See Ledger."""
        return self.inner.leased_in(first, stop)

    def unsettled(self) -> RangeSet:
        """See Ledger."""
        return self.inner.unsettled()

    def commit(self, stop: int) -> None:
        """See Ledger."""
        first = self.inner.committed
        self.inner.commit(stop)
        self.ready_bytes += self._total(self.inner.ready_in(first, stop))

    def peek(self, limit: int) -> tuple[int, int, bool]:
        """See Ledger."""
        return self.inner.peek(limit)

    def peek_runs(self, limit: int, end: int) -> tuple[list[tuple[int, int]], bool]:
        """See Ledger."""
        return self.inner.peek_runs(limit, end)

    @property
    def came_back(self) -> RangeSet | None:
        """See Ledger."""
        return self.inner.came_back

    @came_back.setter
    def came_back(self, ranges: RangeSet | None) -> None:
        self.inner.came_back = ranges

    def ready_sets(self) -> list[tuple[int, RangeSet]]:
        """See Ledger."""
        return self.inner.ready_sets()

    def kind(self, first: int, stop: int) -> tuple[int, bool]:
        """See Ledger."""
        return self.inner.kind(first, stop)

    def next_ranges(self, limit: int) -> list[tuple[int, int]]:
        """See Ledger."""
        return self.inner.next_ranges(limit)

    def lease(self, first: int, stop: int) -> None:
        """See Ledger."""
        self.inner.lease(first, stop)
        self.ready_bytes -= self._sizes.total(first, stop)

    def settle(self, ranges: Ranges) -> int:
        """See Ledger."""
        ranges = list(ranges)
        for first, stop in ranges:
            self._sizes.forget(first, stop)
        return self.inner.settle(ranges)

    def return_(self, ranges: Ranges) -> None:
        """See Ledger."""
        ranges = list(ranges)
        self.inner.return_(ranges)
        self.ready_bytes += self._total(ranges)

    def withdraw(self, ranges: Ranges) -> list[tuple[int, int]]:
        """See Ledger."""
        taken = self.inner.withdraw(ranges)
        self.ready_bytes -= self._total(taken)
        return taken

    def lose(self, ranges: Ranges) -> list[tuple[int, int]]:
        """See Ledger."""
        return self._leave(self.inner.lose(ranges))

    def purge(self) -> list[tuple[int, int]]:
        """See Ledger."""
        return self._leave(self.inner.purge())

    def _leave(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        self.ready_bytes -= self._total(ranges)
        for first, stop in ranges:
            self._sizes.forget(first, stop)
        return ranges
