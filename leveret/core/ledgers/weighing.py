"""Ledger that also counts the ready bytes, for queues with a limit in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.ledgers.ledger import Ledger
    from leveret.core.ledgers.sizes import BodySizes
    from leveret.ports.ranges import RangeSet

    Ranges = Iterable[tuple[int, int]]


class WeighedLedger:
    """Wrapper with the methods of `Ledger` that tracks the bytes of ready records.

    Records unknown to `sizes` count as 0: call `weigh` when sizes of ready records were added.
    """

    def __init__(self, ledger: Ledger, sizes: BodySizes) -> None:
        self.inner = ledger
        self._sizes = sizes
        self.ready_bytes = 0
        self.weigh()

    def weigh(self) -> None:
        """Recount the bytes of all ready records."""
        ready = self.inner.ready_in(0, self.inner.committed)
        self.ready_bytes = self._total(ready)

    def _total(self, ranges: Ranges) -> int:
        return sum(self._sizes.total(first, stop) for first, stop in ranges)

    @property
    def first_ready(self) -> int | None:
        """Lowest ready offset, or None."""
        return self.inner.first_ready

    @property
    def ready_count(self) -> int:
        """Number of ready offsets."""
        return self.inner.ready_count

    @property
    def leased_count(self) -> int:
        """Number of leased offsets."""
        return self.inner.leased_count

    @property
    def held_bytes(self) -> int:
        """Memory of ranges and sizes, in bytes."""
        return self.inner.held_bytes + self._sizes.held_bytes

    @property
    def committed(self) -> int:
        """Committed offset."""
        return self.inner.committed

    @property
    def redelivered_stop(self) -> int:
        """Offset below which messages may have been delivered before."""
        return self.inner.redelivered_stop

    def ready_in(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the ready ranges of [first, stop)."""
        return self.inner.ready_in(first, stop)

    def leased_in(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the leased ranges of [first, stop)."""
        return self.inner.leased_in(first, stop)

    def unsettled(self) -> RangeSet:
        """Return all ready and leased offsets, as a new RangeSet."""
        return self.inner.unsettled()

    def commit(self, stop: int) -> None:
        """Make offsets up to `stop` ready."""
        first = self.inner.committed
        self.inner.commit(stop)
        self.ready_bytes += self._total(self.inner.ready_in(first, stop))

    def peek(self, limit: int) -> tuple[int, int, bool]:
        """Return (first, stop, redelivered) of the next offsets, as Ledger.peek."""
        return self.inner.peek(limit)

    def peek_runs(self, limit: int, end: int) -> tuple[list[tuple[int, int]], bool]:
        """Return (runs, redelivered) of the next offsets, as Ledger.peek_runs."""
        return self.inner.peek_runs(limit, end)

    @property
    def came_back(self) -> RangeSet | None:
        """Returned ranges since it was set, as in Ledger."""
        return self.inner.came_back

    @came_back.setter
    def came_back(self, ranges: RangeSet | None) -> None:
        self.inner.came_back = ranges

    def ready_sets(self) -> list[tuple[int, RangeSet]]:
        """Return the ready offsets by level, as Ledger.ready_sets."""
        return self.inner.ready_sets()

    def kind(self, first: int, stop: int) -> tuple[int, bool]:
        """Return (stop, redelivered): how far ready offsets from `first` on are of one kind."""
        return self.inner.kind(first, stop)

    def next_ranges(self, limit: int) -> list[tuple[int, int]]:
        """Return the ranges of the next `limit` offsets to be delivered, in order."""
        return self.inner.next_ranges(limit)

    def lease(self, first: int, stop: int) -> None:
        """Lease [first, stop), which must be ready, for a delivery."""
        self.inner.lease(first, stop)
        self.ready_bytes -= self._sizes.total(first, stop)

    def settle(self, ranges: Ranges) -> int:
        """Settle leased offsets. Returns their number."""
        ranges = list(ranges)
        for first, stop in ranges:
            self._sizes.forget(first, stop)
        return self.inner.settle(ranges)

    def return_(self, ranges: Ranges) -> None:
        """Make leased offsets ready again, for redelivery."""
        ranges = list(ranges)
        self.inner.return_(ranges)
        self.ready_bytes += self._total(ranges)

    def withdraw(self, ranges: Ranges) -> list[tuple[int, int]]:
        """Lease the ready part of `ranges` to no consumer, to be discarded. Returns it."""
        taken = self.inner.withdraw(ranges)
        self.ready_bytes -= self._total(taken)
        return taken

    def lose(self, ranges: Ranges) -> list[tuple[int, int]]:
        """Drop the ready part of `ranges` and return it."""
        return self._leave(self.inner.lose(ranges))

    def purge(self) -> list[tuple[int, int]]:
        """Settle everything ready and return its ranges."""
        return self._leave(self.inner.purge())

    def _leave(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        self.ready_bytes -= self._total(ranges)
        for first, stop in ranges:
            self._sizes.forget(first, stop)
        return ranges
