"""When leases end: of deliveries on a channel, and of what was pulled.

A lease is a record that somebody has and has not settled. Its term is the visibility timeout: once
that is over, the record goes back to its queue. Called by the channels (`Terms`, `Extensions`: by
delivery tag) and by the pull machine (`LeaseTable`: by offset). Times are milliseconds since 1970,
passed in; nothing here knows a queue.

Deliveries are noted in runs and not one by one: a term's end is rounded up to a small part of the
term, and what ends together is one entry. A lease may so last up to 1/64 longer than it was asked
to, and never shorter.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["TERM_MS_MAX", "Extensions", "LeaseTable", "Terms", "rounded_end"]

TERM_MS_MAX = 12 * 3_600_000  # as in SQS: who needs longer shall say now and then that it lives
# Ends are rounded up to this part of a term: so many entries are kept of a holder, and few more.
PARTS = 64
# Entries of leases that were settled or moved meanwhile are weeded out when they are this many, and
# more than those that can count.
ENTRIES_MIN = 64


def rounded_end(now_ms: int, term_ms: int) -> int:
    """When a term ends that begins now."""
    grain = max(1, term_ms // PARTS)
    return -(-(now_ms + term_ms) // grain) * grain


class Terms:
    """The leases of one holder, whose numbers (delivery tags) only go up.

    Settled ones are not taken out: who hears that a run has ended looks what is left of it.
    """

    __slots__ = ("_heap", "_last")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []  # (end, first, last)
        self._last: tuple[int, int, int] | None = None  # the newest, which may still grow

    def __bool__(self) -> bool:
        return self._last is not None or bool(self._heap)

    def begin(self, first: int, last: int, end_ms: int) -> None:
        """The numbers [first, last] are leased until then."""
        newest = self._last
        if newest is not None:
            if newest[0] == end_ms:
                self._last = (end_ms, newest[1], last)
                return
            heapq.heappush(self._heap, newest)
        self._last = (end_ms, first, last)

    @property
    def next_ms(self) -> int | None:
        """When the next of them end."""
        ends = [entry[0] for entry in (self._last, *self._heap[:1]) if entry is not None]
        return min(ends, default=None)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Remove what has ended: its runs [first, last]."""
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[1:])
        if self._last is not None and self._last[0] <= now_ms:
            due.append(self._last[1:])
            self._last = None
        return due


class Extensions:
    """Numbers whose leases end at another time than they would have by their terms."""

    __slots__ = ("_ends", "_heap")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (end, number); those that were moved count no more

    def __contains__(self, number: int) -> bool:
        return number in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def move(self, number: int, end_ms: int) -> None:
        """The lease of `number` ends then, whatever was said of it before."""
        self._ends[number] = end_ms
        heapq.heappush(self._heap, (end_ms, number))

    @property
    def next_ms(self) -> int | None:
        """When the next of them ends, or a time before."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[int]:
        """Remove what has ended."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms:
            end_ms, number = heapq.heappop(self._heap)
            if self._ends.get(number) == end_ms:
                del self._ends[number]
                due.append(number)
        return sorted(due)

    def outside(self, first: int, last: int) -> list[tuple[int, int]]:
        """The runs of [first, last] that were not extended."""
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
        """Forget settled ones where they are many; `count` is how many leases there are at all."""
        if len(self._heap) > 2 * count + ENTRIES_MIN:
            self._ends = {number: end for number, end in self._ends.items() if is_live(number)}
            self._heap = [(end, number) for number, end in self._ends.items()]
            heapq.heapify(self._heap)


class Lease(NamedTuple):
    """`token` tells it from others of the same record."""

    token: int
    end_ms: int


class LeaseTable:
    """Leases that are known one by one, by the offsets of their records.

    Whoever names one says its token. One whose term is over is not there any more.
    """

    __slots__ = ("_heap", "_leases")

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._heap: list[tuple[int, int, int]] = []  # (end, offset, token)

    def __len__(self) -> int:
        return len(self._leases)

    def begin(self, offsets: Iterable[int], token: int, end_ms: int) -> None:
        """Nobody has these offsets; they are leased until then."""
        for offset in offsets:
            assert offset not in self._leases, "a record is leased once"
            self._leases[offset] = Lease(token, end_ms)
            heapq.heappush(self._heap, (end_ms, offset, token))

    def holds(self, offset: int, token: int) -> bool:
        """Whether this lease is not over."""
        lease = self._leases.get(offset)
        return lease is not None and lease.token == token

    def end(self, offset: int, token: int) -> bool:
        """The lease is over, by the word of who has it. False: it was over already."""
        if not self.holds(offset, token):
            return False
        del self._leases[offset]
        self._prune()
        return True

    def extend(self, offset: int, token: int, end_ms: int) -> bool:
        """The lease ends then, sooner or later than before. False: it was over already."""
        if not self.holds(offset, token):
            return False
        self._leases[offset] = Lease(token, end_ms)
        heapq.heappush(self._heap, (end_ms, offset, token))
        self._prune()
        return True

    @property
    def next_ms(self) -> int | None:
        """When the next lease ends, or a time before."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[int]:
        """Remove the leases whose time is over: their offsets in order."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms:
            end_ms, offset, token = heapq.heappop(self._heap)
            if self._leases.get(offset) == (token, end_ms):
                del self._leases[offset]
                due.append(offset)
        return sorted(due)

    def _prune(self) -> None:
        if len(self._heap) > 2 * len(self._leases) + ENTRIES_MIN:
            self._heap = [(end, offset, token) for offset, (token, end) in self._leases.items()]
            heapq.heapify(self._heap)
