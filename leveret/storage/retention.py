"""Retention of a log's oldest segments, by size and by age, independent of consumers.

Records beyond the limits are settled like any others; the log then removes segments as always, and
recovery needs to know nothing of retention. A segment is as old as its youngest record, which came
no later than the first batch of the segment behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def segment_bytes(retention: Retention | None, bytes_max: int) -> int:
    """Return the segment size limit of a log in bytes, on a node that allows `bytes_max`."""
    if retention is None or retention.segment_bytes_max is None:
        return bytes_max
    return max(min(retention.segment_bytes_max, bytes_max), min(SEGMENT_BYTES_MIN, bytes_max))


class Retainer:
    """Decides which segments exceed a log's retention; `settle_below(offset)` settles them."""

    def __init__(
        self,
        files: FileSystem,
        segments: Segments,
        committer: Committer,
        *,
        wall_ms: Callable[[], int],
        is_given_up: Callable[[Segment], bool],
        settle_below: Callable[[int], None],
        warn: Callable[[str], None],
    ) -> None:
        self.retention: Retention | None = None
        self._files = files
        self._segments = segments
        self._committer = committer
        self._wall_ms = wall_ms
        self._is_given_up = is_given_up
        self._settle_below = settle_below
        self._warn = warn
        self._looking_up = False

    def check(self) -> None:
        """Settle what exceeds the limits now. Cheap if nothing does."""
        if self.retention is None:
            return
        kept = [segment for segment in self._segments.items if not self._is_given_up(segment)]
        count = max(self._too_many(kept), self._too_old(kept))
        if count:
            self._settle_below(kept[count].base)

    def _too_many(self, kept: list[Segment]) -> int:
        """Number of the oldest segments that must go for the rest to fit."""
        bytes_max = self.retention.bytes_max if self.retention is not None else None
        if bytes_max is None:
            return 0
        size = sum(segment.size for segment in kept)
        for count, segment in enumerate(kept[:-1]):
            if size <= bytes_max:
                return count
            size -= segment.size
        return max(len(kept) - 1, 0)

    def _too_old(self, kept: list[Segment]) -> int:
        """Number of the oldest segments that are too old, as far as their times are known."""
        age_ms_max = self.retention.age_ms_max if self.retention is not None else None
        if age_ms_max is None:
            return 0
        expired_ms = self._wall_ms() - age_ms_max
        for count, after in enumerate(kept[1:]):
            if after.began_ms is None:
                self._look_up(kept[count + 1 : count + 1 + LOOKED_UP_MAX])
                return count
            if after.began_ms >= expired_ms:
                return count
        return max(len(kept) - 1, 0)

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
