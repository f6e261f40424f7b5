"""The tail cache: the newest batches of all logs, as objects, within one bound for the node.

Consumers that keep up are served from here without a system call. First in, first out over all
logs; what is settled entirely is given back at once. A log that keeps its batches in memory alone
(Durability.NONE) writes one down when it must leave before it is settled. Its first one makes a
file, so a large batch does not drive out hundreds of small ones at once: those behind it do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch

__all__ = ["LogTail", "TailCache"]

SPILLED_TOGETHER_MAX = 8  # batches that one new batch has written down to make room, if it may
GAPS_MAX = 256  # empty places at a tail's front before its lists are moved up


class LogTail:
    """The cached batches of one log in the order of their offsets; changed by the cache alone."""

    __slots__ = ("bases", "batches", "bytes", "head", "spill", "stuck")

    def __init__(self, spill: Callable[[Batch], None] | None = None) -> None:
        self.bases: list[int] = []
        self.batches: list[Batch | None] = []  # None where a batch has left
        self.bytes = 0  # of those that have not
        self.head = 0  # everything before has left
        self.spill = spill  # writes down what must leave; raises StorageError
        self.stuck = 0  # batches that should have left and could not be written down

    def read(self, offset: int, stop: int, bytes_max: int) -> list[Batch]:
        """Consecutive batches from the one holding `offset` up to `stop`; empty when not cached."""
        at = bisect_right(self.bases, offset, self.head) - 1  # see `place`
        if at < self.head:
            return []
        batch = self.batches[at]
        if batch is None or offset >= batch.stop_offset or batch.stop_offset > stop:
            return []
        taken = [batch]
        size = batch.size
        while size < bytes_max:
            at += 1
            follower = self.batches[at] if at < len(self.batches) else None
            if follower is None or follower.stop_offset > stop:
                break
            taken.append(follower)
            size += follower.size
        return taken

    def holding(self, offset: int, stop: int) -> Batch | None:
        """The cached batch that holds `offset` and ends by `stop`, if any does."""
        found = self.read(offset, stop, 1)
        return found[0] if found else None

    def place(self, offset: int) -> int:
        """Where the last batch beginning at or before `offset` is; below `head` if none is."""
        return bisect_right(self.bases, offset, self.head) - 1

    def leave(self, at: int) -> None:
        """Empty one place."""
        batches = self.batches
        batches[at] = None
        head = self.head
        if at != head:
            return
        while head < len(batches) and batches[head] is None:
            head += 1
        self.head = head
        if head > GAPS_MAX and 2 * head > len(batches):
            del self.bases[:head]
            del batches[:head]
            self.head = 0


class TailCache:
    """Every log's tail within `bytes_max` bytes of batches.

    It may hold an eighth more for a while, where what must leave is to be written down first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._excess_max = bytes_max // 8
        self.bytes = 0
        self.dropped_bytes = 0  # since the start, of batches that have left
        self._tails: OrderedDict[Batch, LogTail] = OrderedDict()
        self._stuck: OrderedDict[Batch, LogTail] = OrderedDict()

    def add(self, tail: LogTail, batch: Batch) -> None:
        """Put the newest batch of a log in; old ones of any log may leave."""
        tail.bases.append(batch.base_offset)
        tail.batches.append(batch)
        self._tails[batch] = tail
        self.bytes += batch.size
        tail.bytes += batch.size
        if self.bytes > self._bytes_max:
            self._shrink()

    def settle(self, tail: LogTail, first: int, stop: int, settled: RangeSet) -> None:
        """Give back the batches touching [first, stop) of which every record is settled."""
        at = max(tail.place(first), tail.head)
        batches = tail.batches
        while at < len(batches):
            batch = batches[at]
            if batch is not None:
                base = batch.base_offset
                if base >= stop:
                    return
                if settled.contains(base, batch.stop_offset):
                    before = len(batches)
                    self._drop(tail, batch)
                    tail.leave(at)
                    # The lists may have been moved up, by those behind that had left already, too.
                    at = max(at - (before - len(batches)), -1)
            at += 1

    def cut(self, tail: LogTail, end: int) -> None:
        """Drop the batches at or behind offset `end`: they were cut off the log."""
        while tail.bases and tail.bases[-1] >= end:
            batch = tail.batches.pop()
            if batch is not None:
                self._drop(tail, batch)
            tail.bases.pop()
        tail.head = min(tail.head, len(tail.bases))

    def clear(self, tail: LogTail) -> None:
        """Drop a log that is closed or deleted."""
        for batch in tail.batches[tail.head :]:
            if batch is not None:
                self._drop(tail, batch)
        tail.bases.clear()
        tail.batches.clear()
        tail.head = 0
        tail.spill = None

    def write_down_stuck(self) -> None:
        """Try anew what could not be written down. Raises StorageError while that still fails."""
        while self._stuck:
            batch, tail = next(iter(self._stuck.items()))
            assert tail.spill is not None
            tail.spill(batch)
            self._forget(tail, tail.place(batch.base_offset), batch)

    def _forget(self, tail: LogTail, at: int, batch: Batch) -> None:
        self._drop(tail, batch)
        tail.leave(at)

    def _drop(self, tail: LogTail, batch: Batch) -> None:
        if self._tails.pop(batch, None) is None:
            del self._stuck[batch]
            tail.stuck -= 1
        self.bytes -= batch.size
        self.dropped_bytes += batch.size
        tail.bytes -= batch.size

    def _shrink(self) -> None:
        """Let the oldest go. What cannot be written down stays, over the bound, and is `stuck`."""
        bytes_max, spilled = self._bytes_max, 0
        while self.bytes > bytes_max and self._tails:
            batch, tail = next(iter(self._tails.items()))
            if tail.spill is not None:
                if not self._spilled(tail, batch):
                    del self._tails[batch]
                    self._stuck[batch] = tail
                    tail.stuck += 1
                    continue
                spilled += 1
                if spilled == SPILLED_TOGETHER_MAX:
                    bytes_max += self._excess_max
            self._forget(tail, tail.place(batch.base_offset), batch)

    def _spilled(self, tail: LogTail, batch: Batch) -> bool:
        if tail.stuck or tail.spill is None:
            return False  # a later batch never goes to the file before an earlier one
        try:
            tail.spill(batch)
        except StorageError:
            return False
        return True

    @property
    def stuck(self) -> bool:
        """Whether batches stay in memory because they could not be written down."""
        return bool(self._stuck)
