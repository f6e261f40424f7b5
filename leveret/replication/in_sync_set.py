"""The in-sync set of a reign: as it is recorded, and as the leader is writing it.

From the moment a write is sent until it is known to be done or refused, the members of both sets
count: the new one may be recorded already, the old one may stay. One whose answer was lost may be
done at any later time; only a newer entry settles it. So the old one is written again, unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports.coordinator import WriteOutcome
from leveret.replication.effects import Effect, ReadEntry, WriteEntry

if TYPE_CHECKING:
    from leveret.replication.shard import ShardEntry

__all__ = ["InSyncSet"]


class InSyncSet:
    """The entry that is `recorded`, and the one that is being `written`, if any."""

    def __init__(self, recorded: ShardEntry) -> None:
        self.recorded = recorded
        self.written: ShardEntry | None = None
        self._seen = recorded  # the newest entry that was read
        self._is_unknown = False  # whether its answer was lost, and the old one is written again
        self._awaits_newer = False  # whether somebody has written a newer one, not read yet

    @property
    def counted(self) -> frozenset[int]:
        """Members whose acknowledgements are waited for."""
        isr = self.recorded.isr
        return isr if self.written is None else isr | self.written.isr

    @property
    def certain(self) -> frozenset[int]:
        """Members of both sets: as far as logs have a minimum of them, these are counted."""
        isr = self.recorded.isr
        return isr if self.written is None else isr & self.written.isr

    def write(self, entry: ShardEntry, members: tuple[tuple[int, int], ...] = ()) -> Effect:
        """Replace the recorded entry (see effects.WriteEntry)."""
        assert self.written is None
        self.written = entry
        return WriteEntry(entry, members)

    def answered(self, outcome: WriteOutcome) -> list[Effect]:
        """Note the answer to the last write."""
        assert self.written is not None
        if outcome is WriteOutcome.DONE:
            self._settle(self.recorded.changed() if self._is_unknown else self.written)
        elif self._seen.change > self.recorded.change:
            self._settle(self._seen)
        elif outcome is WriteOutcome.UNKNOWN:
            self._is_unknown = True
            return [WriteEntry(self.recorded.changed())]
        else:
            self._awaits_newer = self._is_unknown  # that may be the lost write
            if not self._is_unknown:
                self.written = None  # it is never done any more
            return [ReadEntry()]
        return []

    def learned(self, entry: ShardEntry) -> None:
        """Note an entry of the same reign that was read. It counts if no write is under way."""
        if entry.change > self._seen.change:
            self._seen = entry
            if self.written is None or self._awaits_newer:
                self._settle(entry)

    def _settle(self, entry: ShardEntry) -> None:
        self.recorded = entry if entry.change > self._seen.change else self._seen
        self._seen = self.recorded
        self.written = None
        self._is_unknown = self._awaits_newer = False
