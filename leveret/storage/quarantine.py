"""Quarantine of one log's damage: what cannot be read is copied aside and reported once.

Made by `PartitionLog.set_aside` at a log's first damage. Runs on the event loop; the files are read
and copied in a worker thread. The copies themselves are made in storage/damage.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.ports import Damage
from leveret.ports.ranges import RangeSet
from leveret.storage.damage import Survey, keep_aside
from leveret.storage.files import storage_error

if TYPE_CHECKING:
    from leveret.storage.flush import FlushedLog
    from leveret.storage.reader import LogReader
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments
    from leveret.storage.services import LogServices
    from leveret.storage.tail import LogTail

__all__ = ["Quarantine"]


class Quarantine:
    """Keeps the damaged parts of one log aside, one at a time."""

    __slots__ = ("_lock", "_log", "_reader", "_segments", "_services", "_tail")

    def __init__(
        self,
        log: FlushedLog,
        services: LogServices,
        segments: Segments,
        reader: LogReader,
        tail: LogTail,
    ) -> None:
        """`segments`, `reader` and `tail` are the log's."""
        self._log = log
        self._services = services
        self._segments = segments
        self._reader = reader
        self._tail = tail
        self._lock = asyncio.Lock()

    async def set_aside(self, offset: int) -> Damage:
        """Quarantine damage at `offset` (see ports.TopicLog). Raises StorageError."""
        async with self._lock:
            if self._log.is_closed:
                raise StorageError(f"the log in {self._log.directory} is closed")
            segment = self._segments.holding(offset)
            if segment is None:
                return self._missing(offset)
            if segment is self._segments.active:
                # Recovery cuts a last segment at its first damage: nothing more shall be behind it.
                self._segments.roll(self._log.end)
            return await self._set_aside(segment)

    async def _set_aside(self, segment: Segment) -> Damage:
        # A flush to come writes the index too. Where neither does, the next run finds the same
        # damage again, and loses nothing more by it.
        settled_down = not (segment.dirty or segment.suspect or self._log.is_flushing)
        segment.pins += 1
        try:
            found, kept, is_new = await self._services.loop.run_in_executor(
                self._services.pool,
                lambda: keep_aside(
                    self._services.files,
                    segment,
                    gapless=self._reader.gapless,
                    indexed=settled_down,
                    check=self._services.keyring.unsealer.verify,
                ),
            )
        except OSError as error:
            raise storage_error("quarantine the damaged part of", segment.path, error) from error
        finally:
            self._segments.unpin(segment)
        if not self._log.is_closed:
            self._reader.forget()
            segment.index = found.index
            self._services.open_files.use(segment)
        unreadable = self._unreadable(found)
        lost = self._unsettled(unreadable)
        files = [str(segment.directory / name) for name in kept]
        if lost:
            self._services.lost(self._log.directory, lost, files)
        return Damage(lost, files, unreadable, is_new)

    def _missing(self, offset: int) -> Damage:
        """Return that no file holds `offset`, nor those up to the next file."""
        following = [item.base for item in self._segments.items if item.base > offset]
        stop = min([*following, max(self._log.committed, offset + 1)])
        unreadable = RangeSet([(offset, stop)])
        return Damage(self._unsettled(unreadable), [], unreadable, is_new=False)

    def _unreadable(self, found: Survey) -> RangeSet:
        """Return damaged and compacted offsets, but those in memory or waiting for a flush."""
        unreadable = found.compacted.copy()
        committed = self._log.committed
        for stretch in found.damaged:
            if stretch.first < min(stretch.stop, committed):
                unreadable.add(stretch.first, min(stretch.stop, committed))
        for batch in self._tail.batches:
            if batch is not None:
                unreadable.remove(batch.base_offset, batch.stop_offset)
        return unreadable

    def _unsettled(self, ranges: RangeSet) -> RangeSet:
        settled = self._log.settled
        return RangeSet(part for first, stop in ranges for part in settled.gaps(first, stop))
