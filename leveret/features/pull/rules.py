"""Ends of leases: of deliveries on a channel, and of messages received by pull.

A lease is a delivered, unsettled record. Its term is the visibility timeout: once it is over, the
record is requeued. Called by the channels (`Terms`, and `LeaseEnds` where a lease was extended: by
delivery tag) and by the pull machine (`LeaseTable`: by offset). Times are milliseconds since 1970,
passed in; nothing here knows a queue.

Deliveries are recorded in runs and not one by one: the end of a term is rounded up to a small part
of the term, and leases that end together share an entry. A lease may so last up to 1/64 longer than
requested, and never shorter.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LeaseEnds", "LeaseTable", "Terms", "rounded_end"]

# Ends are rounded up to this fraction of a term, which bounds the entries per holder.
PARTS = 64
# Minimum number of entries before those of settled or moved leases are pruned; they must also
# outnumber the live ones.
ENTRIES_MIN = 64


def rounded_end(now_ms: int, term_ms: int) -> int:
    """Return the rounded end of a term that begins now."""
    grain = max(1, term_ms // PARTS)
    return -(-(now_ms + term_ms) // grain) * grain


class Terms:
    """Leases of one holder: runs of numbers (delivery tags), best in their order.

    Settled numbers are not removed: the caller checks which of an ended run are still leased.
    """

    __slots__ = ("_heap", "_last")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []  # (end, first, last)
        self._last: tuple[int, int, int] | None = None  # the newest run, which may still grow

    def __bool__(self) -> bool:
        return self._last is not None or bool(self._heap)

    def begin(self, first: int, last: int, end_ms: int) -> None:
        """Record that the numbers [first, last] are leased until `end_ms`."""
        newest = self._last
        if newest is not None:
            if newest[0] == end_ms and newest[2] < first:
                self._last = (end_ms, newest[1], last)
                return
            heapq.heappush(self._heap, newest)
        self._last = (end_ms, first, last)

    @property
    def next_ms(self) -> int | None:
        """Time when the next leases end; None if there are none."""
        ends = [entry[0] for entry in (self._last, *self._heap[:1]) if entry is not None]
        return min(ends, default=None)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Remove ended leases and return their runs [first, last]."""
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[1:])
        if self._last is not None and self._last[0] <= now_ms:
            due.append(self._last[1:])
            self._last = None
        return due


class LeaseEnds:
    """Ends of single leases, by their numbers: delivery tags or offsets."""

    __slots__ = ("_ends", "_heap")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (end, number); outdated if `_ends` says otherwise

    def __contains__(self, number: int) -> bool:
        return number in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def move(self, number: int, end_ms: int) -> None:
        """Set the end of the lease of `number`, replacing an earlier one."""
        self._ends[number] = end_ms
        heapq.heappush(self._heap, (end_ms, number))

    @property
    def next_ms(self) -> int | None:
        """Time when the next lease ends, or earlier; None if there are none."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[int]:
        """Remove ended leases and return their numbers, ascending."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms:
            end_ms, number = heapq.heappop(self._heap)
            if self._ends.get(number) == end_ms:
                del self._ends[number]
                due.append(number)
        return sorted(due)

    def outside(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the runs of [first, last] that have no such end."""
        if not self._ends:
            return [(first, last)]
        found: list[tuple[int, int]] = []
        begin = first
        for number in range(first, last + 1):
            if number in self._ends:
                if begin < number:
                    found.append((begin, number - 1))
                begin = number + 1
        if begin <= last:
            found.append((begin, last))
        return found

    def prune(self, count: int, is_live: Callable[[int], bool]) -> None:
        """Remove settled numbers if there are many.

        `count` is the number of all leases of the holder.
        """
        if len(self._heap) > 2 * count + ENTRIES_MIN:
            self._ends = {number: end for number, end in self._ends.items() if is_live(number)}
            self._heap = [(end, number) for number, end in self._ends.items()]
            heapq.heapify(self._heap)


class LeaseTable:
    """Leases by the offsets of their records.

    A lease is identified by its token, which distinguishes it from other leases of the same record.
    Leases whose term is over are removed.
    """

    __slots__ = ("_ends", "_tokens")

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._ends = LeaseEnds()  # those of returned leases, too, until they are pruned

    def __len__(self) -> int:
        return len(self._tokens)

    def begin(self, offsets: Iterable[int], token: int, end_ms: int) -> None:
        """Lease free offsets until `end_ms`."""
        for offset in offsets:
            assert offset not in self._tokens, "a record is leased once"
            self._tokens[offset] = token
            self._ends.move(offset, end_ms)

    def holds(self, offset: int, token: int) -> bool:
        """Whether this lease is still active."""
        return self._tokens.get(offset) == token

    def end(self, offset: int, token: int) -> bool:
        """End a lease on request of its holder. Returns False if it was over already."""
        if not self.holds(offset, token):
            return False
        del self._tokens[offset]
        self._prune()
        return True

    def extend(self, offset: int, token: int, end_ms: int) -> bool:
        """Set the end of a lease, earlier or later than before.

        Returns False if it was over already.
        """
        if not self.holds(offset, token):
            return False
        self._ends.move(offset, end_ms)
        self._prune()
        return True

    @property
    def next_ms(self) -> int | None:
        """Time when the next lease ends, or earlier; None if there are none."""
        return self._ends.next_ms

    def take_due(self, now_ms: int) -> list[int]:
        """Remove ended leases and return their offsets, ascending."""
        over = self._ends.take_due(now_ms)
        return [offset for offset in over if self._tokens.pop(offset, None) is not None]

    def _prune(self) -> None:
        self._ends.prune(len(self._tokens), self._tokens.__contains__)
