"""Reading of delayed records, some seconds before they are due.

The order of due times is unrelated to that of the log. Read one by one when they are due, each
record would need a read of its own; read some seconds ahead, many at a time in the order of the
log, neighbouring ones share a read. Urgent records, which have a short delay or are late already,
are read first. What was read waits in memory, ordered by due time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.core.logs.log_scan import quarantine
from leveret.core.logs.window import batch_of
from leveret.core.routing.message import StoredMessage
from leveret.errors import CorruptBatchError, StorageError
from leveret.features.delay.due_list import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence

    from leveret.core.logs.log_writer import LogWriter
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch

AHEAD_MS = 4_000  # a record is read this long before it is due
GATHER_MS = 2_000  # time span of records read in one go
URGENT_MS = 500  # records due within this time are read first
# Size of a read: below this the call costs more than the bytes, and more is mostly not needed.
READ_BYTES_MAX = 64 * 1024
READS_AT_ONCE_MAX = 8  # reads from the page cache in one turn of the loop: 1 to 3 ms
RECORDS_AT_ONCE_MAX = 500
URGENT_PASS_MAX = 4000  # so that the first are not delayed until a million have been read
# Limits of records read but not yet due: about 30 MB of records with 200 bytes each.
BUFFER_COUNT_MAX = 100_000
BUFFER_BYTES_MAX = 32 << 20


class PendingMessage(NamedTuple):
    """Delayed record, with what is to be published when it is due. Sorts by due time."""

    due_ms: int  # milliseconds since 1970
    offset: int
    flags: int  # RecordFlag
    exchange: bytes
    routing_key: bytes
    header: bytes  # content header payload
    body: bytes

    @property
    def stored(self) -> StoredMessage:
        """Return it as a message."""
        return StoredMessage(*self[3:], self.flags)


# The same as read from the log: a plain tuple of plain values costs the garbage collector nothing,
# unlike a named tuple, and there may be a hundred thousand of them.
Raw: TypeAlias = tuple[int, int, int, bytes, bytes, bytes, bytes]


class ReadQueue:
    """Read queue: offsets to be read in order of due times, a pass at a time."""

    def __init__(self, pass_max: int | None) -> None:
        self._pass_max = pass_max
        self._wanted: deque[int] = deque()
        self._pass: list[int] = []  # the current pass, in descending order of offsets

    def __bool__(self) -> bool:
        return bool(self._pass or self._wanted)

    @property
    def is_reading(self) -> bool:
        """Whether a pass has begun and not ended."""
        return bool(self._pass)

    def want(self, offsets: Iterable[int]) -> None:
        """Add offsets at the end."""
        self._wanted.extend(offsets)

    def next(self) -> list[int]:
        """Return the next offsets to be read, in ascending order."""
        if not self._pass:
            count = len(self._wanted)
            if self._pass_max is not None:
                count = min(count, self._pass_max)
            self._pass = sorted((self._wanted.popleft() for _ in range(count)), reverse=True)
        return self._pass[: -RECORDS_AT_ONCE_MAX - 1 : -1]

    def done(self, count: int) -> None:
        """Remove `count` offsets that were read."""
        del self._pass[len(self._pass) - count :]

    def clear(self) -> None:
        """Drop all pending reads."""
        self._wanted.clear()
        self._pass.clear()


class DelayedMessageReader:
    """Reads the records of one delayed-message store, and holds those that are due soon.

    `waits(offset)` says whether a record still waits, `retry(offsets)` gets those that could not be
    read now; `lose` is that of `quarantine`. The store's `pump` calls `work`.
    """

    def __init__(  # noqa: PLR0917  # what the store has one of each
        self,
        store: LogWriter,
        spawn: Callable[[Coroutine[object, object, None]], object],
        report: Callable[[object, Exception], None],
        waits: Callable[[int], bool],
        retry: Callable[[Collection[int]], None],
        lose: Callable[[RangeSet], RangeSet],
    ) -> None:
        self._store = store
        self._log = store.log
        self._spawn = spawn
        self._waits = waits
        self._retry = retry
        self._lose = lose
        self._errors = ErrorThrottle(store, report)
        self._urgent = ReadQueue(URGENT_PASS_MAX)
        self._urgent_found: list[Raw] = []
        self._ahead = ReadQueue(None)
        self._fetching = False
        self._buffer: list[Raw] = []  # heap of records read but not yet due
        self._buffer_bytes = 0

    def report(self, error: StorageError) -> None:
        """Report a read error to the operator, once."""
        self._errors.report(error)

    # -- records that are due soon

    def want(self, offsets: Iterable[int], *, urgent: bool) -> None:
        """Schedule offsets to be read soon."""
        (self._urgent if urgent else self._ahead).want(offsets)
        self._store.turn.touch(self._store)

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the first record that was read, or None."""
        return self._buffer[0][0] if self._buffer else None

    def take_due(self, now_ms: int, count_max: int) -> list[Raw]:
        """Remove and return records that are due, in order of due times, then of addition.

        Some may no longer wait.
        """
        buffer = self._buffer
        found: list[Raw] = []
        while buffer and buffer[0][0] <= now_ms and len(found) < count_max:
            raw = heappop(buffer)
            self._buffer_bytes -= len(raw[-1])
            found.append(raw)
        if found and not buffer and self._ahead:
            self._store.turn.touch(self._store)
        return found

    def work(self) -> bool:
        """Read for one turn. Returns whether another turn could read more."""
        read_queue = self._next_read_queue()
        if read_queue is None:
            return False
        offsets = read_queue.next()
        wanted = sorted(set(filter(self._waits, offsets)))
        read = self._read(read_queue, wanted)
        read_queue.done(bisect_left(offsets, wanted[read]) if read < len(wanted) else len(offsets))
        self._keep_urgent()
        return self._next_read_queue() is not None

    def _next_read_queue(self) -> ReadQueue | None:
        """Return the queue to read from; None if nothing can be read now."""
        if self._fetching:
            return None
        if self._urgent:
            return self._urgent
        is_full = len(self._buffer) >= BUFFER_COUNT_MAX or self._buffer_bytes >= BUFFER_BYTES_MAX
        return self._ahead if self._ahead and not is_full else None

    def _read(self, read_queue: ReadQueue, offsets: list[int]) -> int:
        """Read the first of ascending offsets.

        Returns their number; starts a fetch if none is in memory.
        """
        if not offsets:
            return 0
        found, read = self._at_hand(offsets)
        self._take_over(read_queue, found)
        if not read:
            self._fetching = True
            self._spawn(self._fetch_ahead(read_queue, offsets[:READS_AT_ONCE_MAX]))
            return len(offsets[:READS_AT_ONCE_MAX])
        return read

    async def _fetch_ahead(self, read_queue: ReadQueue, offsets: list[int]) -> None:
        try:
            found = await self.fetch(offsets)
        except StorageError as error:
            self.report(error)
            self._retry(offsets)
        else:
            self._take_over(read_queue, found)
        finally:
            self._fetching = False
        self._keep_urgent()
        self._store.turn.touch(self._store)

    def _take_over(self, read_queue: ReadQueue, found: list[Raw]) -> None:
        if read_queue is self._urgent:
            self._urgent_found += found
        else:
            self._keep(found)

    def _keep_urgent(self) -> None:
        """Keep late records together after their pass, so that they are delivered in order."""
        if self._urgent_found and not self._fetching and not self._urgent.is_reading:
            found, self._urgent_found = self._urgent_found, []
            self._keep(found)

    def _keep(self, found: list[Raw]) -> None:
        for raw in found:
            heappush(self._buffer, raw)
            self._buffer_bytes += len(raw[-1])

    def clear(self) -> None:
        """Drop everything."""
        self._urgent.clear()
        self._urgent_found.clear()
        self._ahead.clear()
        self._buffer.clear()
        self._buffer_bytes = 0

    # -- reading

    def _at_hand(self, offsets: Sequence[int]) -> tuple[list[Raw], int]:
        """Return the first of ascending committed `offsets` that are available without waiting.

        Returns (records found, number of offsets looked up), after at most READS_AT_ONCE_MAX reads.
        Damage ends it: `fetch` finds it again and handles it.
        """
        found: list[Raw] = []
        batches: list[Batch] = []
        reads_left = READS_AT_ONCE_MAX
        for at, offset in enumerate(offsets):
            if not _holds(batches, offset):
                try:
                    more = self._log.read(offset, READ_BYTES_MAX) if reads_left else None
                    if more is None:
                        return found, at
                    batches = _checked(more, offset)
                except StorageError:
                    return found, at
                reads_left -= 1
            found.append(record_of(batch_of(batches, offset), offset))
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
            found.append(record_of(batch_of(batches, offset), offset))
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


def _holds(batches: list[Batch], offset: int) -> bool:
    return bool(batches) and batches[0].base_offset <= offset < batches[-1].stop_offset


def _checked(batches: list[Batch], offset: int) -> list[Batch]:
    if not _holds(batches, offset):
        raise CorruptBatchError(f"offset {offset} is missing from its log")
    return batches
