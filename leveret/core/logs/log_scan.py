"""Scan of a log by which state is rebuilt from its records, and the policy for damage in it.

What can be read is used. What cannot is quarantined, counts as settled and is reported; the scan
goes on behind it. Every other error of the storage ends the scan and is raised, so that nobody
takes half of a log for the whole.
"""

from __future__ import annotations

from itertools import islice
from types import coroutine
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from leveret.ports import SharedLog
    from leveret.ports.records import Batch

    Lose = Callable[[RangeSet], RangeSet]

__all__ = ["COMPILED_SLICE_BYTES", "LogScan", "quarantine"]

# Handled in one pass of the loop: Python that looks at each record takes 8 ms for so many bytes,
# compiled code much less.
SLICE_BYTES = 256 * 1024
COMPILED_SLICE_BYTES = 1 << 20
RANGES_SHOWN_MAX = 10  # per report; the files beside the log have the rest


async def quarantine(
    log: SharedLog, offset: int, report: Callable[[StorageError], None], lose: Lose
) -> RangeSet:
    """Quarantine the damage met at `offset`, and report the records that it has hit.

    `lose(unsettled)` is their owner's: it settles those that are lost, and returns them. Damage
    that another reader of the log has met before is not reported again, unless more is lost by it.
    Returns all unreadable offsets near `offset`; if it is not among them, it can be read now.
    Raises StorageError.
    """
    damage = await log.set_aside(offset)
    lost = lose(damage.lost)
    if lost or damage.is_new:
        report(loss_error(lost, damage.kept))
    return damage.unreadable


def loss_error(lost: RangeSet, kept: Sequence[str]) -> StorageError:
    """Return the report on lost offsets, and on the files with the damaged bytes."""
    if lost:
        shown = [_range_text(*piece) for piece in islice(lost, RANGES_SHOWN_MAX)]
        shown += ["…"] * (len(lost) > RANGES_SHOWN_MAX)
        text = f"messages lost: {lost.count} (at offset {', '.join(shown)}); "
    else:
        text = "no message is lost, but "
    text += "the disk did not keep what was written. "
    if kept:
        text += (
            f"The damaged bytes are quarantined in {', '.join(kept)}; "
            "`leveret dump` shows what such a file holds. "
        )
    return StorageError(text + "All other messages are delivered. Check the disk")


def _range_text(first: int, stop: int) -> str:
    return str(first) if stop == first + 1 else f"{first}-{stop - 1}"


class LogScan:
    """One pass over the unsettled records [first, stop) of a log; from `all_from` on, over all.

    `report` and `lose` are those of `quarantine`. Records settled meanwhile may be among those
    that are read.
    """

    def __init__(
        self,
        log: SharedLog,
        report: Callable[[StorageError], None],
        lose: Lose,
        *,
        first: int = 0,
        stop: int | None = None,
        all_from: int | None = None,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self._log = log
        self._report = report
        self._lose = lose
        self.all_from = all_from
        self._slice_bytes = slice_bytes
        self._is_begun = False
        self.stop = log.committed if stop is None else stop
        self.offset = first  # everything below was read, or is lost
        self._unsettled = log.settled.gaps(first, self.stop)
        self._unreadable = RangeSet()

    @property
    def is_over(self) -> bool:
        """Whether everything was read."""
        return self.offset >= self.stop

    async def read(self) -> list[Batch]:
        """Return the next batches, of which each may also hold other records; empty at the end.

        Raises StorageError; the next call tries the same again.
        """
        while (offset := self._next()) is not None:
            if self._is_begun:
                await _pass_of_loop()
            batches = await self._fetch(offset)
            self._is_begun = True
            if batches:
                self.offset = min(batches[-1].stop_offset, self.stop)
                if batches[-1].base_offset >= self.stop:
                    return [batch for batch in batches if batch.base_offset < self.stop]
                return batches
        self.offset = self.stop
        return []

    def _next(self) -> int | None:
        """Return the next offset to be read, or None."""
        unsettled: int | None = self._unsettled.first_from(self.offset)
        kept = None if self.all_from is None else self._next_kept(max(self.offset, self.all_from))
        return min((each for each in (unsettled, kept) if each is not None), default=None)

    def _next_kept(self, offset: int) -> int | None:
        """Return the next readable offset, settled or not: some settled ones were removed."""
        for file in self._log.list_files():
            if offset < file.stop:
                stop = min(file.stop, self.stop)
                found: int | None = self._unreadable.gaps(max(offset, file.first), stop).first
                if found is not None:
                    return found
        return None

    async def _fetch(self, offset: int) -> list[Batch]:
        """Return batches, the first with `offset`; empty if that is lost."""
        try:
            return self._checked(await self._log.fetch(offset, self._slice_bytes), offset)
        except CorruptBatchError:
            unreadable = await quarantine(self._log, offset, self._report, self._lose)
            if offset not in unreadable:
                return self._checked(await self._log.fetch(offset, self._slice_bytes), offset)
            for first, stop in unreadable:
                self._unsettled.remove(first, stop)
                self._unreadable.add(first, stop)
            return []

    @staticmethod
    def _checked(batches: list[Batch], offset: int) -> list[Batch]:
        if not batches or not batches[0].base_offset <= offset < batches[0].stop_offset:
            raise CorruptBatchError(f"offset {offset} is missing from its log")
        return batches


@coroutine
def _pass_of_loop() -> Generator[None, None, None]:
    """Let others run."""
    yield
