"""One flush of one log, and what waits for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from leveret.ports.records import Batch
    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments

__all__ = ["Flush", "Unflushed", "UnflushedBatch"]

REWRITE_BYTES_MAX = 256 << 20  # kept per log to be written anew should a flush fail
DIRECTORIES_SYNCED = 4  # PARTITION, TOPIC, VHOST and topics/: any of them may be new


class UnflushedBatch(NamedTuple):
    """A batch that was written and waits for its flush; without `batch` when memory is short."""

    batch: Batch | None
    segment: Segment
    position: int
    stop: int


class Unflushed:
    """The batches of a log that are not committed yet, oldest first."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: list[UnflushedBatch] = []
        self.bytes = 0

    def add(self, batch: Batch, segment: Segment, position: int) -> None:
        """A batch was written."""
        self.bytes += batch.size
        kept = batch if self.bytes <= REWRITE_BYTES_MAX else None
        self.entries.append(UnflushedBatch(kept, segment, position, batch.stop_offset))

    def flushed(self, count: int) -> None:
        """The oldest `count` batches are on the disk."""
        del self.entries[:count]
        self.bytes = sum(entry.batch.size for entry in self.entries if entry.batch is not None)

    def take(self) -> list[UnflushedBatch]:
        """All of them; none waits any more."""
        taken, self.entries = self.entries, []
        self.bytes = 0
        return taken


@dataclass(frozen=True, slots=True)
class Flush:
    """Flushes what was written to `segments`: `count` waiting batches, up to `stop`."""

    files: FileSystem
    segments: list[Segment]
    sealed: list[tuple[Segment, int]]  # with where each stops: they get their index files
    count: int
    stop: int

    @staticmethod
    def begin(files: FileSystem, segments: Segments, unflushed: Unflushed) -> Flush:
        """A flush of everything written so far."""
        dirty = segments.take_dirty()
        sealed = [(segment, segment.stop) for segment in dirty if segment is not segments.active]
        entries = unflushed.entries
        return Flush(files, dirty, sealed, len(entries), entries[-1].stop if entries else 0)

    def run(self) -> None:
        """Wait for the device, in a worker thread. Raises OSError.

        Older segments come first: when a later one is on the disk, all before it is.
        """
        for segment in self.segments:
            assert segment.handle is not None
            self.files.fdatasync(segment.handle)
            if not segment.listed:
                self._sync_directories(segment)
        for segment, stop in self.sealed:
            # Without an index file the segment is only checked once more by recovery.
            with suppress(OSError):
                segment.write_index(self.files, stop)

    def _sync_directories(self, segment: Segment) -> None:
        directory = segment.directory
        for _ in range(DIRECTORIES_SYNCED):
            self.files.sync_directory(directory)
            directory = directory.parent
        segment.listed = True

    def unpin(self) -> None:
        """Back on the loop: the files may be closed again."""
        for segment in self.segments:
            segment.unpin(self.files)
