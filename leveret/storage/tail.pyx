"""The tail cache: the newest batches of all logs, as objects, within one bound for the node.

Consumers that keep up are served from here without a system call. First in, first out over all
logs; a batch that is settled entirely is dropped at once. A log that keeps its batches in memory
alone (Durability.NONE) writes a batch to disk when it must leave before it is settled. The first
such batch of a log creates a file, so a large batch does not evict hundreds of small ones at once:
later additions do.

Compiled because each batch is added, read and dropped: with hundreds of queues in a turn that is
most of what their logs cost.
"""

cimport cython

from collections import OrderedDict

from libc.stdint cimport uint64_t

from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport Batch

from leveret.errors import StorageError

SPILLED_TOGETHER_MAX = 8  # batches that one new batch has written down to make room, if it may
GAPS_MAX = 256  # empty places at a tail's front before its lists are moved up

cdef Py_ssize_t _GAPS_MAX = GAPS_MAX


cdef inline uint64_t stop_of(Batch batch) noexcept:
    return batch.base_offset + batch.count


@cython.final
cdef class LogTail:
    """The cached batches of one log in the order of their offsets; changed by the cache alone."""

    def __init__(self, spill=None):
        self.bases = []
        self.batches = []
        self.spill = spill

    cpdef list read(self, uint64_t offset, uint64_t stop, size_t bytes_max):
        """Consecutive batches from the one holding `offset` up to `stop`; empty when not cached."""
        cdef Py_ssize_t at = self.place(offset)
        cdef Batch batch
        cdef size_t size
        if at < self.head or self.batches[at] is None:
            return []
        batch = self.batches[at]
        if offset >= stop_of(batch) or stop_of(batch) > stop:
            return []
        taken = [batch]
        size = batch.size
        while size < bytes_max:
            at += 1
            batch = self.batches[at] if at < len(self.batches) else None
            if batch is None or stop_of(batch) > stop:
                break
            taken.append(batch)
            size += batch.size
        return taken

    cpdef Batch holding(self, uint64_t offset, uint64_t stop):
        """Return the cached batch that holds `offset` and ends by `stop`, or None."""
        cdef list found = self.read(offset, stop, 1)
        return found[0] if found else None

    cpdef Py_ssize_t place(self, uint64_t offset) except? -1:
        """Return the index of the last batch at or before `offset`; below `head` if none is."""
        cdef Py_ssize_t low = self.head, high = len(self.bases), middle
        while low < high:
            middle = low + (high - low) // 2
            if <uint64_t>self.bases[middle] <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    cdef int leave(self, Py_ssize_t at) except -1:
        """Clear the batch at index `at`, and move `head` on."""
        cdef list batches = self.batches
        cdef Py_ssize_t head = self.head
        assert head <= at < len(batches), "a batch that is cached has a place"
        batches[at] = None
        if at != head:
            return 0
        while head < len(batches) and batches[head] is None:
            head += 1
        self.head = head
        if head > _GAPS_MAX and 2 * head > len(batches):
            del self.bases[:head]
            del batches[:head]
            self.head = 0
        return 0


@cython.final
cdef class TailCache:
    """Tails of all logs within `bytes_max` bytes of batches.

    It may hold an eighth more for a while, if batches that must leave are to be written to disk
    first.
    """

    def __init__(self, bytes_max):
        self.bytes_max = bytes_max
        self.excess_max = self.bytes_max // 8
        self.tails = OrderedDict()
        self.stuck_tails = OrderedDict()

    cpdef int add(self, LogTail tail, Batch batch) except -1:
        """Add the newest batch of a log; old ones of any log may be evicted."""
        tail.bases.append(batch.base_offset)
        tail.batches.append(batch)
        self.tails[batch] = tail
        self.bytes += batch.size
        tail.bytes += batch.size
        if self.bytes > self.bytes_max:
            self.shrink()
        return 0

    cpdef int settle(
        self, LogTail tail, uint64_t first, uint64_t stop, RangeSet settled
    ) except -1:
        """Drop the batches touching [first, stop) of which every record is settled."""
        cdef Py_ssize_t at = max(tail.place(first), tail.head), before
        cdef list batches = tail.batches
        cdef Batch batch
        while at < len(batches):
            batch = batches[at]
            if batch is not None:
                if batch.base_offset >= stop:
                    return 0
                if settled.contains(batch.base_offset, stop_of(batch)):
                    before = len(batches)
                    self.drop(tail, batch)
                    tail.leave(at)
                    # The lists may have been moved up, by those behind that had left already, too.
                    at = max(at - (before - len(batches)), -1)
            at += 1
        return 0

    def cut(self, LogTail tail not None, uint64_t end):
        """Drop the batches at or behind offset `end`: they were cut off the log."""
        while tail.bases and tail.bases[len(tail.bases) - 1] >= end:
            batch = tail.batches.pop()
            if batch is not None:
                self.drop(tail, batch)
            tail.bases.pop()
        tail.head = min(tail.head, len(tail.bases))

    def clear(self, LogTail tail not None):
        """Drop all batches of a log that is closed or deleted."""
        for batch in tail.batches[tail.head :]:
            if batch is not None:
                self.drop(tail, batch)
        tail.bases.clear()
        tail.batches.clear()
        tail.head = 0
        tail.spill = None

    cpdef int write_down_stuck(self) except -1:
        """Retry the writes of `stuck` batches. Raises StorageError if one fails again."""
        cdef LogTail tail
        while self.stuck_tails:
            batch, tail = next(iter(self.stuck_tails.items()))
            tail.spill(batch)
            self.forget(tail, batch)
        return 0

    cdef int forget(self, LogTail tail, Batch batch) except -1:
        cdef Py_ssize_t at = tail.place(batch.base_offset)
        self.drop(tail, batch)
        return tail.leave(at)

    cdef int drop(self, LogTail tail, Batch batch) except -1:
        if self.tails.pop(batch, None) is None:
            del self.stuck_tails[batch]
            tail.stuck -= 1
        self.bytes -= batch.size
        self.dropped_bytes += batch.size
        tail.bytes -= batch.size
        return 0

    cdef int shrink(self) except -1:
        """Evict the oldest batches. Those that cannot be written stay beyond the bound, `stuck`."""
        cdef size_t bytes_max = self.bytes_max
        cdef int spilled = 0
        cdef LogTail tail
        cdef Batch batch
        while self.bytes > bytes_max and self.tails:
            batch, tail = next(iter(self.tails.items()))
            if tail.spill is not None:
                if not self.is_spilled(tail, batch):
                    del self.tails[batch]
                    self.stuck_tails[batch] = tail
                    tail.stuck += 1
                    continue
                spilled += 1
                if spilled == SPILLED_TOGETHER_MAX:
                    bytes_max += self.excess_max
            self.forget(tail, batch)
        return 0

    cdef bint is_spilled(self, LogTail tail, Batch batch) except -1:
        if tail.stuck:
            return False  # a later batch never goes to the file before an earlier one
        try:
            tail.spill(batch)
        except StorageError:
            return False
        return True

    @property
    def stuck(self):
        """Whether batches stay in memory because they could not be written to disk."""
        return bool(self.stuck_tails)
