"""Recovery of a log after a crash of its process or machine, and detection of missing records.

Everything before the last segment was flushed and indexed when it was sealed, so normally only the
last one is read: its first batch is the checkpoint, the control batches behind it bring that up to
date, and each batch must have its magic, length, checksum and the offset that follows its
predecessor's. Segments whose index file is missing are treated like the last one.

Bytes that are no sound batch are either the end of what was being written when the process died,
which is cut off, or damage: then the batches behind it are kept, and the file stays as it is.
Either is copied into a file beside the segment, never deleted.

A compacted segment says itself where offsets are missing in it: a batch with the attribute
COMPACTED need not follow its predecessor. Its index file says the same in one place, so that the
segment need not be read. Those offsets are settled without any checkpoint saying so.

Offsets that no file holds were settled, or they are lost. Both the checkpoint and the mark in the
state store say what was settled; a segment is removed only when that is on the disk. So whatever
neither says is lost, and is reported: a `LostRange`. It counts as settled then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import HEADER_BYTES, MAGIC, BatchAttribute
from leveret.storage.checkpoint import RecoveredState, TransactionPart, apply_payload, is_checkpoint
from leveret.storage.damage import find_following, keep_damaged
from leveret.storage.files import content_end, read_exactly, storage_error
from leveret.storage.index import OFFSET_MAX, Compacted, SparseIndex
from leveret.storage.marks import MarkedState
from leveret.storage.scan import FRONT, has_no_offsets, refuse, scan
from leveret.storage.segment import Segment, list_segments

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.ports.records import Batch
    from leveret.ports.returns import Returns
    from leveret.storage.files import FileSystem
    from leveret.storage.marks import LogMark

__all__ = ["LostRange", "Recovered", "is_all_settled", "recover", "remove_drafts"]

# Left unused where the newest segment is gone and nobody knows how far it went: more than a node
# writes to one log between two marks. What the state store says of the offsets is true of no other
# record then.
UNSEEN_OFFSETS = 1 << 24


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets [first, stop) that no file holds, `count` of them unsettled. `why` is the cause."""

    first: int
    stop: int
    count: int
    why: str

    def __str__(self) -> str:
        where = (
            f"offset {self.first}"
            if self.stop - self.first == 1
            else (f"offsets {self.first} to {self.stop - 1}")
        )
        return f"{self.count} messages are lost ({where}): {self.why}"


@dataclass(slots=True)
class Recovered:
    """A log as recovered.

    `findings` are sentences for the operator about what is normal after a crash, `losses` durable
    records that are gone. `begins_anew`: the last segment is not written to any more.
    `given_up`: offsets of missing records: they count as settled, which is to be written down.
    """

    segments: list[Segment] = field(default_factory=list)
    end: int = 0
    told: RecoveredState = field(default_factory=RecoveredState)
    unclean: bool = False
    redelivered_stop: int = 0  # offsets below may have been delivered before
    findings: list[str] = field(default_factory=list)
    losses: list[LostRange] = field(default_factory=list)
    begins_anew: bool = False
    given_up: RangeSet = field(default_factory=RangeSet)
    flushed: int = 0  # so far it was known to be flushed
    removed: RangeSet = field(default_factory=RangeSet)  # offsets that no file holds
    compacted: RangeSet = field(default_factory=RangeSet)  # missing in files by compaction

    @property
    def settled(self) -> RangeSet:
        """Settled ranges."""
        return self.told.settled

    @property
    def returns(self) -> Returns:
        """Delivery counts of returned records."""
        return self.told.returns

    @property
    def unresolved(self) -> dict[int, TransactionPart]:
        """Parts of transactions whose outcome the log has not written."""
        return self.told.unresolved


def recover(
    files: FileSystem,
    directory: Path,
    known: MarkedState | None = None,
    *,
    has_records: bool = True,
    flushes: bool = False,
) -> Recovered:
    """Recover the log in `directory`; an empty one if there is none. Waits for the device.

    `known` is what is known of it beside its files. Without records of its own (`has_records`) its
    settlements are of another log's. What a run has left that ended without a close is flushed if
    the log `flushes`: it is delivered from now on, and must survive the machine as what was
    confirmed. Raises StorageError, NewerFormatError.
    """
    try:
        segments = list_segments(files, directory)
        if segments:
            remove_drafts(files, directory, segments)
        recovery = _Recovery(files, directory, segments, known or MarkedState(), flushes=flushes)
        return recovery.run(has_records=has_records)
    except OSError as error:
        raise storage_error("recover the log in", directory, error) from error


def is_all_settled(files: FileSystem, directory: Path, mark: LogMark) -> bool:
    """Whether all of a log is settled: its mark says so, and no file was written since.

    Raises StorageError.
    """
    told = RecoveredState()
    try:
        apply_payload(mark.checkpoint, told)
    except CorruptBatchError:
        return False
    if not mark.closed or told.unresolved or told.settled.gaps(0, mark.committed):
        return False
    try:
        segments = list_segments(files, directory)
    except OSError as error:
        raise storage_error("list", directory, error) from error
    if not segments:
        return False
    last = segments[-1]
    return (last.base, last.revision, last.size) == mark.place and not last.suspect


def remove_drafts(files: FileSystem, directory: Path, segments: list[Segment]) -> None:
    """Remove half-written files, and files beside segments that are gone."""
    known = {
        path.name for segment in segments for path in (segment.index_path, segment.suspect_path)
    }
    for name in files.list_names(directory):
        beside = name.endswith((".index", ".doubtful")) and name not in known
        if beside or name.endswith((".index.new", ".log.new")):
            files.unlink(directory / name)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Offsets that no file holds, and what to report if they were not settled.

    `is_promised`: whether they had to survive, as far as can be told.
    """

    first: int
    stop: int
    why: str
    is_promised: bool = True


class _Recovery:
    """Recovery of one log. The `end` found moves on from segment to segment."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        segments: list[Segment],
        known: MarkedState,
        *,
        flushes: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments
        self._known = known
        self._flushes = flushes
        self._found = Recovered(segments)
        self._gaps: list[_Gap] = []
        self._beginnings: dict[Segment, bool] = {}
        self._mark = self._believed_mark()
        # What is read of segments tells what is settled, unless the mark does.
        self._scanned = RecoveredState() if self._mark is not None else self._found.told

    def run(self, *, has_records: bool) -> Recovered:
        """Recover the log."""
        found = self._found
        if not self._is_as_closed:
            found.unclean = bool(self._segments) or self._known.certain_end > 0
        self._walk(self._newest_checkpoint())
        self._compare_end()
        self._weigh_gaps()
        if has_records:
            self._trim()
        found.flushed = self._known.certain_flushed
        if self._is_as_closed and self._mark is not None:
            found.redelivered_stop = self._mark.redelivered_stop
        else:
            found.redelivered_stop = found.end
        return found

    # -- what the mark says

    def _believed_mark(self) -> LogMark | None:
        """Return the mark of the last run's close, unless the files are newer.

        They are newer if the state store is an older one; then the files count.
        """
        mark = self._known.mark
        if mark is None or not self._known.closed_last or self._place > mark.place:
            return None
        told = RecoveredState()
        try:
            apply_payload(mark.checkpoint, told)
        except CorruptBatchError:
            return None
        self._found.told = told
        return mark

    @property
    def _place(self) -> tuple[int, int, int]:
        """End of the log's files (see LogMark.place)."""
        if not self._segments:
            return -1, 0, 0
        last = self._segments[-1]
        return last.base, last.revision, last.size

    @property
    def _is_as_closed(self) -> bool:
        """Whether the last segment is as it was closed, so that it need not be read."""
        return self._mark is not None and self._place == self._mark.place

    @property
    def _is_unchanged(self) -> bool:
        """Whether nothing was written since a close, of whatever run, which has flushed all."""
        mark = self._known.mark
        return mark is not None and mark.closed and self._place == mark.place

    # -- going over the segments

    def _newest_checkpoint(self) -> int:
        """Return the number of the first segment to read for the settled ranges."""
        start = len(self._segments) - 1
        if self._mark is not None:
            return start
        while start > 0 and not self._has_checkpoint(self._segments[start]):
            start -= 1
        if self._segments and not self._has_checkpoint(self._segments[start]):
            # Nobody knows what was settled below: nothing there is told as lost.
            self._found.settled.add(0, self._segments[0].base)
        return start

    def _has_checkpoint(self, segment: Segment) -> bool:
        if segment not in self._beginnings:
            self._beginnings[segment] = self._begins_with_checkpoint(segment)
        return self._beginnings[segment]

    def _begins_with_checkpoint(self, segment: Segment) -> bool:
        handle = self._files.open(segment.path)
        try:
            for _, batch in scan(self._files, handle, 0, segment.size):
                return is_checkpoint(batch)
        except CorruptBatchError:
            return False
        finally:
            self._files.close(handle)
        return False

    def _walk(self, start: int) -> None:
        """Find the end of each segment, and the gaps between segments."""
        found = self._found
        before = None
        for at, segment in enumerate(self._segments):
            if found.end < segment.base:
                promised = before is None or not before.suspect or self._known.same_boot
                self._gaps.append(_Gap(found.end, segment.base, self._why_gap(before), promised))
            found.end = self._reach(segment, is_needed=at >= start)
            before = segment
        last = before
        if last is not None and not self._is_as_closed and not self._has_checkpoint(last):
            last.suspect = True  # nothing is written to it any more

    def _why_gap(self, before: Segment | None) -> str:
        if before is None:
            return f"the first segments are missing in {self._directory}"
        missing = f"the segment behind {before.path.name} is missing, or this one lacks its end"
        return f"{missing}, in {self._directory}"

    def _reach(self, segment: Segment, *, is_needed: bool) -> int:
        """Return the end of a segment's offsets; read it only if `is_needed` or not indexed."""
        is_last = segment is self._segments[-1]
        if is_last and self._is_as_closed and self._mark is not None:
            return self._mark.committed
        if not is_last and (not is_needed or self._mark is not None):
            indexed = segment.read_index(self._files)
            if indexed is not None:
                self._take_compacted(segment, indexed.compacted)
                return min(indexed.stop, segment.stop)
        is_doubtful = segment.suspect
        end = self._scan(segment)
        if not self._is_unchanged:
            segment.listed = segment.base < self._known.certain_flushed
            if self._flushes and not is_doubtful:
                segment.flush(self._files)
        return end

    def _take_compacted(self, segment: Segment, compacted: Compacted | None) -> None:
        if compacted is None or segment.base == segment.stop:
            return
        segment.compacted_stop, segment.due_ms = compacted.stop, compacted.due_ms
        self._found.compacted.add_all(compacted.removed)

    def _scan(self, segment: Segment) -> int:
        """Check every batch; collect settlements and index entries. Returns the end offset."""
        segment.index = SparseIndex()
        handle = self._files.open(segment.path)
        try:
            position, end = self._scan_batches(segment, handle)
        finally:
            self._files.close(handle)
        segment.size = position
        return end

    def _scan_batches(self, segment: Segment, handle: int) -> tuple[int, int]:
        """Return the position behind the last sound batch, and the offset that follows it."""
        position, end = 0, segment.base
        while True:
            try:
                for at, batch in scan(self._files, handle, position, segment.size):
                    if end == segment.stop and not has_no_offsets(batch):
                        if batch.is_control and batch.base_offset == end:  # that of a compacted one
                            return at + batch.size, end
                        return position, end  # left over, and the next one has it
                    if batch.base_offset != end:
                        self._pass_compacted(segment, batch, end)
                    self._take(segment, at, batch)
                    position, end = at + batch.size, batch.stop_offset
            except CorruptBatchError as error:
                following = self._behind_damage(segment, handle, position, end)
                if following is None:
                    self._cut(segment, handle, position, str(error))
                    return position, end
                self._pass_over(segment, handle, (position, end), following)
                position, end = following
            else:
                if position < segment.size:
                    self._files.truncate(handle, position)  # behind it are zeros
                return position, end

    def _pass_compacted(self, segment: Segment, batch: Batch, end: int) -> None:
        """Note that compaction has removed what is missing in front of a batch.

        Raises CorruptBatchError where it has not.
        """
        is_compacted = batch.attributes & BatchAttribute.COMPACTED
        if not is_compacted or not end < batch.base_offset <= segment.stop:
            refuse(f"offset {batch.base_offset} where {end} follows")
        self._found.compacted.add(end, batch.base_offset)
        if segment is self._segments[-1]:
            self._found.begins_anew = True  # the newest segments are gone

    def _take(self, segment: Segment, position: int, batch: Batch) -> None:
        if batch.is_control:
            apply_payload(batch.payload, self._scanned)
            return
        assert segment.index is not None
        if position >= segment.index.due:
            segment.index.note(batch.base_offset, position)
        if batch.transaction:
            part = self._scanned.unresolved.setdefault(batch.transaction, TransactionPart(0, 0))
            part.first, part.stop = batch.base_offset, batch.stop_offset

    # -- damage

    def _behind_damage(
        self, segment: Segment, handle: int, position: int, end: int
    ) -> tuple[int, int] | None:
        """Return position and offset of the first sound batch behind damage; None at the log's end.

        A machine that dies writes pages in any order: sound batches behind a torn one prove nothing
        then. A process that dies leaves its last batch too short for its length, and what looks
        like a batch within it may be a message's body.
        """
        if end >= self._known.certain_end:
            if not self._known.same_boot and segment is self._segments[-1]:
                return None
            if self._is_cut_short(handle, position, segment.size):
                return None
        return find_following(
            self._files, handle, position, segment.size, expected=end, stop=segment.stop
        )

    def _is_cut_short(self, handle: int, position: int, size: int) -> bool:
        front = read_exactly(self._files, handle, position, FRONT.size)
        if len(front) < FRONT.size:
            return True
        magic, length = FRONT.unpack_from(front)
        if magic != MAGIC or length < HEADER_BYTES:
            return False
        return bool(position + length > content_end(self._files, handle, position, size))

    def _pass_over(
        self, segment: Segment, handle: int, damage: tuple[int, int], following: tuple[int, int]
    ) -> None:
        """Copy the damage to a file and continue behind it; the segment stays as it is."""
        (begin, first), (limit, stop) = damage, following
        try:
            kept = keep_damaged(self._files, handle, begin, limit, segment.path).name
        except OSError as error:
            kept = f"no file, since it could not be copied ({error})"
        assert segment.index is not None
        segment.index.note(stop, limit)
        why = (
            f"bytes {begin} to {limit - 1} of {segment.path} are damaged; they were kept as {kept}"
        )
        self._gaps.append(_Gap(first, stop, why))
        self._found.findings.append(f"{why}; what stands behind them is sound")
        self._found.begins_anew = True

    def _cut(self, segment: Segment, handle: int, sound: int, reason: str) -> None:
        """Copy bytes [sound, size) to a file of their own, then truncate the segment."""
        findings = self._found.findings
        text = f"{segment.path} is sound up to byte {sound} of {segment.size} ({reason}); "
        if segment.size == sound:
            findings.append(text + "nothing had to be cut")
            return
        try:
            target = keep_damaged(self._files, handle, sound, segment.size, segment.path)
        except OSError as error:
            # No room for the copy: leave the file whole, go on behind it in a new segment.
            segment.suspect = True
            reason = f"the rest could not be copied ({error}) and stays where it is, unused"
            findings.append(text + reason)
            return
        self._files.truncate(handle, sound)
        self._files.fdatasync(handle)
        findings.append(
            text + f"the rest was quarantined as {target.name}, which is normal after a crash; "
            "otherwise check the disk. `leveret dump` shows what it holds"
        )

    # -- what is missing

    def _compare_end(self) -> None:
        """Move the end to where the log is known to have been, if its files end before."""
        found, known = self._found, self._known
        if found.end < known.certain_end:
            why = f"the log in {self._directory} ends before: its last segments are missing or cut"
            if not self._segments:
                why = f"there are no segments in {self._directory}"
            self._gaps.append(_Gap(found.end, known.certain_end, why))
            found.end = known.certain_end
            found.begins_anew = True
        if self._lacks_newest and known.mark is not None:
            first, found.end = found.end, found.end + UNSEEN_OFFSETS
            found.settled.add(first, found.end)
            found.begins_anew = True
            found.findings.append(
                f"the newest segment of {self._directory}, which began with offset "
                f"{known.mark.base}, is missing or empty: messages that were published in the last "
                "second before the node ended may have been lost with it, too"
            )

    @property
    def _lacks_newest(self) -> bool:
        """Whether the segment that was written to at the last mark is gone."""
        mark, known = self._known.mark, self._known
        if mark is None or mark.closed or not (known.same_boot and known.same_run):
            return False
        base, revision, size = self._place
        return (base, revision, min(size, 1)) < (mark.base, mark.revision, 1)

    def _weigh_gaps(self) -> None:
        """Settle the offsets of gaps; report those that were not settled as lost."""
        found = self._found
        for gap in self._gaps:
            found.removed.add(gap.first, gap.stop)
            lost = found.settled.gaps(gap.first, gap.stop)
            for part in found.compacted.gaps(gap.first, gap.stop).gaps(gap.first, gap.stop):
                lost.remove(*part)
            found.settled.add(gap.first, gap.stop)
            if not lost:
                continue
            found.given_up.add_all(lost)
            first, stop = lost.first, lost.stop
            assert first is not None
            assert stop is not None
            told = LostRange(first, stop, lost.count, gap.why)
            if gap.is_promised:
                found.losses.append(told)
            else:
                found.findings.append(f"{told}; they were not flushed")

    def _trim(self) -> None:
        """Trim the recovered state to the offsets that exist."""
        found = self._found
        found.settled.remove(found.end, OFFSET_MAX)
        for ranges in (found.told.undone, found.told.erased):
            ranges.remove(found.end, OFFSET_MAX)
            for gone in found.removed:
                ranges.remove(*gone)
        for part in found.unresolved.values():
            part.first, part.stop = min(part.first, found.end), min(part.stop, found.end)
        if found.returns.acquired:
            found.returns.keep(found.settled.gaps(0, found.end))
        found.compacted.remove(found.end, OFFSET_MAX)
