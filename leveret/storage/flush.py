"""One flush of one log, and the batches that wait for it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.counters import Histogram

if TYPE_CHECKING:
    from leveret.ports.records import Batch
    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments

__all__ = ["Flush", "FlushFigures", "Unflushed", "UnflushedBatch"]

REWRITE_BYTES_MAX = 256 << 20  # kept per log to be written anew should a flush fail
DIRECTORIES_SYNCED = 4  # PARTITION, TOPIC, VHOST and topics/: any of them may be new


class UnflushedBatch(NamedTuple):
    """Batch that was written and waits for its flush; `batch` is None when memory is short."""

    batch: Batch | None
    segment: Segment
    position: int
    stop: int


class Unflushed:
    """Uncommitted batches of a log, oldest first."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: list[UnflushedBatch] = []
        self.bytes = 0

    def add(self, batch: Batch, segment: Segment, position: int) -> None:
        """Add a batch that was written."""
        self.bytes += batch.size
        kept = batch if self.bytes <= REWRITE_BYTES_MAX else None
        self.entries.append(UnflushedBatch(kept, segment, position, batch.stop_offset))

    def flushed(self, count: int) -> None:
        """Remove the oldest `count` batches, which are on disk."""
        del self.entries[:count]
        self.bytes = sum(entry.batch.size for entry in self.entries if entry.batch is not None)

    def take(self) -> list[UnflushedBatch]:
        """Return all batches and remove them."""
        taken, self.entries = self.entries, []
        self.bytes = 0
        return taken


# Microseconds, from a disk with a cache of its own to one that is about to fail.
FLUSH_BOUNDS_US = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000),
    *(100_000, 200_000, 500_000, 1_000_000, 5_000_000),
)


class FlushFigures:
    """Flush statistics of a node: durations, batches and failures."""

    def __init__(self) -> None:
        self.durations = Histogram(FLUSH_BOUNDS_US)
        self.batches = 0
        self.failures = 0

    def ended(self, flush: Flush, *, failed: bool) -> None:
        """Count a flush that has ended."""
        self.durations.observe(flush.took_us)
        self.batches += flush.count
        self.failures += failed


@dataclass(slots=True)
class Flush:
    """A flush of `segments`: covers `count` waiting batches, up to offset `stop`."""

    files: FileSystem
    segments: list[Segment]
    sealed: list[tuple[Segment, int]]  # with where each stops: they get their index files
    count: int
    stop: int
    took_us: int = 0  # once it has run

    @staticmethod
    def begin(files: FileSystem, segments: Segments, unflushed: Unflushed) -> Flush:
        """Return a flush of everything written so far."""
        dirty = segments.take_dirty()
        sealed = [(segment, segment.stop) for segment in dirty if segment is not segments.active]
        entries = unflushed.entries
        return Flush(files, dirty, sealed, len(entries), entries[-1].stop if entries else 0)

    def run(self) -> None:
        """Flush the segments and write index files, in a worker thread. Raises OSError.

        Older segments come first: when a later one is on the disk, all before it is.
        """
        began = time.monotonic()
        try:
            self._sync()
        finally:
            self.took_us = int((time.monotonic() - began) * 1_000_000)
        for segment, stop in self.sealed:
            # Without an index file the segment is only checked once more by recovery.
            with suppress(OSError):
                segment.write_index(self.files, stop)

    def _sync(self) -> None:
        for segment in self.segments:
            self._sync_file(segment)
            if not segment.listed:
                self._sync_directories(segment)

    def _sync_file(self, segment: Segment) -> None:
        if segment.handle is not None:
            self.files.fdatasync(segment.handle)
            return
        handle = self.files.open(segment.path)  # its file was closed (Segments.rest)
        try:
            self.files.fdatasync(handle)
        finally:
            self.files.close(handle)

    def _sync_directories(self, segment: Segment) -> None:
        directory = segment.directory
        for _ in range(DIRECTORIES_SYNCED):
            self.files.sync_directory(directory)
            directory = directory.parent
        segment.listed = True

    def unpin(self) -> None:
        """Unpin the segments on the loop, so that their files may be closed."""
        for segment in self.segments:
            segment.unpin(self.files)
