"""Reading of delayed records, which are needed in order of due times, not of the log.

Callers ask for several at once: they are read in the order of the log, so that records of one
batch, and batches close to each other, are read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.log_scan import quarantine
from leveret.core.logs.window import batch_of
from leveret.errors import CorruptBatchError, StorageError
from leveret.features.delay.store.due_list import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.logs.log_writer import LogWriter
    from leveret.ports import TopicLog
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch

# Size of a read: below this the call costs more than the bytes, and more is mostly not needed.
READ_BYTES_MAX = 64 * 1024


class PendingMessage(NamedTuple):
    """Delayed record, with what is to be published when it is due."""

    offset: int
    due_ms: int  # milliseconds since 1970
    flags: int  # RecordFlag
    exchange: bytes
    routing_key: bytes
    header: bytes  # content header payload
    body: bytes


# The same as read from the log: a plain tuple of plain values costs the garbage collector nothing,
# unlike a named tuple, and there may be a hundred thousand of them.
Raw: TypeAlias = tuple[int, int, int, bytes, bytes, bytes, bytes]


def by_due_time(raw: Raw) -> tuple[int, int]:
    """Sort key: due time, then order of addition."""
    return raw[1], raw[0]


class DelayedMessageReader:
    """Reads records of one delayed-message store. `lose` is that of `quarantine`."""

    def __init__(
        self,
        store: LogWriter,
        report: Callable[[object, Exception], None],
        lose: Callable[[RangeSet], RangeSet],
    ) -> None:
        self._log: TopicLog = store.log
        self._lose = lose
        self._errors = ErrorThrottle(store, report)

    def at_hand(self, offsets: Sequence[int], reads_max: int) -> tuple[list[Raw], int]:
        """Return the first of ascending committed `offsets` that are available without waiting.

        Returns (records found, number of offsets looked up), after at most `reads_max` reads.
        Raises StorageError if the first cannot be read.
        """
        found: list[Raw] = []
        batches: list[Batch] = []
        for at, offset in enumerate(offsets):
            if not _holds(batches, offset):
                try:
                    more = self._log.read(offset, READ_BYTES_MAX) if reads_max else None
                    reads_max -= 1
                    if more is None:
                        return found, at
                    batches = _checked(more, offset)
                except StorageError:
                    if at:
                        return found, at  # return the others first
                    raise
            _note(found, batches, offset)
        return found, len(offsets)

    async def fetch(self, offsets: Sequence[int]) -> list[Raw]:
        """Return the records of ascending committed `offsets`, except lost ones.

        Raises StorageError.
        """
        found: list[Raw] = []
        batches: list[Batch] = []
        for offset in offsets:
            if not _holds(batches, offset):
                fetched = await self._fetch(offset)
                if fetched is None:
                    continue
                batches = fetched
            _note(found, batches, offset)
        self._errors.end()
        return found

    async def _fetch(self, offset: int) -> list[Batch] | None:
        """Return batches from the one with `offset` on; None if it is lost."""
        try:
            return _checked(await self._log.fetch(offset, READ_BYTES_MAX), offset)
        except CorruptBatchError:
            if offset in self._log.settled:
                return None  # its file may have been deleted
            if offset in await quarantine(self._log, offset, self.report, self._lose):
                return None
            return _checked(await self._log.fetch(offset, READ_BYTES_MAX), offset)

    def report(self, error: StorageError) -> None:
        """Report a read error to the operator, once."""
        self._errors.report(error)


def _holds(batches: list[Batch], offset: int) -> bool:
    return bool(batches) and batches[0].base_offset <= offset < batches[-1].stop_offset


def _checked(batches: list[Batch], offset: int) -> list[Batch]:
    if not _holds(batches, offset):
        raise CorruptBatchError(f"offset {offset} is missing from its log")
    return batches


def _note(found: list[Raw], batches: list[Batch], offset: int) -> None:
    """Append one record to `found`."""
    found.append(record_of(batch_of(batches, offset), offset))
