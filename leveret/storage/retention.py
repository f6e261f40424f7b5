"""Retention of a log's oldest segments, by size, age and number of records.

A stream's records beyond the limits are settled like any others. Other logs keep settled records
within the limits. Either way the log then removes segments as always, and recovery needs to know
nothing of retention.

A segment is as old as its youngest record. Segments begin with a checkpoint whose time is not
before that of any earlier record (see Segments), even where the wall clock was set back during the
run: so a segment is at least as old as the first batch of the segment behind it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.storage.files import storage_error
from leveret.storage.times import began_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports import Retention
    from leveret.storage.commit import Committer
    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments

__all__ = ["Retainer", "segment_bytes"]

# A smaller segment costs more in files than it saves in bytes, and clients choose the size.
SEGMENT_BYTES_MIN = 64 * 1024
LOOKED_UP_MAX = 64  # times read at once from segments of earlier runs: some milliseconds of work
# A segment is sealed after this part of the maximum age, so that a topic with few records keeps
# them little longer than it should.
AGE_PARTS = 8
SEALED_AFTER_MS_MIN = 60_000
# Compaction leaves alone what is being written: so long a message may wait for it at most.
SEALED_FOR_COMPACTION_MS = 24 * 3_600_000


def segment_bytes(retention: Retention | None, bytes_max: int) -> int:
    """Return the segment size limit of a log in bytes, on a node that allows `bytes_max`."""
    if retention is None or retention.segment_bytes_max is None:
        return bytes_max
    return max(min(retention.segment_bytes_max, bytes_max), min(SEGMENT_BYTES_MIN, bytes_max))


def _sealed_after_ms(retention: Retention) -> int | None:
    """Return how old the segment that is written to may become; None: as old as it likes."""
    times = [SEALED_FOR_COMPACTION_MS] if retention.compaction is not None else []
    if retention.age_ms_max is not None:
        times.append(max(retention.age_ms_max // AGE_PARTS, SEALED_AFTER_MS_MIN))
    return min(times, default=None)


class Retainer:
    """Decides which segments exceed a log's retention.

    `is_given_up(segment)` says which no longer count, `apply(offset)` lets go of the records below
    an offset. `end()` is the log's end, `waits_at()` the offset at which a reader is that retention
    must wait for, None where there is none.
    """

    def __init__(
        self,
        files: FileSystem,
        segments: Segments,
        committer: Committer,
        *,
        wall_ms: Callable[[], int],
        end: Callable[[], int],
        waits_at: Callable[[], int | None],
        is_given_up: Callable[[Segment], bool],
        apply: Callable[[int], None],
        warn: Callable[[str], None],
    ) -> None:
        self.retention: Retention | None = None
        self._files = files
        self._segments = segments
        self._committer = committer
        self._wall_ms = wall_ms
        self._end = end
        self._waits_at = waits_at
        self._is_given_up = is_given_up
        self._apply = apply
        self._warn = warn
        self._looking_up = False

    def check(self) -> None:
        """Let go of what exceeds the limits now. Cheap if nothing does."""
        retention = self.retention
        if retention is None or not self._segments.items:
            return
        self._seal_old(retention)
        kept = self._kept()
        if not kept:
            return
        stop = self._beyond(kept, retention)
        waits_at = self._waits_at()
        if waits_at is not None and waits_at < stop:
            stop = min(stop, self._held_from(kept, waits_at, retention))
        self._apply(stop)

    def waits_at(self) -> int | None:
        """Return the offset from which on all is kept for a reader that is behind, if any is."""
        retention, waits_at = self.retention, self._waits_at()
        kept = self._kept()
        if retention is None or waits_at is None or not kept:
            return waits_at
        return self._held_from(kept, waits_at, retention)

    def _kept(self) -> list[Segment]:
        return [segment for segment in self._segments.items if not self._is_given_up(segment)]

    def _held_from(self, kept: list[Segment], waits_at: int, retention: Retention) -> int:
        """Return from where on records are kept for a reader at `waits_at`: not for ever."""
        return max(waits_at, self._beyond(kept, retention.while_waiting))

    def _seal_old(self, retention: Retention) -> None:
        """Seal the segment that is written to if its records would be kept for too long."""
        active, end = self._segments.active, self._end()
        after_ms = _sealed_after_ms(retention)
        if after_ms is None or end == active.base:
            return
        if active.began_ms is None:
            self._look_up([active])
            return
        if active.began_ms + after_ms > self._wall_ms():
            return
        try:
            self._segments.roll(end)
        except StorageError as error:
            self._warn(f"{error}; its records are kept until it can be sealed")

    def _beyond(self, kept: list[Segment], retention: Retention) -> int:
        """Return the offset below which records of the `kept` segments exceed some limit."""
        count = max(
            self._too_large(kept, retention.bytes_max),
            self._too_many(kept, retention.records_max),
            self._too_old(kept, retention.age_ms_max),
        )
        return kept[count].base

    @staticmethod
    def _too_large(kept: list[Segment], bytes_max: int | None) -> int:
        """Number of the oldest segments that must go for the rest to fit."""
        if bytes_max is None:
            return 0
        size = sum(segment.size for segment in kept)
        for count, segment in enumerate(kept[:-1]):
            if size <= bytes_max:
                return count
            size -= segment.size
        return len(kept) - 1

    def _too_many(self, kept: list[Segment], records_max: int | None) -> int:
        """Number of the oldest segments without which there are `records_max` records or more."""
        if records_max is None:
            return 0
        first = self._end() - records_max
        return sum(segment.stop <= first for segment in kept[:-1])

    def _too_old(self, kept: list[Segment], age_ms_max: int | None) -> int:
        """Number of the oldest segments that are too old, as far as their times are known."""
        if age_ms_max is None:
            return 0
        expired_ms = self._wall_ms() - age_ms_max
        for count, after in enumerate(kept[1:]):
            if after.began_ms is None:
                self._look_up(kept[count + 1 : count + 1 + LOOKED_UP_MAX])
                return count
            if after.began_ms >= expired_ms:
                return count
        return len(kept) - 1

    def _look_up(self, segments: list[Segment]) -> None:
        """Read the times of segments in a thread, then check again."""
        if self._looking_up:
            return
        self._looking_up = True
        for segment in segments:
            segment.pins += 1
        times: list[int] = []

        def read() -> None:
            times.extend(began_ms(self._files, segment) for segment in segments)

        def done(error: OSError | None) -> None:
            self._looking_up = False
            for segment in segments:
                self._segments.unpin(segment)
            if error is not None:
                failure = storage_error("read", segments[0].directory, error)
                self._warn(f"{failure}; nothing there is deleted for its age meanwhile")
                return
            for segment, time_ms in zip(segments, times, strict=True):
                segment.began_ms = time_ms
            self.check()

        self._committer.submit(read, done)
