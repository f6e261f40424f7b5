"""Reading of a delayed-message store's records, in the order of due times, not of the log.

Whoever wants some asks for them at once: they are read in the order of the log, so that records
of one batch, and batches that lie near each other, are read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from leveret.core.logs.data_loss import loss_error
from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.window import batch_of
from leveret.errors import CorruptBatchError, StorageError
from leveret.features.due_list import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.logs.log_writer import LogWriter
    from leveret.ports import TopicLog
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch

# One read: below this the call costs more than the bytes, and of much more most is not wanted.
READ_BYTES_MAX = 64 * 1024


class PendingMessage(NamedTuple):
    """A record that waits, and what there is to publish when its time comes."""

    offset: int
    due_ms: int  # milliseconds since 1970
    flags: int  # RecordFlag
    exchange: bytes
    routing_key: bytes
    header: bytes  # content header payload
    body: bytes


# The same as it comes from the log. Unlike a named tuple, a plain one of plain values costs the
# collector nothing, and there may be a hundred thousand of them.
Raw: TypeAlias = tuple[int, int, int, bytes, bytes, bytes, bytes]


def by_due_time(raw: Raw) -> tuple[int, int]:
    """Sorts by due time; those of a millisecond as they were added."""
    return raw[1], raw[0]


class DelayedMessageReader:
    """Reads for one delayed-message store. `lost(ranges)` is told of what no device gives back."""

    def __init__(
        self,
        store: LogWriter,
        report: Callable[[object, Exception], None],
        lost: Callable[[RangeSet], None],
    ) -> None:
        self._log: TopicLog = store.log
        self._lost = lost
        self._errors = ErrorThrottle(store, report)

    def at_hand(self, offsets: Sequence[int], reads_max: int) -> tuple[list[Raw], int]:
        """The first of ascending committed `offsets` that can be had without waiting.

        Returns what was found of them, and how many were looked for, with `reads_max` reads. Raises
        StorageError where the first cannot be read.
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
                        return found, at  # the others first
                    raise
            _note(found, batches, offset)
        return found, len(offsets)

    async def fetch(self, offsets: Sequence[int]) -> list[Raw]:
        """All of ascending committed `offsets` but those that are lost. Raises StorageError."""
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

    async def stretch(self, offset: int, bytes_max: int) -> list[Batch]:
        """Batches of which the first holds `offset`; none where it is lost. Raises StorageError."""
        return await self._fetch(offset, bytes_max) or []

    async def _fetch(self, offset: int, bytes_max: int = READ_BYTES_MAX) -> list[Batch] | None:
        """Batches of which the first holds `offset`; None where it is lost."""
        for _ in range(2):
            try:
                return _checked(await self._log.fetch(offset, bytes_max), offset)
            except CorruptBatchError:
                if offset in self._log.settled:
                    return None  # its file may be gone by now
                damage = await self._log.set_aside(offset)
                self._lost(damage.lost)
                if damage.lost or damage.kept:
                    self._errors.report(loss_error(damage.lost, damage.kept))
                if offset in self._log.settled or offset in damage.lost:
                    return None
        return _checked(await self._log.fetch(offset, READ_BYTES_MAX), offset)

    def report(self, error: StorageError) -> None:
        """Tell the operator of what could not be read, once."""
        self._errors.report(error)


def _holds(batches: list[Batch], offset: int) -> bool:
    return bool(batches) and batches[0].base_offset <= offset < batches[-1].stop_offset


def _checked(batches: list[Batch], offset: int) -> list[Batch]:
    if not _holds(batches, offset):
        raise CorruptBatchError(f"offset {offset} is missing from its log")
    return batches


def _note(found: list[Raw], batches: list[Batch], offset: int) -> None:
    """Take one record over."""
    found.append(record_of(batch_of(batches, offset), offset))
