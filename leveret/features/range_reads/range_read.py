"""One range read: a stretch of a partition becomes a chunk, slice by slice."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from leveret.errors import CorruptBatchError
from leveret.features.range_reads.bounds import bounds_of, first_readable, readable
from leveret.features.range_reads.columns import COMPACTED, MORE, ColumnPacker
from leveret.features.range_reads.rules import log_number
from leveret.ports.records import RecordFlag
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.range_reads.bounds import Bounds
    from leveret.features.range_reads.rules import RangeRequest
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch

__all__ = ["KnownDamage", "PackedChunk", "RangeRead", "SliceClock", "Slices"]

# Others wait for a slice: to read and pack what one reads takes 0.1 to 0.2 ms.
READ_BYTES_MAX = 128 * 1024
READ_BYTES_MIN = 4 * 1024
BATCHES_AT_ONCE = 32  # each of which takes some microseconds of Python, however small it is
SLICE_ROWS = 1000  # that are looked at: packed, or excluded by a filter
SLICE_BYTES = 192 * 1024  # what is read in one has its columns, too
# A condition of SQL may need any part of a millisecond for one record: so time counts as well.
SLICE_NS_MAX = 50_000
# Read for one answer, whatever few columns of it are wanted.
READ_BYTES_TOTAL_MAX = 64 * 1024 * 1024
# A chunk with a filter ends after this time: nobody sees meanwhile that its client is gone, and the
# slowest conditions would need minutes for what one chunk may read.
FILTERED_NS_MAX = 2_000_000_000

# Entered for each slice.
Slices: TypeAlias = AbstractAsyncContextManager[Any]


class KnownDamage(Protocol):
    """Damage that is known in partitions, and a way to deal with more."""

    def known(self, partition: OpenQueue) -> RangeSet | None:
        """Return the offsets that earlier reads could not read, if any."""
        ...

    async def set_aside(self, partition: OpenQueue, offset: int) -> None:
        """Quarantine the damage met at `offset`. Raises StorageError."""
        ...


class SliceClock:
    """The time of a slice; one clock is enough for all reads, since slices do not overlap.

    `now_ns()` is monotonic.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self._ends_ns = 0

    def begin(self) -> None:
        """Begin a slice."""
        self._ends_ns = self.now_ns() + SLICE_NS_MAX

    def is_over(self) -> bool:
        """Whether the slice's time is over: filters ask for it (see RecordFilter)."""
        return self.now_ns() > self._ends_ns


@dataclass(slots=True)
class PackedChunk:
    """One answer: its bytes, in parts that follow each other."""

    parts: list[memoryview]
    rows: int
    next_offset: int
    has_more: bool  # there is something at the next offset
    stored_bytes: int  # of its records in the log

    @property
    def size(self) -> int:
        """Return the number of all bytes."""
        return sum(len(part) for part in self.parts)


class RangeRead:
    """One read of a partition, slice by slice.

    Attempts of a retry are passed over: their original is in the log, too.
    """

    passed_over = RecordFlag.RETRIED

    def __init__(
        self, partition: OpenQueue, request: RangeRequest, damage: KnownDamage, clock: SliceClock
    ) -> None:
        self._damage = damage
        self._clock = clock
        self._ends_ns = clock.now_ns() + FILTERED_NS_MAX  # if it has a filter
        self._partition = partition
        self._log = partition.log
        self._request = request
        self._end = partition.log.committed
        self._packer = ColumnPacker(request.columns, request.filter, self.passed_over)
        self._offset = request.offset  # everything below is packed, or not to be
        self._looks = 0  # at records that were there, whether they are packed or not
        self._runs: deque[tuple[Batch, int, int]] = deque()  # what was read and is to be packed
        self._runs_stop = 0
        self._read_bytes = 0  # from the log
        self._bytes_at_once = READ_BYTES_MAX
        self._is_over = False
        self._repaired = -1

    async def run(self, slices: Slices) -> PackedChunk:
        """Return the chunk. Raises StorageError."""
        while not self._is_over:
            try:
                async with slices:
                    await let_others_run()
                    is_at_hand = self._slice()
                if not is_at_hand:
                    self._take(await self._log.fetch(self._offset, self._bytes_at_once))
            except CorruptBatchError:
                await self._repair()
        await let_others_run()
        return self._chunk(self._offset)

    def _slice(self) -> bool:
        """Read and pack a little. Returns False if what comes next must be waited for."""
        self._clock.begin()
        if not self._runs:
            self._offset = first_readable(self._holes(), self._offset, self._end)
            if self._offset < self._end and not self._is_full:
                batches = self._log.read(self._offset, self._bytes_at_once)
                if batches is None:
                    return False
                self._take(batches)
        self._pack()
        self._is_over = self._is_over or self._is_full or self._is_late or self._offset >= self._end
        return True

    @property
    def _is_full(self) -> bool:
        packer, request = self._packer, self._request
        return (
            packer.rows >= request.rows_max
            or packer.size >= request.bytes_max
            or (self._read_bytes >= READ_BYTES_TOTAL_MAX and not self._runs)
        )

    @property
    def _is_late(self) -> bool:
        """Whether a filter has taken its time; it has come further all the same."""
        return self._request.filter is not None and self._clock.now_ns() > self._ends_ns

    def _holes(self) -> list[RangeSet]:
        holes = self._partition.unreadable
        damage = self._damage.known(self._partition)
        return [*holes, damage] if damage else holes

    def _take(self, batches: list[Batch]) -> None:
        """Take what was read at the offset. Raises CorruptBatchError if that is not in it."""
        offset = self._offset
        if not batches or not batches[0].base_offset <= offset < batches[0].stop_offset:
            raise CorruptBatchError(f"offset {offset} is missing from {self._log!r}")
        size = sum(batch.size for batch in batches)
        self._read_bytes += size
        self._bytes_at_once = min(
            max(size // len(batches) * BATCHES_AT_ONCE, READ_BYTES_MIN), READ_BYTES_MAX
        )
        self._runs_stop = min(batches[-1].stop_offset, self._end)
        ranges = readable(self._holes(), offset, self._runs_stop)
        self._runs.extend(
            (batch, max(first, batch.base_offset), min(stop, batch.stop_offset))
            for first, stop in ranges
            for batch in batches
            if batch.base_offset < stop and first < batch.stop_offset
        )

    def _pack(self) -> None:
        """Pack records of a few batches, as far as the slice's limits go."""
        packer, request, runs = self._packer, self._request, self._runs
        bytes_max = min(request.bytes_max, packer.size + SLICE_BYTES)
        looks = SLICE_ROWS
        while runs and looks and packer.rows < request.rows_max and packer.size < bytes_max:
            batch, first, stop = runs[0]
            rows, size = request.rows_max - packer.rows, bytes_max - packer.size
            until = min(stop, first + looks)
            reached = self._offset = packer.add(batch, first, until, rows, size)
            looks -= reached - first
            self._looks += reached - first
            if reached == stop:
                runs.popleft()
            elif reached == first:
                self._is_over = True  # the tables are full
                return
            else:
                runs[0] = (batch, reached, stop)
            if reached < until or (request.filter is not None and self._clock.is_over()):
                break
        if not runs and self._runs_stop:
            self._offset = max(self._offset, self._runs_stop)

    async def _repair(self) -> None:
        """Pass over what cannot be read, unless it was removed meanwhile. Raises StorageError."""
        offset = self._offset
        if first_readable(self._holes(), offset, self._end) != offset:
            return
        if self._repaired == offset:
            raise CorruptBatchError(f"offset {offset} cannot be read from {self._log!r}")
        self._repaired = offset
        await self._damage.set_aside(self._partition, offset)

    def _bounds(self) -> Bounds:
        """Return the bounds that a chunk tells."""
        return bounds_of(self._partition)

    def _expected(self, first: int, stop: int) -> int:
        """Return how many records of [first, stop) were stored for readers."""
        log = self._log
        return stop - first - log.undone.overlap(first, stop) - log.erased.overlap(first, stop)

    def _chunk(self, next_offset: int) -> PackedChunk:
        request, packer, log = self._request, self._packer, self._log
        bounds = self._bounds()
        has_more = next_offset < bounds.end
        retention = log.retention
        is_compacted = retention is not None and retention.compaction is not None
        expected = self._expected(request.offset, next_offset)
        parts = packer.finish(
            offset=request.offset,
            next_offset=next_offset,
            first=bounds.first,
            end=bounds.end,
            missing=max(expected - self._looks, 0),
            log=log_number(self._partition.definition),
            partition=self._partition.number,
            flags=(MORE if has_more else 0) | (COMPACTED if is_compacted else 0),
        )
        return PackedChunk(parts, packer.rows, next_offset, has_more, packer.stored_bytes)
