"""Leases of a holder by their numbers; nothing here knows the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.batch_leases.rules import LeaseRefusedError
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leveret.features.batch_leases.rules import PartRanges

__all__ = ["BatchLease", "LeaseBook"]


class BatchLease:
    """Leased messages of one number, by partition. `size` are their bytes, about.

    `shown` are messages that can be read under the number as well: it had them once, and others
    have them now, or could get them first.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.parts: PartRanges = {}
        self.shown: PartRanges = {}
        self.size = 0

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(ranges.count for ranges in self.parts.values())

    def add(self, partition: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Add offsets of a partition."""
        self.parts.setdefault(partition, RangeSet()).add_all(ranges)

    def show(self, wanted: PartRanges, found: PartRanges) -> None:
        """Let of the offsets `wanted` those be read that were `found`."""
        for partition, ranges in wanted.items():
            shown = self.shown.setdefault(partition, RangeSet())
            for each in ranges:
                shown.remove(*each)
            shown.add_all(found.get(partition, ()))

    def readable(self, partition: int) -> RangeSet:
        """Return the offsets of a partition that can be read, as a new set."""
        found = self.part(partition).copy()
        found.add_all(self.shown.get(partition, ()))
        return found

    def part(self, partition: int) -> RangeSet:
        """Return the offsets of a partition, none if it has none."""
        return self.parts.get(partition) or RangeSet()


class LeaseBook:
    """Leases of one holder. No offset is in two of them; settled ones are not there."""

    def __init__(self) -> None:
        self._leases: dict[int, BatchLease] = {}
        self.settled = -1  # the highest number that was settled

    def __iter__(self) -> Iterator[BatchLease]:
        return iter(self._leases.values())

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def count(self) -> int:
        """Number of messages in all leases."""
        return sum(lease.count for lease in self._leases.values())

    @property
    def size(self) -> int:
        """Bytes of the messages in all leases, about."""
        return sum(lease.size for lease in self._leases.values())

    def find(self, number: int) -> BatchLease | None:
        """Return a lease, None if it is not known. Raises LeaseRefusedError if it was settled."""
        if number <= self.settled:
            raise LeaseRefusedError("settled", f"lease {number} was settled already")
        return self._leases.get(number)

    def open(self, number: int) -> BatchLease:
        """Return a lease, a new one if it is not known. Raises LeaseRefusedError."""
        found = self.find(number)
        if found is None:
            found = self._leases[number] = BatchLease(number)
        return found

    def unknown(self, partition: int, ranges: RangeSet) -> list[tuple[int, int]]:
        """Return those of `ranges` of a partition that no lease has."""
        left = list(ranges)
        for lease in self._leases.values():
            held = lease.part(partition)
            if held:
                left = [gap for each in left for gap in held.gaps(*each)]
        return left

    def settle(self, number: int) -> PartRanges:
        """Remove the leases up to `number`; return what they had."""
        self.settled = max(self.settled, number)
        return self._take([each for each in self._leases if each <= number])

    def clear(self) -> PartRanges:
        """Remove all leases; return what they had."""
        return self._take(list(self._leases))

    def _take(self, numbers: list[int]) -> PartRanges:
        taken = BatchLease(-1)
        for number in numbers:
            for partition, ranges in self._leases.pop(number).parts.items():
                taken.add(partition, ranges)
        return taken.parts
