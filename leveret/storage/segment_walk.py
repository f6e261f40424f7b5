"""Walking over a segment's file as it stands, batch by batch, without unsealing any of them.

All functions wait for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import HEADER_BYTES, Batch
from leveret.storage.batch_walk import BatchWalk
from leveret.storage.files import read_exactly, write_all
from leveret.storage.index import SparseIndex
from leveret.storage.scan import batch_bytes, verify
from leveret.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.storage.files import FileSystem

__all__ = ["SegmentEnd", "ensure_index", "last_epoch", "note_walk", "walk_segment"]

WALK_BYTES = 1 << 20  # one read


class SegmentEnd(NamedTuple):
    """End of a segment: its last batch begins at the position `last`.

    The next record gets the `offset`.
    """

    offset: int
    epoch: int = 0
    checksum: int = 0
    last: int = 0


def note_walk(segment: Segment, walk: BatchWalk, position: int) -> None:
    """Note in a segment's index what batches that begin at a position hold, and hold no more."""
    assert segment.index is not None
    for offset, at in walk.entries:
        segment.index.note(offset, position + at)
    for first, stop in walk.gaps:
        segment.gaps = segment.gaps or RangeSet()
        segment.gaps.add(first, stop)


def walk_segment(files: FileSystem, segment: Segment) -> SegmentEnd:
    """Return what stands at the end of the sound batches of a segment, which make its size.

    Its index is made anew. If a flush of it has failed, they are written over themselves: the page
    cache may say that the disk has what it does not have. Raises OSError.
    """
    position, wanted = 0, WALK_BYTES
    index = segment.index = SparseIndex()
    end = SegmentEnd(segment.base)
    handle = files.open(segment.path)
    try:
        while position < segment.size:
            window = read_exactly(files, handle, position, min(wanted, segment.size - position))
            walk = BatchWalk(window, end.offset, end.epoch, max(index.due - position, 0))
            if not walk.size and (not walk.wanted or position + walk.wanted > segment.size):
                break
            if walk.size:
                if segment.suspect:
                    write_all(files.pwrite, handle, memoryview(window)[: walk.size], position)
                note_walk(segment, walk, position)
                end = SegmentEnd(walk.offset, walk.epoch, walk.checksum, position + walk.last)
            position += walk.size
            wanted = WALK_BYTES if walk.size else walk.wanted
    finally:
        files.close(handle)
    segment.size = position
    return end


def ensure_index(files: FileSystem, segment: Segment) -> None:
    """Make durable the index file of a sealed segment, which says that all of it was flushed.

    Raises OSError, also if the segment is damaged.
    """
    looked_at = Segment(segment.directory, segment.base, segment.revision, segment.size)
    if looked_at.read_index(files) is None:
        end = walk_segment(files, looked_at)
        if looked_at.size < segment.size:
            raise OSError(f"{segment.path} is damaged at byte {looked_at.size}")
        looked_at.write_index(files, end.offset)
    looked_at.sync_index(files)


def last_epoch(files: FileSystem, segments: Sequence[Segment]) -> int:
    """Return the epoch in which the newest of a log's files was begun; 0 without any.

    A file that does not begin with a sound batch is passed over: it was just being begun, or is
    damaged. Raises NewerFormatError, OSError.
    """
    for segment in reversed(segments):
        handle = files.open(segment.path)
        try:
            size = batch_bytes(read_exactly(files, handle, 0, HEADER_BYTES), 0)
            first = Batch.parse(read_exactly(files, handle, 0, min(size, segment.size)))
            verify(first)
        except CorruptBatchError:
            continue
        finally:
            files.close(handle)
        return first.leader_epoch
    return 0
