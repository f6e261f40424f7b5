"""A range read of exactly the records that a lease has of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.range_reads.bounds import Bounds
from leveret.features.range_reads.range_read import RangeRead
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from leveret.core.queues.queue import Queue
    from leveret.features.range_reads.range_reads import RangeReads
    from leveret.features.range_reads.rules import RangeRequest

__all__ = ["LeasedRead"]


class LeasedRead(RangeRead):
    """Reads leased records; everything between them is passed over, as if it were not there."""

    passed_over = RecordFlag(0)

    def __init__(
        self, partition: Queue, request: RangeRequest, reads: RangeReads, leased: RangeSet
    ) -> None:
        super().__init__(partition, request, reads, reads.clock)
        self._leased = leased
        self._end = max(leased.stop or 0, request.offset)
        self._between = leased.gaps(request.offset, self._end)

    def _holes(self) -> list[RangeSet]:
        return [*super()._holes(), self._between]

    def _bounds(self) -> Bounds:
        return Bounds(self._leased.first or 0, self._end)

    def _expected(self, first: int, stop: int) -> int:
        return self._leased.overlap(first, stop)
