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


class LogWindow:
    """The batches that were read last."""

    __slots__ = ("_batches", "_log")

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._batches: list[Batch] = []

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


def batch_of(batches: list[Batch], offset: int) -> Batch:
    """The batch of a window that holds `offset`, which is within the window."""
    if len(batches) == 1:
        return batches[0]
    return batches[bisect_right(batches, offset, key=_base_offset) - 1]


_base_offset = attrgetter("base_offset")
