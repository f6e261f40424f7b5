"""Removing the segments of one log that nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.storage.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.ports.ranges import RangeSet
    from leveret.storage.reader import LogReader
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments
    from leveret.storage.services import LogServices

__all__ = ["Reclaimer"]

IDLE_ROLL_SHARE = 8  # a settled segment of at least an eighth of the maximum is rolled, to go


class Reclaimer:
    """Removes sealed segments that hold nothing unsettled, nor anything from `keep_from` on.

    Where settlements are kept (`keeps`), their control batches must not be needed either: a later
    checkpoint is durable. `covered` is the newest segment whose checkpoint is.
    """

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        segments: Segments,
        reader: LogReader,
        *,
        settled: RangeSet,
        undone: RangeSet,
        keeps: bool,
    ) -> None:
        self.covered: Segment | None = None
        self.keep_from: int | None = None
        self._services = services
        self._directory = directory
        self._segments = segments
        self._reader = reader
        self._settled = settled
        self._undone = undone
        self._keeps = keeps

    def reclaim(self, first: int, stop: int) -> None:
        """Offsets in [first, stop) are needed no longer: remove what can go of their segments."""
        self._remove(self._segments.overlapping(first, stop))

    def reclaim_sealed(self) -> None:
        """Remove what can go of all sealed segments."""
        self._remove(self._segments.items[:-1])

    def roll_settled(self, end: int) -> None:
        """Seal a large last segment that is settled entirely, so that it can be removed."""
        size = self._segments.position * IDLE_ROLL_SHARE
        if size < self._services.segment_bytes_max or not self._segments.items:
            return
        base = self._segments.active.base
        if base < end and self._settled.contains(base, end):
            self._segments.roll(end)
            if not self._keeps:
                self.reclaim_sealed()

    def _remove(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if self._keeps and (self.covered is None or not precedes(segment, self.covered)):
                continue
            if self.keep_from is not None and segment.stop > self.keep_from:
                break
            if segment.pins or not self._settled.contains(segment.base, segment.stop):
                continue
            self._services.open_files.forget(segment)
            self._services.committer.submit(self._segments.remove(segment), self.removed)
            self._undone.remove(segment.base, segment.stop)
            self._reader.forget()

    def removed(self, error: OSError | None) -> None:
        """Files were removed, or could not be."""
        if error is not None:
            self._services.warn(
                str(storage_error("remove a settled segment in", self._directory, error))
            )


def precedes(segment: Segment, other: Segment) -> bool:
    """Whether a segment stands before another in its log."""
    return (segment.base, segment.generation) < (other.base, other.generation)
