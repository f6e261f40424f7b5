"""Delivery counts of requeued messages: counted by the queue, persisted by its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from leveret.ports.ranges import RangeSet

__all__ = ["RUN_OFFSETS_MAX", "Returns"]

COUNT_BYTES = 100  # memory of one count with its key in a dictionary
RUN_OFFSETS_MAX = 1 << 20  # bounds the work that one corrupt run can cause to its reader


class Returns:
    """Counts by offset; offsets that never came back have none.

    `acquired` counts every return, `failures` those by consumers that failed to process the
    message; where every return counts as a failure only `acquired` is kept. In subscriptions of
    consumer groups with retries, `failures` counts these.
    """

    __slots__ = ("acquired", "failures")

    def __init__(self) -> None:
        self.acquired: dict[int, int] = {}
        self.failures: dict[int, int] = {}

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the counts, in bytes."""
        return (len(self.acquired) + len(self.failures)) * COUNT_BYTES

    def runs(self, ranges: RangeSet | None = None) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first, stop, acquired, failures) of runs with equal counts: all or in `ranges`."""
        first = stop = 0
        alike = (0, 0)
        for offset in sorted(self.acquired) if ranges is None else _known(self.acquired, ranges):
            counts = self.acquired[offset], self.failures.get(offset, 0)
            if offset != stop or counts != alike or stop - first == RUN_OFFSETS_MAX:
                if first < stop:
                    yield first, stop, *alike
                first, alike = offset, counts
            stop = offset + 1
        if first < stop:
            yield first, stop, *alike

    def put(self, first: int, stop: int, acquired: int, failures: int) -> None:
        """Set the counts of [first, stop)."""
        for offset in range(first, stop):
            self.acquired[offset] = acquired
            if failures:
                self.failures[offset] = failures
            else:
                self.failures.pop(offset, None)

    def keep(self, live: RangeSet) -> None:
        """Drop the counts of all offsets that are not in `live`."""
        for counts in (self.acquired, self.failures):
            for offset in [offset for offset in counts if offset not in live]:
                del counts[offset]

    def clear(self) -> None:
        """Drop all counts."""
        self.acquired.clear()
        self.failures.clear()

    def forget(self, ranges: Collection[tuple[int, int]]) -> None:
        """Drop the counts of settled ranges."""
        for counts in (self.acquired, self.failures):
            for first, stop in ranges:
                if stop - first <= len(counts):
                    for offset in range(first, stop):
                        counts.pop(offset, None)
                else:
                    for offset in [offset for offset in counts if first <= offset < stop]:
                        del counts[offset]


def _known(counts: dict[int, int], ranges: RangeSet) -> Iterator[int]:
    return (offset for first, stop in ranges for offset in range(first, stop) if offset in counts)
