"""The consumers of one priority: whoever was served longest ago is next.

Who can take nothing is set aside when its turn comes, and keeps its place: it is not asked again
until somebody says that it can take more (`wake`). So a queue costs what its consumers can take,
however many wait for their acknowledgements.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.core.queues.machine import Consumer

# Entries of consumers that were served out of their turn, or are gone, are left in the heap; with
# more than these, and as many again as there are consumers, it is made anew.
STALE_ENTRIES_MAX = 64


class ServiceLine:
    """A heap of places, by the turn in which each consumer was served last."""

    __slots__ = ("_aside", "_entries", "_places", "_turns", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self._turns = count()
        self._places: dict[Consumer, int] = {}
        self._entries: list[tuple[int, Consumer]] = []  # no two have the same place
        self._aside: set[Consumer] = set()  # with no entry, until they are woken

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Consumer]:
        """Go through all in the order in which they would be served."""
        return iter(sorted(self._places, key=self._places.__getitem__))

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self._places

    def first(self) -> Consumer:
        """Return who is next, whatever it can take. There must be somebody."""
        self.wake_all()
        entries = self._entries
        while self._places.get(entries[0][1]) != entries[0][0]:
            heappop(entries)
        return entries[0][1]

    def add(self, consumer: Consumer) -> None:
        """Let a consumer take turns, as the last."""
        self._stand_last(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Give a consumer no more turns."""
        del self._places[consumer]
        self._aside.discard(consumer)
        self._tidy()

    def next_able(self) -> tuple[Consumer, int] | None:
        """Return who is next of those who can take something, and how much; None: nobody can."""
        entries = self._entries
        while entries:
            place, consumer = entries[0]
            if self._places.get(consumer) == place:
                capacity = consumer.capacity()
                if capacity > 0:
                    return consumer, capacity
                self._aside.add(consumer)
            heappop(entries)
        return None

    def another_is_able(self, consumer: Consumer) -> bool:
        """Whether somebody else can take something, too."""
        found = self.next_able()
        if found is None or found[0] is not consumer:
            return found is not None
        first = heappop(self._entries)
        able = self.next_able() is not None
        heappush(self._entries, first)
        return able

    def served(self, consumer: Consumer) -> None:
        """Let a consumer stand last that was served."""
        entries = self._entries
        if entries and entries[0][1] is consumer:
            place = self._places[consumer] = next(self._turns)
            heapreplace(entries, (place, consumer))
        else:
            self._aside.discard(consumer)
            self._stand_last(consumer)

    def wake(self, consumer: Consumer) -> None:
        """Ask a consumer again, in its old place: it may be able to take something."""
        if consumer in self._aside:
            self._aside.discard(consumer)
            heappush(self._entries, (self._places[consumer], consumer))

    def wake_all(self) -> None:
        """Ask everybody again."""
        if self._aside:
            self._aside.clear()
            self._make_anew()

    def _stand_last(self, consumer: Consumer) -> None:
        place = self._places[consumer] = next(self._turns)
        heappush(self._entries, (place, consumer))
        self._tidy()

    def _tidy(self) -> None:
        if len(self._entries) > 2 * len(self._places) + STALE_ENTRIES_MAX:
            self._make_anew()

    def _make_anew(self) -> None:
        self._entries = [
            (place, consumer)
            for consumer, place in self._places.items()
            if consumer not in self._aside
        ]
        heapify(self._entries)
