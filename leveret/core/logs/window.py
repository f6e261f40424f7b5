"""Read window: a range of a log's batches in memory, which advances as it is read.

Deliveries and dead letters have windows of their own, so that neither evicts the other's batches.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError

if TYPE_CHECKING:
    from leveret.ports import SharedLog
    from leveret.ports.records import Batch

# Read-ahead: large enough that a read call costs little per message, small enough that a thousand
# queues being drained stay within a few hundred megabytes.
READ_BYTES_MAX = 256 * 1024
# Size of a read for scattered access, and limits of what is kept.
STRETCH_BYTES_MAX = 16 * 1024
STRETCHES_BYTES_MAX = 2 * 1024 * 1024
STRETCHES_MAX = 64


class LogWindow:
    """The most recently read batches of a log."""

    __slots__ = ("_batches", "_log")

    def __init__(self, log: SharedLog) -> None:
        self._log = log
        self._batches: list[Batch] = []

    @property
    def held(self) -> list[Batch]:
        """All batches kept in memory."""
        return self._batches

    def holds(self, offset: int) -> bool:
        """Whether the window contains `offset`."""
        window = self._batches
        return bool(window) and window[0].base_offset <= offset < window[-1].stop_offset

    def at_hand(self, offset: int) -> list[Batch] | None:
        """Return batches, one of them with `offset`; None if that would take waiting.

        Raises CorruptBatchError.
        """
        window = self._batches
        if window and window[0].base_offset <= offset < window[-1].stop_offset:
            return window
        batches = self._log.read(offset, READ_BYTES_MAX)
        if batches is not None:
            self._hold(batches, offset)
        return batches

    async def fill(self, offset: int) -> list[Batch]:
        """Return batches, one of them with `offset`, waiting for the device.

        Raises StorageError.
        """
        batches = await self._log.fetch(offset, READ_BYTES_MAX)
        self._hold(batches, offset)
        return batches

    def _hold(self, batches: list[Batch], offset: int) -> None:
        """Keep the batches read for `offset`, which must be in them: it is ready or leased."""
        if not batches or not batches[0].base_offset <= offset < batches[-1].stop_offset:
            raise CorruptBatchError(f"offset {offset} is missing from {self._log!r}")
        self._batches = batches

    def clear(self) -> None:
        """Drop all batches."""
        self._batches = []


class ScatteredWindow(LogWindow):
    """Window of several ranges at once, for access to places that are far apart.

    Each range is shorter, and their total is bounded: only the newest may exceed that.
    """

    __slots__ = ("_stretches",)

    def __init__(self, log: SharedLog) -> None:
        super().__init__(log)
        self._stretches: list[list[Batch]] = []  # most recently used first

    @property
    def held(self) -> list[Batch]:
        """All batches kept in memory."""
        return [batch for stretch in self._stretches for batch in stretch]

    def holds(self, offset: int) -> bool:
        """Whether the window contains `offset`."""
        return self._find(offset) is not None

    def at_hand(self, offset: int) -> list[Batch] | None:
        """Return batches, one of them with `offset`; None if that would take waiting."""
        found = self._find(offset)
        if found is not None:
            return found
        batches = self._log.read(offset, STRETCH_BYTES_MAX)
        if batches is not None:
            self._hold(batches, offset)
        return batches

    async def fill(self, offset: int) -> list[Batch]:
        """Return batches, one of them with `offset`, waiting for the device."""
        batches = await self._log.fetch(offset, STRETCH_BYTES_MAX)
        self._hold(batches, offset)
        return batches

    def _find(self, offset: int) -> list[Batch] | None:
        for place, batches in enumerate(self._stretches):
            if batches[0].base_offset <= offset < batches[-1].stop_offset:
                if place:
                    self._stretches.insert(0, self._stretches.pop(place))
                return batches
        return None

    def _hold(self, batches: list[Batch], offset: int) -> None:
        super()._hold(batches, offset)
        self._stretches.insert(0, batches)
        held_bytes = 0
        for place, stretch in enumerate(self._stretches):
            held_bytes += sum(batch.size for batch in stretch)
            if place and (held_bytes > STRETCHES_BYTES_MAX or place >= STRETCHES_MAX):
                del self._stretches[place:]
                break

    def clear(self) -> None:
        """Drop all batches."""
        super().clear()
        self._stretches = []


def batch_of(batches: list[Batch], offset: int) -> Batch:
    """Return the batch of a window that contains `offset`, which must be in the window."""
    if len(batches) == 1:
        return batches[0]
    return batches[bisect_right(batches, offset, key=_base_offset) - 1]


_base_offset = attrgetter("base_offset")
