"""Removal of the segments of one log that are not needed any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports.ranges import RangeSet
from leveret.storage.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from leveret.storage.reader import LogReader
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments
    from leveret.storage.services import LogServices

__all__ = ["Reclaimer"]

IDLE_ROLL_SHARE = 8  # a settled segment of at least an eighth of the maximum is rolled, to go
READ_SECONDS = 0.1  # until segments that were being read are tried again


class Reclaimer:
    """Removes sealed segments that hold nothing unsettled, nor anything from `kept_from` on.

    Where settlements are kept (`keeps`), a segment is removed only once all its settlements are
    durable: they have been written (`pending` are not), and a flush that began after that has
    ended. So after any crash, an offset that no file holds is settled in the files that are there.
    The `condemned` ones wait only for a flush. `covered` is the newest segment whose checkpoint is
    durable. `removed` are settled offsets of no file.
    """

    __slots__ = (
        "_being_read",
        "_directory",
        "_ended",
        "_hidden",
        "_keeps",
        "_needed",
        "_reader",
        "_segments",
        "_services",
        "_settled",
        "condemned",
        "covered",
        "kept_from",
        "on_remove",
        "pending",
        "removed",
    )

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        segments: Segments,
        reader: LogReader,
        *,
        settled: RangeSet,
        hidden: Sequence[RangeSet],
        removed: RangeSet,
        keeps: bool,
    ) -> None:
        self.covered: Segment | None = None
        self.kept_from: int | None = None
        self.removed = removed
        self.on_remove: list[Callable[[Sequence[tuple[int, int]]], None]] = []
        self._needed: dict[str, int] = {}  # by reader: the offset from which it needs records
        self.pending = RangeSet()
        self._services = services
        self._directory = directory
        self._segments = segments
        self._reader = reader
        self._settled = settled
        self._hidden = hidden  # settled offsets that nobody reads, though files have them
        self._keeps = keeps
        self.condemned: list[Segment] = []  # settled, and that is written down
        self._ended = 0  # of the condemned ones, ever
        self._being_read: list[Segment] = []  # that could go otherwise

    def use(self, settled: RangeSet) -> None:
        """Remove segments of which all is in another set from now on."""
        self._settled = settled

    def is_waiting(self, segment: Segment) -> bool:
        """Whether a segment is about to be removed."""
        return segment in self.condemned or segment in self._being_read

    def keep_from(self, reader: str, offset: int | None) -> tuple[int, int] | None:
        """Keep what a reader needs from now on; None: nothing.

        Returns the range of offsets that nobody needs any more, to be reclaimed.
        """
        before = self.kept_from
        if offset is None:
            self._needed.pop(reader, None)
        else:
            self._needed[reader] = offset
        self.kept_from = min(self._needed.values(), default=None)
        if before is None or not self._segments.items:
            return None
        stop = self._segments.active.base if self.kept_from is None else self.kept_from
        return (before, stop) if before < stop else None

    def reclaim(self, first: int, stop: int) -> None:
        """Look for removable segments with offsets in [first, stop), which were settled."""
        self._condemn(self._segments.overlapping(first, stop))

    def reclaim_sealed(self) -> None:
        """Look for removable ones among all sealed segments."""
        self._condemn(self._segments.items[:-1])

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

    @property
    def waiting(self) -> int:
        """Segments that have ever been condemned: a flush that begins now covers so many."""
        return self._ended + len(self.condemned)

    def flushed(self, waiting: int) -> None:
        """Remove the segments that a flush has covered, which began when so many were `waiting`."""
        self._remove(waiting - self._ended)

    def remove_flushed(self) -> None:
        """Remove all waiting segments: nothing was written since the last flush."""
        self._remove(len(self.condemned))

    def _condemn(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if self._keeps and (self.covered is None or segment.file >= self.covered.file):
                continue
            if self.kept_from is not None and segment.stop > self.kept_from:
                break
            if not self._settled.contains(segment.base, segment.stop):
                continue
            if segment in self.condemned or self.pending.overlap(segment.base, segment.stop):
                continue
            self.condemned.append(segment)
        if not self._keeps:
            self.remove_flushed()

    def _remove(self, count: int) -> None:
        """Remove the first `count` waiting segments, except those needed again or being read."""
        due, self.condemned = self.condemned[:count], self.condemned[count:]
        self._ended += len(due)
        self._release(due)

    def _release(self, due: Sequence[Segment]) -> None:
        for segment in due:
            if segment not in self._segments.items:
                continue  # cut off, since a flush has failed
            if self.kept_from is not None and segment.stop > self.kept_from:
                continue  # the next look finds it again
            if segment.pins:
                if not self._being_read:
                    self._services.loop.call_later(READ_SECONDS, self._look_again)
                if segment not in self._being_read:
                    self._being_read.append(segment)
                continue
            self._services.open_files.forget(segment)
            base, stop = segment.base, segment.stop
            self._services.committer.submit(self._segments.remove(segment), self.unlinked)
            for ranges in self._hidden:
                ranges.remove(base, stop)
            self._reader.forget()
            self.removed.add(base, stop)
            for callback in self.on_remove:
                callback([(base, stop)])

    def _look_again(self) -> None:
        """Try again to remove segments that were being read."""
        due, self._being_read = self._being_read, []
        self._release(due)

    def close(self) -> None:
        """Stop removing segments, because the log is closed or deleted."""
        self._being_read = []
        self.on_remove.clear()

    def unlinked(self, error: OSError | None) -> None:
        """Log an error of removing files."""
        if error is not None:
            self._services.warn(
                str(storage_error("remove a settled segment in", self._directory, error))
            )
