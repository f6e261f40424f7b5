"""Bringing a log back after its process or its machine has died.

Everything before the last segment was flushed and indexed when it was sealed, so normally only the
last one is read: its first batch is the checkpoint, the control batches behind it bring that up to
date, and each batch must have its magic, length, checksum and the offset that follows its
predecessor's. At the first that has not, the file is cut; the rest is set aside in a file beside
it, never deleted. Segments whose index file is missing are treated like the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.storage.checkpoint import CloseMark, Part, Told, apply_payload, is_checkpoint
from leveret.storage.damage import keep_damaged
from leveret.storage.files import storage_error
from leveret.storage.index import SparseIndex
from leveret.storage.scan import refuse, scan
from leveret.storage.segment import OFFSET_MAX, Segment, list_segments

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch
    from leveret.ports.returns import Returns
    from leveret.storage.files import FileSystem

__all__ = ["Recovered", "recover"]


@dataclass(slots=True)
class Recovered:
    """A log as it was found. `findings` are sentences for the operator."""

    segments: list[Segment] = field(default_factory=list)
    end: int = 0
    told: Told = field(default_factory=Told)
    unclean: bool = False
    redelivered_stop: int = 0  # offsets below may have been delivered before
    findings: list[str] = field(default_factory=list)

    @property
    def settled(self) -> RangeSet:
        """What is settled."""
        return self.told.settled

    @property
    def returns(self) -> Returns:
        """What came back."""
        return self.told.returns

    @property
    def unresolved(self) -> dict[int, Part]:
        """Parts of transactions whose outcome the log has not written down."""
        return self.told.unresolved


def recover(files: FileSystem, directory: Path, mark: CloseMark | None) -> Recovered:
    """The log in `directory`; an empty one where there is none. Waits for the device.

    `mark` is what the last close left behind. Raises StorageError.
    """
    try:
        found = Recovered(list_segments(files, directory))
        if not found.segments:
            return found
        _remove_drafts(files, directory, found.segments)
        if not _believe(found, mark):
            found.unclean = True
            _scan_what_is_unsure(files, found)
            found.redelivered_stop = found.end
        _settle_what_is_gone(files, found)
    except OSError as error:
        raise storage_error("recover the log in", directory, error) from error
    return found


def _remove_drafts(files: FileSystem, directory: Path, segments: list[Segment]) -> None:
    """Remove half-written index files, and what stands beside segments that are gone."""
    known = {path.name for segment in segments for path in (segment.index_path, segment.doubt_path)}
    for name in files.list_names(directory):
        beside = name.endswith((".index", ".doubtful")) and name not in known
        if beside or name.endswith(".index.new"):
            files.unlink(directory / name)


def _believe(found: Recovered, mark: CloseMark | None) -> bool:
    """Take over a clean close's state if its last segment is the one that is there."""
    last = found.segments[-1]
    if mark is None or (mark.base, mark.generation) != (last.base, last.generation):
        return False
    if mark.segment_bytes != last.size or mark.end < last.base:
        return False
    told = Told()
    try:
        apply_payload(mark.checkpoint, told)
    except CorruptBatchError:
        return False
    found.told = told
    found.end = mark.end
    found.redelivered_stop = mark.redelivered_stop
    return True


def _scan_what_is_unsure(files: FileSystem, found: Recovered) -> None:
    """Check every segment from the newest checkpoint on, and older ones that have no index."""
    segments = found.segments
    start = len(segments) - 1
    while start > 0 and not _has_checkpoint(files, segments[start]):
        start -= 1
    if start == 0:
        # What was settled in files that are gone need not be told: all in them was.
        found.settled.add(0, segments[0].base)
    found.end = segments[0].base
    gaps = []
    for at, segment in enumerate(segments):
        gaps.append((found.end, segment.base))
        if at < start and segment.read_index(files):
            found.end = segment.stop
        else:
            _scan_segment(files, found, segment)
    for first, stop in gaps:
        _report_gap(found, first, stop)
    if not _has_checkpoint(files, segments[-1]):
        segments[-1].doubtful = True  # nothing is written to it any more


def _has_checkpoint(files: FileSystem, segment: Segment) -> bool:
    handle = files.open(segment.path)
    try:
        for _, batch in scan(files, handle, 0, segment.size):
            return is_checkpoint(batch)
    except CorruptBatchError:
        return False
    finally:
        files.close(handle)
    return False


def _scan_segment(files: FileSystem, found: Recovered, segment: Segment) -> None:
    """Check every batch, collect settlements and index entries; cut at the first damage."""
    found.end = segment.base
    index = segment.index = SparseIndex()
    sound = 0
    handle = files.open(segment.path)
    try:
        for position, batch in scan(files, handle, 0, segment.size):
            if found.end == segment.stop and not batch.is_control:
                break  # left over from a failed flush; the next segment has it
            if batch.base_offset != found.end:
                refuse(f"offset {batch.base_offset} where {found.end} follows")
            if batch.is_control:
                apply_payload(batch.payload, found.told)
            else:
                if position >= index.due:
                    index.note(batch.base_offset, position)
                if batch.transaction:
                    _note_pending(found.unresolved, batch)
            found.end += batch.count
            sound = position + batch.size
    except CorruptBatchError as error:
        found.findings.append(_set_aside(files, segment, handle, sound, str(error)))
    finally:
        files.close(handle)
    segment.size = sound


def _note_pending(unresolved: dict[int, Part], batch: Batch) -> None:
    """Whether a batch counts is for its transaction to say."""
    part = unresolved.setdefault(batch.transaction, Part(0, 0))
    part.first, part.stop = batch.base_offset, batch.stop_offset


def _report_gap(found: Recovered, first: int, stop: int) -> None:
    """Nobody shall wait for records that no file holds; say so unless they were settled anyway."""
    lost = found.settled.gaps(first, stop).count
    if first < stop and lost:
        found.settled.add(first, stop)
        found.findings.append(
            f"{lost} records from offset {first} to {stop - 1} are lost: they stood behind the "
            "damage reported before, or were not flushed; they count as settled"
        )


def _set_aside(files: FileSystem, segment: Segment, handle: int, sound: int, reason: str) -> str:
    """Copy bytes [sound, size) to a file of their own, then cut them off. Returns the finding."""
    text = f"{segment.path} is sound up to byte {sound} of {segment.size} ({reason}); "
    if segment.size == sound:
        return text + "nothing had to be cut"
    try:
        target = keep_damaged(files, handle, sound, segment.size, segment.path)
    except OSError as error:
        # No room for the copy: leave the file whole, go on behind it in a new segment.
        segment.doubtful = True
        return text + f"the rest could not be copied ({error}) and stays where it is, unused"
    files.truncate(handle, sound)
    files.fdatasync(handle)
    return (
        text + f"the rest was set aside as {target.name}, which is normal after a crash; "
        "otherwise check the disk. `leveret dump` shows what it holds"
    )


def _settle_what_is_gone(files: FileSystem, found: Recovered) -> None:
    """Offsets that no file holds were settled, whatever the last control batch to say so."""
    segments, settled = found.segments, found.settled
    settled.add(0, segments[0].base)
    for segment in segments[:-1]:
        indexed = segment.read_index(files)
        if indexed is not None and indexed[1] < segment.stop:
            settled.add(indexed[1], segment.stop)
    settled.remove(found.end, OFFSET_MAX)
    found.told.undone.remove(found.end, OFFSET_MAX)
    for part in found.unresolved.values():
        part.first, part.stop = min(part.first, found.end), min(part.stop, found.end)
    if found.returns.acquired:
        found.returns.keep(settled.gaps(0, found.end))
