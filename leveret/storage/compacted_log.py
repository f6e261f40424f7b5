"""Compaction's side of a log: which segments may be written anew, and how a new one is put in.

`Compactor` (storage/compaction.py) calls what is here on the event loop, between the steps of its
thread. Decision 0053 says what a crash in between leaves behind.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from leveret.storage.checkpoint import RecoveredState, checkpoint_payload
from leveret.storage.compaction import CompactionFigures
from leveret.storage.flush import FlushedLog
from leveret.storage.index import OFFSET_MAX
from leveret.storage.reclaimer import READ_SECONDS
from leveret.storage.rewriting import next_revision
from leveret.storage.segments import remove_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.ports import Compaction, Durability
    from leveret.ports.ranges import RangeSet
    from leveret.storage.encryption import DataKey
    from leveret.storage.recovery import Recovered
    from leveret.storage.rewriting import Rewritten
    from leveret.storage.segment import Segment
    from leveret.storage.services import LogServices

__all__ = ["CompactedLog"]


class CompactedLog(FlushedLog):
    """A log whose sealed segments may be replaced by compacted ones. `compacted` has figures."""

    __slots__ = ("compacted",)

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        durability: Durability,
        recovered: Recovered,
        data_key: DataKey | None,
    ) -> None:
        super().__init__(services, directory, durability, recovered, data_key)
        self.compacted = CompactionFigures()

    @property
    @abstractmethod
    def compaction(self) -> Compaction | None:
        """How the log is compacted by key; None: it is not."""

    @abstractmethod
    def retention_waits_from(self) -> int | None:
        """Return the offset from which on retention keeps all for a reader that is behind."""

    def tell_removed(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Tell who asked for it (`on_remove`) that records were removed."""
        for callback in self._reclaimer.on_remove:
            callback(ranges)

    def compactable(self) -> list[Segment]:
        """Return the sealed segments, oldest first, up to the first that must stay as it is.

        Their content is on the disk, all transactions in them are resolved, and no reader needs
        what was superseded in them.
        """
        parts = self._unresolved.values()
        stop = min([self.committed, *(part.first for part in parts)])
        for needed in (self._reclaimer.kept_from, self.retention_waits_from()):
            if needed is not None:
                stop = min(stop, needed)
        flushing = self._running.segments if self._running is not None else ()
        found: list[Segment] = []
        for segment in self._segments.items[:-1]:
            if segment.dirty or segment.suspect or segment in flushing or segment.stop > stop:
                break
            if not self._stated.contains(segment.base, segment.stop):
                found.append(segment)
        return found

    def may_compact(self, segment: Segment) -> bool:
        """Whether a segment that was compactable still is."""
        return (
            not self._closed
            and segment in self._segments.items
            and not self._reclaimer.is_waiting(segment)
            and not self._stated.contains(segment.base, segment.stop)
        )

    def next_revision(self, segment: Segment) -> int | None:
        """Return the number of a segment's compacted file; None: it is not compacted any more."""
        return next_revision(segment.revision, self._services.epoch)

    def settled_below(self, offset: int) -> bytes:
        """Return the payload of a checkpoint as of an offset below which nothing is unresolved."""
        told = RecoveredState(
            self._stated.copy(),
            undone=self.undone.copy(),
            erased=self.erased.copy(),
            retained_from=self.retained_from,
        )
        for ranges in (told.settled, told.undone, told.erased):
            ranges.remove(offset, OFFSET_MAX)
        return checkpoint_payload(told)

    def replace(self, old: Segment, made: Rewritten) -> bool:
        """Put a compacted segment in the place of the one that it was made of.

        Returns False where that is not there any more; the file is then removed.
        """
        new = made.segment
        if not self.may_compact(old):
            self._remove_replaced(new)
            return False
        if self._stated is self.settled:
            self._stated = self.settled.copy()
            self._reclaimer.use(self._stated)
        self.settled.add_all(made.superseded)
        if self._reclaimer.on_remove:
            self.tell_removed(list(made.superseded))
        self._services.open_files.forget(old)
        self._segments.replace(old, new)
        self._remove_replaced(old)
        self._reader.forget()
        if made.is_empty:
            self.settle([(new.base, new.stop)])  # so that it goes as a whole
        else:
            self._leave_to(new, made.live)
        return True

    def _leave_to(self, segment: Segment, live: RangeSet) -> None:
        """Do not state any more what a compacted segment says: all but what was `live` in it."""
        base, stop = segment.base, segment.stop
        stated = self._stated.gaps(base, stop).gaps(base, stop)
        self._stated.remove(base, stop)
        self.undone.remove(base, stop)
        self.erased.remove(base, stop)
        for first, behind in stated:  # what was settled meanwhile
            self._stated.add_all(live.gaps(first, behind).gaps(first, behind))

    def _remove_replaced(self, segment: Segment) -> None:
        """Remove the files of a segment that is used no more, once nobody reads them."""
        if segment.pins:
            self._services.loop.call_later(READ_SECONDS, self._remove_replaced, segment)
            return
        removal = partial(remove_files, self._services.files, segment)
        self._services.committer.submit(removal, self._reclaimer.unlinked)
