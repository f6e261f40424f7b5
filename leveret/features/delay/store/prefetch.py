"""Prefetch buffer of a delayed-message store: records due within seconds, read ahead.

The order of due times is unrelated to that of the log. Read one by one when they are due, each
record would need a read of its own; read some seconds ahead, many at a time in the order of the
log, neighbouring ones share a read. Urgent records, which have a short delay or are late already,
are read first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from leveret.features.delay.store.reader import DelayedMessageReader, Raw

AHEAD_MS = 4_000  # a record is read this long before it is due
GATHER_MS = 2_000  # time span of records read in one go
URGENT_MS = 500  # records due within this time are read first
READS_AT_ONCE_MAX = 8  # reads from the page cache in one turn of the loop: 1 to 3 ms
RECORDS_AT_ONCE_MAX = 500
URGENT_PASS_MAX = 4000  # so that the first are not delayed until a million have been read
# Limits of records read but not yet due: about 30 MB of records with 200 bytes each.
STAGED_COUNT_MAX = 100_000
STAGED_BYTES_MAX = 32 << 20


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


class PrefetchBuffer:
    """Prefetched records of one store.

    `waits(offset)` says whether a record still waits; `staged(found)` gets records that were read,
    `retry(offsets)` those that could not be read now; `spawn` runs reads that must wait, and
    `touch()` has `work` called again.
    """

    def __init__(
        self,
        reader: DelayedMessageReader,
        *,
        waits: Callable[[int], bool],
        staged: Callable[[list[Raw]], None],
        retry: Callable[[Collection[int]], None],
        spawn: Callable[[Coroutine[object, object, None]], object],
        touch: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._waits = waits
        self._staged = staged
        self._retry = retry
        self._spawn = spawn
        self._touch = touch
        self._urgent = ReadQueue(URGENT_PASS_MAX)
        self._urgent_found: list[Raw] = []
        self._ahead = ReadQueue(None)
        self._fetching = False
        self._records: dict[int, Raw] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, offset: int) -> bool:
        return offset in self._records

    def want(self, offsets: Iterable[int], *, urgent: bool) -> None:
        """Schedule offsets to be read soon."""
        (self._urgent if urgent else self._ahead).want(offsets)
        self._touch()

    def take(self, offset: int) -> Raw | None:
        """Remove and return a record, or None."""
        found = self._records.pop(offset, None)
        if found is not None:
            self._bytes -= len(found[-1])
            if not self._records and self._ahead:
                self._touch()
        return found

    @property
    def _is_full(self) -> bool:
        return len(self._records) >= STAGED_COUNT_MAX or self._bytes >= STAGED_BYTES_MAX

    def work(self) -> bool:
        """Read for one turn. Returns whether another turn could read more."""
        read_queue = self._next_read_queue()
        if read_queue is None:
            return False
        offsets = read_queue.next()
        wanted = sorted({offset for offset in offsets if self._is_wanted(offset)})
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
        return self._ahead if self._ahead and not self._is_full else None

    def _is_wanted(self, offset: int) -> bool:
        return offset not in self._records and self._waits(offset)

    def _read(self, read_queue: ReadQueue, offsets: list[int]) -> int:
        """Read the first of ascending offsets.

        Returns their number; starts a fetch if none is in memory.
        """
        if not offsets:
            return 0
        try:
            found, read = self._reader.at_hand(offsets, READS_AT_ONCE_MAX)
        except StorageError:
            found, read = [], 0  # the fetch finds the damage again and handles it
        self._take_over(read_queue, found)
        if not read:
            self._fetching = True
            self._spawn(self._fetch(read_queue, offsets[:READS_AT_ONCE_MAX]))
            return len(offsets[:READS_AT_ONCE_MAX])
        return read

    async def _fetch(self, read_queue: ReadQueue, offsets: list[int]) -> None:
        try:
            found = await self._reader.fetch(offsets)
        except StorageError as error:
            self._reader.report(error)
            self._retry(offsets)
        else:
            self._take_over(read_queue, found)
        finally:
            self._fetching = False
        self._keep_urgent()
        self._touch()

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
        kept = []
        for raw in found:
            if self._is_wanted(raw[0]):
                kept.append(raw)
                self._records[raw[0]] = raw
                self._bytes += len(raw[-1])
        if kept:
            self._staged(kept)

    def clear(self) -> None:
        """Drop everything."""
        self._urgent.clear()
        self._urgent_found.clear()
        self._ahead.clear()
        self._records.clear()
        self._bytes = 0
