"""One taker's place in the backlog of a queue, where the taker does not want every message.

Whoever takes everything always takes what comes first, and needs no place. A taker with a filter
does: each level of the ledger (a queue without priorities has one) has been looked at up to a
cursor, and what lies below it and is ready is not wanted, but for what has come back since: that is
looked at again. So a message is looked at once for each taker, however often it is asked. A place
is a few numbers, and offsets only: reading and comparing is the business of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.filtering.filters import RecordFilter
    from leveret.core.ledgers.ledger import Ledger
    from leveret.core.ledgers.weighing import WeighedLedger


class Stretch(NamedTuple):
    """Offsets to be looked at, where `ready` says so: [first, stop) of one level."""

    level: int
    ready: RangeSet
    first: int
    stop: int


class Search:
    """What was looked at for one taker, with its filter.

    `skips`: what is not wanted counts as consumed by it. `waits`: something is being read for it.
    """

    __slots__ = ("_again", "_cursors", "filter", "skips", "waits")

    def __init__(self, wanted: RecordFilter, *, skips: bool = False) -> None:
        self.filter = wanted
        self.skips = skips
        self.waits = False
        self._cursors: dict[int, int] = {}
        self._again = RangeSet()  # below a cursor, and not looked at since they came back

    def next(self, ledger: Ledger | WeighedLedger) -> Stretch | None:
        """Tell what is to be looked at next, in the order of service; None: all was."""
        committed = ledger.committed
        for level, ready in ledger.ready_sets():
            cursor = self._cursors.get(level, 0)
            if self._again:
                found = self._returned(level, ready, cursor, ledger)
                if found is not None:
                    return found
            first = ready.first_from(cursor)
            if first is not None:
                return Stretch(level, ready, first, committed)
        return None

    def _returned(
        self, level: int, ready: RangeSet, cursor: int, ledger: Ledger | WeighedLedger
    ) -> Stretch | None:
        """Find the first of what came back that is ready on this level."""
        for first, stop in list(self._again):
            if first >= cursor:
                return None  # will be come by
            offset = ready.first_from(first)
            if offset is not None and offset < min(stop, cursor):
                return Stretch(level, ready, offset, min(stop, cursor))
            if not ledger.ready_in(first, stop):
                self._again.remove(first, stop)  # somebody has it; it may come back once more
        return None

    def looked(self, stretch: Stretch, reached: int) -> None:
        """Note that what is ready of a stretch below `reached` is taken, or not wanted."""
        level, ready, first, _ = stretch
        if first < self._cursors.get(level, 0):
            for low, high in ready.gaps(first, reached).gaps(first, reached):
                self._again.remove(low, high)
        else:
            self._cursors[level] = reached

    def came_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that these may be ready again."""
        seen = max(self._cursors.values(), default=0)
        for first, stop in ranges:
            self._again.add(first, min(stop, seen))

    def start_over(self) -> None:
        """Look at everything again: what came back is not known."""
        self._cursors.clear()
        self._again.clear()
