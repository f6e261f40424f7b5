"""Batches of a stream that consumes a queue: what is leased, and how it is divided into tasks.

`QueueBatch` is what Spark keeps in the query's checkpoint, as JSON:

    {"holder": "…", "number": 7, "log": "ea503252eabd3663", "ranges": {"0": [[120, 180]]}}

It has the offsets as well, since the broker keeps leases in memory: after its restart they are
leased again by these. The batch with the number 0 has nothing; with it a new query begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.range_reader import LeasedOffsets, LeaseName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["LeasedRanges", "QueueBatch", "divide_lease"]


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """One micro-batch: the number of a lease, and what it has."""

    holder: str
    number: int = 0
    leased: LeasedOffsets = field(default_factory=LeasedOffsets)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes down. Equal batches give equal text: Spark compares that."""
        return {
            "holder": self.holder,
            "number": self.number,
            "log": self.leased.log,
            "ranges": self.leased.ranges_json(),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> QueueBatch:
        """Return a batch that was written down. Raises ValueError for something else."""
        try:
            leased = LeasedOffsets(str(told["log"]), LeasedOffsets.parse_ranges(told["ranges"]))
            return cls(str(told["holder"]), int(told["number"]), leased)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"no batch of a queue that leveret consumes, but another source's: {told!r}"
            ) from error

    def name(self, queue: str) -> LeaseName:
        """Return the lease's name."""
        return LeaseName(queue, self.holder, self.number)


class LeasedRanges(NamedTuple):
    """Leased ranges [first, end) of one partition, ascending, which one task reads."""

    partition: int
    ranges: tuple[tuple[int, int], ...]


def divide_lease(leased: LeasedOffsets, count_min: int) -> list[LeasedRanges]:
    """Return what a lease has, in about `count_min` pieces of about one size, none empty.

    There is one piece for each partition at least.
    """
    size = max(1, -(-leased.messages // max(count_min, 1)))
    return [
        LeasedRanges(number, piece)
        for number in sorted(leased.ranges)
        for piece in _pieces(leased.ranges[number], size)
    ]


def _pieces(ranges: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield ranges cut into pieces of `size` messages; the last one may be smaller."""
    piece: list[tuple[int, int]] = []
    room = size
    for first, end in ranges:
        begin = first
        while begin < end:
            stop = min(end, begin + room)
            piece.append((begin, stop))
            room -= stop - begin
            begin = stop
            if not room:
                yield tuple(piece)
                piece, room = [], size
    if piece:
        yield tuple(piece)
