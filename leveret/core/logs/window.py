"""A stretch of a queue's log in memory, which moves on as it is read.

Deliveries have one and dead letters another, so that neither takes what the other has read.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError

if TYPE_CHECKING:
    from leveret.ports import TopicLog
    from leveret.ports.records import Batch

# Read ahead this far: large enough that a read call costs little per message, small enough that a
# thousand queues being drained stay within a few hundred megabytes.
READ_BYTES_MAX = 256 * 1024
# Where messages are taken here and there, so much is read at a time, and so much of it is kept.
STRETCH_BYTES_MAX = 16 * 1024
STRETCHES_BYTES_MAX = 2 * 1024 * 1024
STRETCHES_MAX = 64


class LogWindow:
    """The batches that were read last."""

    __slots__ = ("_batches", "_log")

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._batches: list[Batch] = []

    @property
    def held(self) -> list[Batch]:
        """All batches that it keeps in memory."""
        return self._batches

    def holds(self, offset: int) -> bool:
        """Whether a batch that was read last holds `offset`."""
        window = self._batches
        return bool(window) and window[0].base_offset <= offset < window[-1].stop_offset

    def at_hand(self, offset: int) -> list[Batch] | None:
        """Batches of which one holds `offset`; None where that would take waiting.

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
        """The same, waiting for the device. Raises StorageError."""
        batches = await self._log.fetch(offset, READ_BYTES_MAX)
        self._hold(batches, offset)
        return batches

    def _hold(self, batches: list[Batch], offset: int) -> None:
        """Keep what was read for `offset`, which must be in it: it is ready or leased."""
        if not batches or not batches[0].base_offset <= offset < batches[-1].stop_offset:
            raise CorruptBatchError(f"offset {offset} is missing from {self._log!r}")
        self._batches = batches

    def clear(self) -> None:
        """Keep nothing: there is nobody to read for."""
        self._batches = []


class ScatteredWindow(LogWindow):
    """Several stretches at once, for whoever takes turns in places that lie far apart.

    Each is shorter, and all together are bounded: only the newest may be larger than that.
    """

    __slots__ = ("_stretches",)

    def __init__(self, log: TopicLog) -> None:
        super().__init__(log)
        self._stretches: list[list[Batch]] = []  # the one used last in front

    @property
    def held(self) -> list[Batch]:
        """See LogWindow."""
        return [batch for stretch in self._stretches for batch in stretch]

    def holds(self, offset: int) -> bool:
        """See LogWindow."""
        return self._find(offset) is not None

    def at_hand(self, offset: int) -> list[Batch] | None:
        """See LogWindow."""
        found = self._find(offset)
        if found is not None:
            return found
        batches = self._log.read(offset, STRETCH_BYTES_MAX)
        if batches is not None:
            self._hold(batches, offset)
        return batches

    async def fill(self, offset: int) -> list[Batch]:
        """See LogWindow."""
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
        """See LogWindow."""
        super().clear()
        self._stretches = []


def batch_of(batches: list[Batch], offset: int) -> Batch:
    """The batch of a window that holds `offset`, which is within the window."""
    if len(batches) == 1:
        return batches[0]
    return batches[bisect_right(batches, offset, key=_base_offset) - 1]


_base_offset = attrgetter("base_offset")
