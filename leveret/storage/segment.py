"""One file of a partition, and its name.

    00000000000000001000.log      records from offset 1000 on
    00000000000000001000-2.log    the third file that begins with offset 1000
    00000000000000001000.index    its sparse index, once it is sealed and flushed
    00000000000000001000.log.damaged-1    a damaged stretch, kept for inspection
    00000000000000001000.doubtful        empty: a flush of the segment has failed
    00000000000000001000-3.log.new       the draft of a compacted file, until it is whole

A second file with the same first offset comes about when one filled up with control batches alone,
when a flush failed and what it should have flushed was written anew, or by compaction: the records
are those of the last. In a cluster, compaction numbers files from 4096 times its leader's epoch on.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.storage.damage import survey
from leveret.storage.files import read_file, write_file
from leveret.storage.index import OFFSET_MAX, Compacted, SparseIndex

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.ports.ranges import RangeSet
    from leveret.storage.files import FileSystem

__all__ = ["NAME", "OFFSET_MAX", "REVISION_MAX", "Segment", "list_segments"]

DIRECTORIES_SYNCED = 4  # PARTITION, TOPIC, VHOST and topics/: any of them may be new

NAME = re.compile(r"(\d{20})(?:-([1-9]\d{0,9}))?\.log")
REVISION_MAX = 0xFFFF_FFFF  # of a file's name: marks and links have 32 bits for it


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Content of an index file. `stop` is where the segment ends."""

    index: SparseIndex
    stop: int
    compacted: Compacted | None


class Segment:
    """A segment file. It holds the records [base, stop); control batches stand between them.

    `size` is the number of valid bytes in the file; `dirty` whether some still wait for a flush;
    `doubtful` that a flush failed, so that its content on disk is unknown. `handle` is set on the
    event loop only; `pins` counts worker threads that read through it. `began_ms` is the time of
    its first batch, None where that was not looked up. It was compacted below `compacted_stop`, as
    far as known; its first tombstone may go at `due_ms`, 0 where none may yet. `gaps` are offsets
    that it holds no more, if it was copied or read after that.
    """

    __slots__ = (
        "base",
        "began_ms",
        "compacted_stop",
        "directory",
        "dirty",
        "due_ms",
        "gaps",
        "handle",
        "index",
        "listed",
        "pins",
        "retired",
        "revision",
        "size",
        "stop",
        "suspect",
    )  # fmt: skip

    def __init__(self, directory: Path, base: int, revision: int, size: int = 0) -> None:
        self.directory = directory
        self.base = base
        self.revision = revision
        self.stop = OFFSET_MAX
        self.size = size
        self.began_ms: int | None = None
        self.compacted_stop = 0
        self.due_ms = 0
        self.gaps: RangeSet | None = None
        self.handle: int | None = None
        self.index: SparseIndex | None = None
        self.dirty = False
        self.suspect = False
        self.listed = True  # whether the directory entry is known to be durable
        self.pins = 0
        self.retired = False

    def __repr__(self) -> str:
        return f"Segment({self.path.name}, stop={self.stop}, size={self.size})"

    @property
    def file(self) -> tuple[int, int]:
        """First offset and revision, which name the file in its log and by which it is ordered."""
        return self.base, self.revision

    @property
    def stem(self) -> str:
        """Name of the files without the extension."""
        return f"{self.base:020d}" + (f"-{self.revision}" if self.revision else "")

    @property
    def path(self) -> Path:
        """Path of the log file."""
        return self.directory / f"{self.stem}.log"

    @property
    def draft_path(self) -> Path:
        """Path of the log file until it is whole."""
        return self.directory / f"{self.stem}.log.new"

    @property
    def index_path(self) -> Path:
        """Path of the index file."""
        return self.directory / f"{self.stem}.index"

    @property
    def suspect_path(self) -> Path:
        """Path of the file whose existence marks the segment as doubtful."""
        return self.directory / f"{self.stem}.doubtful"

    def mark_suspect(self, files: FileSystem) -> None:
        """Mark the segment after a failed flush: it is never written to or flushed again.

        The mark need not survive the machine: a reboot clears the page cache, too, and so the
        doubt.
        """
        self.suspect = True
        with suppress(OSError):
            files.close(files.open(self.suspect_path, create=True))

    def clear_suspect(self, files: FileSystem) -> None:
        """Take the mark away, since all of the file was written again and flushed."""
        if self.suspect:
            files.unlink(self.suspect_path)
            self.suspect = False

    def flush(self, files: FileSystem) -> None:
        """Make the file durable, and its name unless it is so already. Raises OSError."""
        if self.handle is not None:
            files.fdatasync(self.handle)
        else:
            handle = files.open(self.path)
            try:
                files.fdatasync(handle)
            finally:
                files.close(handle)
        if not self.listed:
            for directory in (self.directory, *self.directory.parents[: DIRECTORIES_SYNCED - 1]):
                files.sync_directory(directory)
            self.listed = True

    def release(self, files: FileSystem) -> None:
        """Close the file unless a worker thread still reads it; that thread then closes it."""
        if self.pins:
            self.retired = True
        elif self.handle is not None:
            files.close(self.handle)
            self.handle = None
            self.retired = False

    def write_index(
        self,
        files: FileSystem,
        stop: int,
        compacted: Compacted | None = None,
        *,
        flush: bool = False,
    ) -> None:
        """Write the index file, flushed if `flush`, but for its name. Raises OSError."""
        index = self.index or SparseIndex()
        if compacted is None and self.gaps is not None:
            compacted = Compacted(removed=self.gaps)
        content = index.to_bytes(self.size, stop, compacted)
        write_file(files, self.index_path, content, flush=flush)

    def sync_index(self, files: FileSystem) -> None:
        """Make the index file durable, by which a sealed segment is known to be whole.

        Raises OSError, also if there is none.
        """
        handle = files.open(self.index_path)
        try:
            files.fdatasync(handle)
        finally:
            files.close(handle)
        files.sync_directory(self.directory)

    def read_index(self, files: FileSystem) -> IndexFile | None:
        """Return the content of the index file; None if missing, damaged or older.

        Raises OSError.
        """
        try:
            index, segment_bytes, stop, compacted = SparseIndex.from_bytes(
                read_file(files, self.index_path)
            )
        except (FileNotFoundError, CorruptBatchError):
            return None
        if segment_bytes != self.size or stop < self.base:
            return None
        return IndexFile(index, stop, compacted)

    def load_index(self, files: FileSystem, handle: int) -> SparseIndex:
        """Return the index from its file or, failing that, from the segment, without damage.

        Waits for the device. Raises OSError.
        """
        found = self.read_index(files)
        if found is not None:
            return found.index
        return survey(files, handle, self.base, self.stop, self.size, gapless=False).index


def list_segments(files: FileSystem, directory: Path) -> list[Segment]:
    """Return the segments in a directory in order, each with its size and stop."""
    found = []
    names = files.list_names(directory)
    doubtful = {name for name in names if name.endswith(".doubtful")}
    for name in names:
        match = NAME.fullmatch(name)
        if match and int(match[2] or 0) <= REVISION_MAX:
            size = files.size(directory / name)
            found.append(Segment(directory, int(match[1]), int(match[2] or 0), size))
            found[-1].suspect = found[-1].suspect_path.name in doubtful
    found.sort(key=attrgetter("file"))
    for segment, after in pairwise(found):
        segment.stop = after.base
    return found
