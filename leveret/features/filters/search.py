"""Position of a filter in the backlog of a queue.

A consumer without a filter always takes the lowest offsets, and needs no position. With a filter,
each level of the ledger (a queue without priorities has one) is scanned up to a cursor, and ready
offsets below it do not match, except those returned since, which are scanned again. So each filter
scans a message once, however often it is served. A position consists of a few numbers; reading and
matching are done elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.state import QueueState
    from leveret.features.filters.filters import RecordFilter


class ScanRange(NamedTuple):
    """Range [first, stop) of one level whose `ready` offsets are to be scanned."""

    level: int
    ready: RangeSet
    first: int
    stop: int


class FilterScan:
    """Scan position of one filter.

    `skips`: unmatched messages count as consumed. `waits`: a read for it is in progress.
    """

    __slots__ = ("_again", "_cursors", "filter", "skips", "waits")

    def __init__(self, wanted: RecordFilter, *, skips: bool = False) -> None:
        self.filter = wanted
        self.skips = skips
        self.waits = False
        self._cursors: dict[int, int] = {}
        self._again = RangeSet()  # returned below a cursor, and not scanned since

    def next(self, state: QueueState) -> ScanRange | None:
        """Return the next range to scan, in order of service; None at the end."""
        committed = state.committed
        for level, ready in state.ready_sets():
            cursor = self._cursors.get(level, 0)
            if self._again:
                found = self._returned(level, ready, cursor, state)
                if found is not None:
                    return found
            first = ready.first_from(cursor)
            if first is not None:
                return ScanRange(level, ready, first, committed)
        return None

    def _returned(
        self, level: int, ready: RangeSet, cursor: int, state: QueueState
    ) -> ScanRange | None:
        """Return the first range of returned offsets that is ready on this level, or None."""
        for first, stop in list(self._again):
            if first >= cursor:
                return None  # not scanned yet anyway
            offset = ready.first_from(first)
            if offset is not None and offset < min(stop, cursor):
                return ScanRange(level, ready, offset, min(stop, cursor))
            if not state.ready_in(first, stop):
                self._again.remove(first, stop)  # leased or settled; it may be returned again
        return None

    def looked(self, stretch: ScanRange, reached: int) -> None:
        """Advance past a range's ready offsets below `reached`: delivered, or unmatched."""
        level, ready, first, _ = stretch
        if first < self._cursors.get(level, 0):
            for low, high in ready.gaps(first, reached).gaps(first, reached):
                self._again.remove(low, high)
        else:
            self._cursors[level] = reached

    def came_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note offsets that were returned and may be ready again."""
        seen = max(self._cursors.values(), default=0)
        for first, stop in ranges:
            self._again.add(first, min(stop, seen))

    def start_over(self) -> None:
        """Scan everything again: the returned offsets are unknown."""
        self._cursors.clear()
        self._again.clear()
