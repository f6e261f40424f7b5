"""Readers that wait for more: woken by commits, by their time, or by the end of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.extensions import QueueExtension
from leveret.ports.callbacks import do_nothing
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.timers import Timers
    from leveret.ports import SharedLog

__all__ = ["GATHER_MS", "PartitionReads", "WaitingReader"]

# Time from a commit until waiting readers are woken: where messages come one by one, an answer for
# each would cost more than publishing them.
GATHER_MS = 10


class WaitingReader:
    """A reader that waits at `offset`; `woken()` is called once, unless it cancels."""

    def __init__(
        self, place: PartitionReads, offset: int, timers: Timers, woken: Callable[[], None]
    ) -> None:
        self.offset = offset
        self._place = place
        self._woken = woken
        self._timer = timers.timer(self.wake)

    def begin(self, until_ms: int) -> None:
        """Wait until that time at most."""
        self._place.waiting.add(self)
        self._timer.set(until_ms)

    def wake(self) -> None:
        """Let the reader go on."""
        woken = self._woken
        self.cancel()
        woken()

    def cancel(self) -> None:
        """Stop waiting, and refer to nobody. No-op if it was woken."""
        self._place.waiting.discard(self)
        self._timer.close()
        self._woken = do_nothing


class PartitionReads(QueueExtension):
    """Readers that wait at one partition's end, and its damage that reading has met."""

    outlives_reordering = True

    def __init__(self, log: SharedLog, timers: Timers) -> None:
        self._log = log
        self.waiting: set[WaitingReader] = set()
        self.unreadable = RangeSet()
        self._timers = timers
        self._timer = timers.timer(self._wake)

    def committed(self) -> None:
        """Wake the waiting readers, after a moment in which more may come."""
        if self.waiting and self._timer.due_ms is None:
            self._timer.set(self._timers.wall_ms() + GATHER_MS)

    def _wake(self) -> None:
        committed = self._log.committed
        for reader in [each for each in self.waiting if each.offset < committed]:
            reader.wake()

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """Estimated memory."""
        return self.unreadable.held_bytes

    def close(self) -> None:
        """Wake the readers: the queue was deleted."""
        self._timer.close()
        for reader in list(self.waiting):
            reader.wake()
