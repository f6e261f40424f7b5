"""The compiled half of a log: what each append, each settlement and each read passes through.

In a turn of the event loop with a single message that is most of what its log costs.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from leveret.ports.ranges cimport RangeSet
from leveret.ports.records cimport BATCH_HEADER_BYTES, Batch, BatchBuilder
from leveret.storage.commit cimport FlushFigures, monotonic_us
from leveret.storage.segment_writer cimport SegmentWriter
from leveret.storage.tail cimport LogTail, TailCache

from leveret.errors import StorageError

REWRITE_BYTES_MAX = 256 << 20   # kept per log to be written anew should a flush fail
MERGED_RANGES_MIN = 64      # so many settled at once take one pass over all ranges, not one each
LOOP_FLUSH_BYTES_MAX = 65536    # more is flushed in a thread, while the next records are read

cdef uint64_t _LOOP_FLUSH_BYTES_MAX = LOOP_FLUSH_BYTES_MAX
cdef uint64_t _REWRITE_BYTES_MAX = REWRITE_BYTES_MAX
cdef Py_ssize_t _MERGED_RANGES_MIN = MERGED_RANGES_MIN


@cython.final
cdef class UnflushedBatch:
    """Batch that was written and waits for its flush; `batch` is None when memory is short."""

    cdef readonly Batch batch
    cdef readonly object segment
    cdef readonly uint64_t position
    cdef readonly uint64_t stop


cdef class WrittenLog:
    """A log's offsets, and the batches in memory. Subclasses set all attributes.

    `settled` are all settled offsets; `_stated`, the same set unless the log was compacted, those
    of them that control batches say: compacted segments speak for themselves. `_pending` were not
    written down yet; `_touched` says whether they soon will be.

    `is_flushing` says whether a flush runs. `_flushes_once_sent` says that one is to begin when
    what was written has been sent to the copies. `_unflushed` are the batches that were written and wait
    for a flush, oldest first.

    Subclasses have `_start_flush()`, `_loop_flush_failed(failure, took_us)`, and `_touch()`, which
    has settlements written down soon.
    """

    cdef public BatchBuilder builder
    cdef public uint64_t end
    cdef public uint64_t committed
    cdef public uint64_t flushed            # offsets below were flushed in this run or before
    cdef public uint64_t appended_bytes
    cdef public uint64_t gathered_bytes_max     # of a batch of publishes
    cdef public uint64_t batch_bytes_max        # of any batch
    cdef public RangeSet settled
    cdef public bint is_flushing
    cdef public bint _flushes_once_sent
    cdef public uint64_t _durable
    cdef public uint64_t _replicated        # the same on all copies that count; OFFSET_MAX without
    cdef public bint _waits_for_copies      # whether publishers do
    cdef public bint _keeps                 # whether anything is written before it must be
    cdef public bint _flushes               # whether a confirm waits for a flush
    cdef public SegmentWriter _segments
    cdef public object _reader              # of the segments
    cdef public TailCache _cache            # of all logs
    cdef public LogTail _tail               # of this one
    cdef public FlushFigures _figures       # of all logs
    cdef public object _reclaimer
    cdef public object _parts               # of transactions
    cdef public object _refusal             # error with which nothing is appended, or None
    cdef public object _unresolved          # transactions, by their ids
    cdef public list _unflushed
    cdef public uint64_t _unflushed_bytes   # of them that are in memory
    cdef public RangeSet _stated
    cdef public RangeSet _pending
    cdef public bint _touched

    def append(self, bint may_block=False):
        """Append the builder's records (see ports.TopicLog)."""
        cdef uint64_t base = self.end
        cdef bint waits = self._flushes and (not self.builder.transient or len(self._unflushed) > 0)
        if self.builder.count == 1 or self.builder.size <= self.gathered_bytes_max:
            self._write(self.builder, 0, waits)
            self._written(waits, may_block)
            return base
        try:
            for records in self.builder.split(self.gathered_bytes_max):
                self._write(records, 0, waits)
        finally:
            if self.end > base:  # what stands in front of a batch that could not be written
                self._written(waits, False)
        return base

    cdef int _written(self, bint waits, bint may_block) except -1:
        """Commit what was written, or begin the flush that it `waits` for."""
        if not waits:
            self._durable = self.end
            self._commit()
        elif not self.is_flushing:
            if not (may_block and self._may_flush_on_loop()):
                self._start_flush()
            elif self._segments.sink is None:
                self._flush_on_loop()
            else:
                self._flushes_once_sent = True
        return 0

    cpdef bint _may_flush_on_loop(self) except -1:
        """Whether the disk is quick and a flush ends nothing but appends (decision 0061)."""
        cdef SegmentWriter segments = self._segments
        if not self._figures.are_quick() or self._unflushed_bytes > _LOOP_FLUSH_BYTES_MAX:
            return False
        if self._unresolved or self._parts.written:
            return False
        # A segment's first flush makes its name durable, and ends earlier ones.
        return self._reclaimer.covered is segments.items[len(segments.items) - 1]

    cpdef int _flush_on_loop(self) except -1:
        """Flush what was written.

        A failure is handled later, as if a thread had met it: until then the flush counts as
        running.
        """
        cdef SegmentWriter segments = self._segments
        cdef FlushFigures figures = self._figures
        cdef int64_t began_us, took_us
        cdef int failure
        began_us = monotonic_us()
        failure = segments._flush_last()
        took_us = monotonic_us() - began_us
        if failure:
            self._loop_flush_failed(failure, took_us)
            return 0
        figures._ended(took_us, len(self._unflushed), False)
        self._unflushed.clear()
        self._unflushed_bytes = 0
        self._durable = self.end
        self._commit()
        if self.flushed < self.end:
            self.flushed = self.end
        return 0

    cpdef bint _commit(self) except -1:
        """Advance `committed` to what is durable, replicated, and behind no undecided transaction.

        Nothing else moves it. Returns whether it has moved.
        """
        cdef uint64_t committed = min(self._durable, self._replicated)
        if self._unresolved:
            committed = self._parts.limit(committed)
        if committed == self.committed:
            return False
        self.committed = committed
        return True

    @property
    def acknowledged(self):
        """Offset below which records may be confirmed (see ports.TopicLog)."""
        cdef uint64_t durable
        if self._waits_for_copies:
            return self.committed
        durable = self._durable
        if self._unresolved:
            durable = self._parts.limit(durable)
        return max(durable, self.committed)

    def _append_pending(self, uint64_t transaction, BatchBuilder records not None):
        """Append records as one batch that counts only if a transaction commits."""
        self._write(records, transaction, self._flushes)

    def _rewrite(self, Batch batch not None):
        """Write a batch once more, and have it wait for another flush. Raises StorageError."""
        self._add_unflushed(batch, self._segments._write(batch, batch.base_offset))

    cdef int _write(self, BatchBuilder records, uint64_t transaction, bint waits) except -1:
        """Write records as one batch, pending if `transaction` is not 0. Raises StorageError.

        With `waits` it waits for a flush, which the caller starts.
        """
        cdef Batch batch
        cdef uint64_t position
        if self._refusal is not None:
            records.clear()
            raise self._refusal
        if records.size > self.batch_bytes_max:
            size = records.size
            records.clear()
            raise StorageError(
                f"a batch of {size} bytes is more than the {self.batch_bytes_max} that can be copied "
                "to other nodes: write less at once"
            )
        batch = records.seal(self.end)
        self.appended_bytes += batch.size - BATCH_HEADER_BYTES
        if self._keeps:
            if transaction:
                batch.set_pending(transaction)
            position = self._segments._write(batch, self.end)
            if waits:
                self._add_unflushed(batch, position)
        else:
            self._cache.write_down_stuck()
        self.end += batch.count
        self._cache.add(self._tail, batch)
        return 0

    cdef int _add_unflushed(self, Batch batch, uint64_t position) except -1:
        """Have a batch, which was written to the last segment, wait for a flush."""
        cdef list segments = self._segments.items
        cdef UnflushedBatch entry = UnflushedBatch.__new__(UnflushedBatch)
        self._unflushed_bytes += batch.size
        if self._unflushed_bytes <= _REWRITE_BYTES_MAX:
            entry.batch = batch
        entry.segment = segments[len(segments) - 1]
        entry.position = position
        entry.stop = batch.base_offset + batch.count
        self._unflushed.append(entry)
        return 0

    def _forget_unflushed(self, Py_ssize_t count):
        """Have the first batches wait no longer for a flush."""
        cdef UnflushedBatch entry
        del self._unflushed[:count]
        self._unflushed_bytes = 0
        for entry in self._unflushed:
            if entry.batch is not None:
                self._unflushed_bytes += entry.batch.size

    def read(self, uint64_t offset, size_t bytes_max):
        """Return batches from memory or page cache, else None (see ports.TopicLog)."""
        if offset >= self.committed:
            return []
        found = self._tail.read(offset, self.committed, bytes_max)
        return found or self._reader.read(offset, self.committed, bytes_max)

    def peek(self, uint64_t offset):
        """Return the batch of a record if it is in memory (see ports.TopicLog)."""
        return self._tail.holding(offset, self.committed)

    def settle(self, ranges):
        """Settle ranges of records (see ports.TopicLog)."""
        cdef RangeSet settled = self.settled, pending = self._pending
        cdef LogTail tail = self._tail
        cdef Py_ssize_t count = len(ranges)
        cdef uint64_t first, stop
        if count >= _MERGED_RANGES_MIN:
            settled.add_all(ranges)
            pending.add_all(ranges)
        else:
            for first, stop in ranges:
                settled.add(first, stop)
                pending.add(first, stop)
        if self._stated is not settled:
            self._stated.add_all(ranges)
        if count > 1 and tail.place(ranges[count - 1][0]) - tail.place(ranges[0][0]) < count:
            # They are close together.
            self._cache.settle(tail, ranges[0][0], ranges[count - 1][1], settled)
        else:
            for first, stop in ranges:
                self._cache.settle(tail, first, stop, settled)
        if not self._touched:
            self._touch()
