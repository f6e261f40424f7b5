"""Search for offsets by time, from the timestamps in batch headers.

For worker threads: everything here waits for the device. A segment's first batch is its checkpoint,
written after all records of the segment before it, and before all of its own. So segments are
searched by that one time, batches within a segment by the sparse index, and only the last stretch
is read. A wall clock that was set back makes the answer as wrong as the timestamps are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.records import HEADER_BYTES, first_time_of
from leveret.storage.damage import sound_batches
from leveret.storage.encryption import MissingKeyError
from leveret.storage.files import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.ports.records import Batch
    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment

__all__ = ["TimeSearch", "began_ms"]


def began_ms(files: FileSystem, segment: Segment) -> int:
    """Return the time of a segment's first batch in ms; 0 if unknown. Raises OSError."""
    if segment.began_ms is not None:
        return segment.began_ms
    handle = files.open(segment.path)
    try:
        return _time_at(files, handle, 0)
    finally:
        files.close(handle)


def _time_at(files: FileSystem, handle: int, position: int) -> int:
    """Return the time of the batch at `position`; 0 if none can be read."""
    try:
        return first_time_of(read_exactly(files, handle, position, HEADER_BYTES))
    except CorruptBatchError:
        return 0  # reading it meets the damage again, and deals with it


@dataclass(frozen=True, slots=True)
class TimeSearch:
    """Search through `segments` for the first record stored at `time_ms` or later.

    The segments are pinned by the caller; those that are written to meanwhile are searched up to
    where they ended when the search was made.
    """

    files: FileSystem
    segments: Sequence[Segment]
    time_ms: int
    end: int  # the answer where no record is as late
    unseal: Callable[[Batch], Batch]

    def run(self) -> int:
        """Return the offset, `end` if all records are older. Raises OSError."""
        segments = [
            segment for segment in self.segments if segment.size
        ]  # a crash leaves empty ones
        if not segments:
            return self.end
        found = self._in_segment(segments[self._last_begun_before(segments)])
        return self.end if found is None else found

    def _last_begun_before(self, segments: Sequence[Segment]) -> int:
        """Return the index of the segment to search: records of earlier ones are all too old.

        One whose beginning cannot be read may be too young.
        """
        low, high = 0, len(segments)
        while high - low > 1:
            middle = (low + high) // 2
            if 0 < began_ms(self.files, segments[middle]) < self.time_ms:
                low = middle
            else:
                high = middle
        return low

    def _in_segment(self, segment: Segment) -> int | None:
        """Return the offset in this segment or the one behind it, None if all records are too old.

        Damage is skipped as if it were old: reading there handles it.
        """
        size, stop = segment.size, segment.stop
        handle = self.files.open(segment.path)
        try:
            position = self._position(segment, handle)
            for batch in sound_batches(self.files, handle, position, size, lambda _: None):
                if not batch.is_control and batch.last_time >= self.time_ms:
                    return self._in_batch(batch)
        finally:
            self.files.close(handle)
        return stop if stop <= self.end else None

    def _in_batch(self, batch: Batch) -> int:
        """Return the offset in the batch; its first if the records cannot be decrypted."""
        try:
            return self.unseal(batch).offset_at(max(self.time_ms, 0))
        except (CorruptBatchError, MissingKeyError):
            return batch.base_offset  # reading it meets the same again, and deals with it

    def _position(self, segment: Segment, handle: int) -> int:
        """Return the position to begin at: the last indexed batch that begins before the time."""
        index = segment.index or segment.load_index(self.files, handle)
        positions = index.positions[:]
        low, high = 0, len(positions)
        while low < high:
            middle = (low + high) // 2
            if _time_at(self.files, handle, positions[middle]) < self.time_ms:
                low = middle + 1
            else:
                high = middle
        return positions[low - 1] if low else 0
