"""Browsing of a queue or a stream, independently of deliveries.

It uses its own window of the log, leases nothing and settles nothing. A walk goes through the
unsettled messages, or through settled ones that are kept, forwards or backwards, in slices between
which other work runs, as long as its budget lasts; another walk can continue where it ended.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.logs.window import LogWindow, batch_of
from leveret.core.queues.queue import Queue
from leveret.core.routing.message import StoredMessage
from leveret.errors import CorruptBatchError
from leveret.features.browse.message_filter import MessageFilter, MessageState
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.ports.records import Batch

__all__ = [
    "READ_BYTES_MAX",
    "SCANNED_MAX",
    "BrowseCursor",
    "BrowsedMessage",
    "find",
    "recall",
    "states",
]

# Budget of one walk: a moment's work if messages are small, a second's if they are large.
SCANNED_MAX = 10_000
READ_BYTES_MAX = 64 * 1024 * 1024
# Records between two turns of the loop: some milliseconds. Fewer if they are large, but at least
# one of any size.
SLICE_RECORDS_MAX = 500
SLICE_RECORDS_MIN = 1
SLICE_BYTES = 1024 * 1024
# Time of a slice, for filters that may take a millisecond per message.
SLICE_NS_MAX = 2_000_000


class BrowsedMessage(NamedTuple):
    """One message in a queue, as found by browsing."""

    offset: int
    state: MessageState
    time_ms: int  # when it was stored in the queue
    flags: int
    message: StoredMessage


class BrowseCursor:
    """Browse cursor through [first, stop) of a queue.

    `rest` is what remains to be walked, as [first, stop), or None; another walk can continue there.
    `scanned` and `read_bytes` count the messages scanned and the bytes of the log read.
    """

    def __init__(
        self,
        queue: OpenQueue,
        first: int,
        stop: int,
        *,
        backwards: bool = False,
        scanned_max: int = SCANNED_MAX,
    ) -> None:
        self.queue = queue
        self.backwards = backwards
        self.scanned = 0
        self._scanned_max = scanned_max
        self.read_bytes = 0
        self._low, self._high = max(first, queue.log.first), min(stop, queue.log.committed)
        self._records = SLICE_RECORDS_MIN
        self._window = LogWindow(queue.log)
        self._criteria = MessageFilter()

    @property
    def rest(self) -> tuple[int, int] | None:
        """Range that remains to be walked, or None."""
        return (self._low, self._high) if self._low < self._high else None

    @property
    def _is_spent(self) -> bool:
        return self.scanned >= self._scanned_max or self.read_bytes >= READ_BYTES_MAX

    async def matching(self, criteria: MessageFilter) -> AsyncIterator[list[BrowsedMessage]]:
        """Yield the matching messages, slice by slice in the order of the walk.

        Raises StorageError. Unreadable messages are skipped; deliveries handle the damage.
        """
        self._criteria = criteria
        while not (self._is_spent or self.queue.deleted):
            ranges = self._next_ranges(criteria.offsets)
            if not ranges:
                self._low = self._high
                return
            batches = await self._read(ranges)
            if self.queue.deleted:
                return
            self.scanned += sum(stop - first for first, stop in ranges)
            self._walked(ranges)
            for found in self._look(batches, ranges, criteria):
                yield found

    def _walked(self, ranges: list[tuple[int, int]]) -> None:
        if self.backwards:
            self._high = ranges[0][0]
        else:
            self._low = ranges[-1][1]

    def _next_ranges(self, offsets: RangeSet | None) -> list[tuple[int, int]]:
        """Return the next ranges to scan, up to a slice of records; empty at the end."""
        low, high = self._low, self._high
        if offsets is not None:
            chosen = offsets.gaps(low, high).gaps(low, high)
            left = [part for one in chosen for part in self._present(*one)]
            return _cut(left, self._records, backwards=self.backwards)
        step = self._records
        while low < high:
            begin = max(low, high - step) if self.backwards else low
            stop = high if self.backwards else min(low + step, high)
            if left := self._present(begin, stop):
                return _cut(left, self._records, backwards=self.backwards)
            low, high = (low, begin) if self.backwards else (stop, high)
            step *= 2  # skip the others quickly
        return []

    def _present(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of [first, stop) that it goes through."""
        settled = self.queue.log.settled
        if not self._goes_through_settled:
            return list(settled.gaps(first, stop))
        kept = [(first, stop)]
        if not self._criteria.with_settled:
            kept = list(settled.gaps(first, stop).gaps(first, stop))
        for hole in self.queue.unreadable:
            kept = [part for each in kept for part in hole.gaps(*each)]
        return kept

    @property
    def _goes_through_settled(self) -> bool:
        """Whether it goes through settled messages, which a queue with a retention keeps."""
        criteria = self._criteria
        wanted = criteria.with_settled or MessageState.SETTLED in criteria.states
        return wanted and self.queue.settings.retention is not None

    def _is_gone(self, offset: int) -> bool:
        """Whether it goes through an offset no more, which was settled or removed meanwhile."""
        if self._goes_through_settled:
            return any(offset in hole for hole in self.queue.unreadable)
        return offset in self.queue.log.settled

    async def _read(self, ranges: list[tuple[int, int]]) -> list[Batch]:
        """Return the batches with these records, except unreadable ones."""
        found: list[Batch] = []
        for first, stop in ranges:
            at = first
            while at < stop:
                try:
                    batches = await self._batches(at)
                except CorruptBatchError:
                    at += 1
                    continue
                found += [
                    one for one in batches if not found or one.base_offset >= found[-1].stop_offset
                ]
                at = batches[-1].stop_offset
        return found

    async def _batches(self, offset: int) -> list[Batch]:
        if self._window.holds(offset):
            held = self._window.at_hand(offset)
            assert held is not None, "a window has what it holds"
            return held
        batches = await self._window.fill(offset)
        read_bytes = sum(batch.size for batch in batches)
        self.read_bytes += read_bytes
        # Expect the next records to be of the same size.
        fitting = SLICE_BYTES * sum(batch.count for batch in batches) // read_bytes
        self._records = max(SLICE_RECORDS_MIN, min(fitting, SLICE_RECORDS_MAX))
        return batches

    def _look(
        self, batches: list[Batch], ranges: list[tuple[int, int]], criteria: MessageFilter
    ) -> Iterator[list[BrowsedMessage]]:
        """Yield the matching messages of a slice, in parts if filtering takes long.

        Messages settled meanwhile are skipped.
        """
        offsets = [at for first, stop in ranges for at in range(first, stop)] if batches else []
        left = deque(reversed(offsets) if self.backwards else offsets)
        while True:
            yield self._look_on(batches, left, criteria)
            if not left or self.queue.deleted:
                return

    def _look_on(
        self, batches: list[Batch], left: deque[int], criteria: MessageFilter
    ) -> list[BrowsedMessage]:
        """Return matching messages of the remaining ones, until the time is over."""
        found: list[BrowsedMessage] = []
        if not left:
            return found
        clock_ns = self.queue.turn.clock_ns
        ends_ns = clock_ns() + SLICE_NS_MAX
        state_of = states(self.queue, min(left[0], left[-1]), max(left[0], left[-1]) + 1)
        settled = self.queue.log.settled
        while left and clock_ns() <= ends_ns:
            offset = left.popleft()
            batch = batch_of(batches, offset)
            if not batch.base_offset <= offset < batch.stop_offset or self._is_gone(offset):
                continue
            is_settled = offset in settled
            seen = _seen(batch, offset, MessageState.SETTLED if is_settled else state_of(offset))
            if is_settled and seen.flags & RecordFlag.RETRIED:
                continue  # readers are offered the original instead
            if criteria.has(seen.message, seen.time_ms, seen.state):
                found.append(seen)
        return found


async def find(
    queue: OpenQueue, offset: int, *, with_settled: bool = False
) -> BrowsedMessage | None:
    """Return one message by its offset; None if it is not in the queue. Raises StorageError.

    `with_settled`: also if it is settled, and kept.
    """
    criteria = MessageFilter(with_settled=with_settled)
    async for found in BrowseCursor(queue, offset, offset + 1).matching(criteria):
        for seen in found:
            return seen
    return None


async def recall(queue: OpenQueue, offset: int) -> BrowsedMessage | None:
    """Return one message, even if settled, as long as its segment exists; None otherwise.

    Raises StorageError.
    """
    if offset not in queue.log.settled:
        return await find(queue, offset)
    if not queue.log.first <= offset < queue.log.committed or offset in queue.log.erased:
        return None
    try:
        batches = await LogWindow(queue.log).fill(offset)
    except CorruptBatchError:
        return None
    return _seen(batch_of(batches, offset), offset, MessageState.SETTLED)


def states(queue: OpenQueue, first: int, stop: int) -> Callable[[int], MessageState]:
    """Return a function giving the present state of messages in [first, stop); READY in streams."""
    if not isinstance(queue, Queue):
        return lambda _offset: MessageState.READY
    leased = RangeSet(queue.state.leased_in(first, stop))
    waits = queue.waits

    def state_of(offset: int) -> MessageState:
        if offset not in leased:
            return MessageState.READY
        return MessageState.DELAYED if waits(offset) else MessageState.UNACKED

    return state_of


def _seen(batch: Batch, offset: int, state: MessageState) -> BrowsedMessage:
    flags, time_ms, exchange, routing_key, header, body = batch.record(offset)
    return BrowsedMessage(
        offset, state, time_ms, flags, StoredMessage(exchange, routing_key, header, body, flags)
    )


def _cut(ranges: list[tuple[int, int]], count: int, *, backwards: bool) -> list[tuple[int, int]]:
    """Return the first, or last, `count` offsets of some ranges."""
    kept: list[tuple[int, int]] = []
    for first, stop in reversed(ranges) if backwards else ranges:
        taken = min(stop - first, count)
        kept.append((stop - taken, stop) if backwards else (first, first + taken))
        count -= taken
        if not count:
            break
    return kept[::-1] if backwards else kept
