"""Records of a delayed-message store that are due within seconds, read ahead so that none is late.

Records come due in an order that has nothing to do with where they lie in the log. Read one by one
when they are due, each would cost a read of its own; read some seconds ahead, many at a time in the
order of the log, those that lie near each other share one. What is urgent, because it was added
with a short delay or is late already, goes first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from leveret.core.delayed_store.reader import DelayedMessageReader, Raw

AHEAD_MS = 4_000  # so long before it is due a record is read
GATHER_MS = 2_000  # those of so long are read in one go
URGENT_MS = 500  # what is due within this time goes first
READS_AT_ONCE_MAX = 8  # of the page cache in one turn of the loop: 1 to 3 ms
RECORDS_AT_ONCE_MAX = 500
URGENT_PASS_MAX = 4000  # what comes first is not to wait until a million has been read
# Read ahead, but not yet due: about 30 MB of records with 200 bytes each.
STAGED_COUNT_MAX = 100_000
STAGED_BYTES_MAX = 32 << 20


class ReadQueue:
    """Offsets that are to be read, in the order of their due times, some of them at a time."""

    def __init__(self, pass_max: int | None) -> None:
        self._pass_max = pass_max
        self._wanted: deque[int] = deque()
        self._pass: list[int] = []  # those that are being read, in descending order of offsets

    def __bool__(self) -> bool:
        return bool(self._pass or self._wanted)

    @property
    def is_reading(self) -> bool:
        """Whether some that belong together are not read yet."""
        return bool(self._pass)

    def want(self, offsets: Iterable[int]) -> None:
        """Add some at the end."""
        self._wanted.extend(offsets)

    def next(self) -> list[int]:
        """Those to be read next, in ascending order."""
        if not self._pass:
            count = len(self._wanted)
            if self._pass_max is not None:
                count = min(count, self._pass_max)
            self._pass = sorted((self._wanted.popleft() for _ in range(count)), reverse=True)
        return self._pass[: -RECORDS_AT_ONCE_MAX - 1 : -1]

    def done(self, count: int) -> None:
        """So many of them were read."""
        del self._pass[len(self._pass) - count :]

    def clear(self) -> None:
        """Nobody wants any of them."""
        self._wanted.clear()
        self._pass.clear()


class PrefetchBuffer:
    """The records of one store that were read ahead.

    `waits(offset)` says whether a record still waits; `staged(found)` is told of those that were
    read, `retry(offsets)` of those that could not be read now; `spawn` runs reads that take
    waiting, and `touch()` has `work` called again.
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
        """Read these soon."""
        (self._urgent if urgent else self._ahead).want(offsets)
        self._touch()

    def take(self, offset: int) -> Raw | None:
        """Take a record out."""
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
        """Read on for one turn. Returns whether another one could read more."""
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
        """What to read from now; None for now."""
        if self._fetching:
            return None
        if self._urgent:
            return self._urgent
        return self._ahead if self._ahead and not self._is_full else None

    def _is_wanted(self, offset: int) -> bool:
        return offset not in self._records and self._waits(offset)

    def _read(self, read_queue: ReadQueue, offsets: list[int]) -> int:
        """Read the first of ascending offsets; how many. Where none is at hand, fetch some."""
        if not offsets:
            return 0
        try:
            found, read = self._reader.at_hand(offsets, READS_AT_ONCE_MAX)
        except StorageError:
            found, read = [], 0  # whoever fetches meets it again, and deals with it
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
        """What is late is told of together, so that it is handed out in order of due times."""
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
        """Forget everything."""
        self._urgent.clear()
        self._urgent_found.clear()
        self._ahead.clear()
        self._records.clear()
        self._bytes = 0
