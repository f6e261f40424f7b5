"""Flushes of one log: one at a time, each of everything written before it.

A flush runs in a thread of the committer; its end comes back to the loop, where the committed
offset moves and callbacks are told, or what was written is written anew or lost. Where the log is
copied, what a flush was waited for is done once its copies have flushed the same, and a log that
has too few of them refuses what is written.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports import Durability
from leveret.ports.callbacks import call_each
from leveret.ports.replication import BATCH_BYTES_MAX, START
from leveret.storage.files import storage_error
from leveret.storage.index import OFFSET_MAX
from leveret.storage.reader import LogReader
from leveret.storage.reclaimer import Reclaimer
from leveret.storage.segments import Segments
from leveret.storage.tail import LogTail
from leveret.storage.transaction_participants import TransactionParticipants
from leveret.storage.written_log import WrittenLog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from leveret.ports.records import Batch
    from leveret.ports.replication import LogPlace, LogSink
    from leveret.storage.commit import Committer
    from leveret.storage.encryption import DataKey
    from leveret.storage.files import FileSystem
    from leveret.storage.recovery import Recovered
    from leveret.storage.segment import Segment
    from leveret.storage.services import LogServices
    from leveret.storage.written_log import UnflushedBatch

__all__ = ["Flush", "FlushedLog"]

UNCOPIED_BATCH_BYTES_MAX = (1 << 32) - 1  # what a batch's header can say
# More is written as several batches. Those of a log that is copied are read and sent whole; a log
# that is not may be copied later.
GATHERED_BYTES_MAX = 16 << 20
UNCOPIED_GATHERED_BYTES_MAX = BATCH_BYTES_MAX // 2
REFUSING = "refusing"  # as a reader that needs records (see Reclaimer.keep_from)


@dataclass(slots=True)
class Flush:
    """A flush of `segments`: covers `count` waiting batches, up to offset `stop`.

    Where the log is copied, up to `place`. `waiting` says what else waits for it, unless nothing
    does: `TransactionParticipants.waiting`, and `Reclaimer.waiting`.
    """

    files: FileSystem
    segments: list[Segment]
    sealed: list[tuple[Segment, int]]  # with where each stops: they get their index files
    count: int = 0
    stop: int = 0
    place: LogPlace = START
    waiting: tuple[tuple[int, int], int] | None = None
    took_us: int = 0  # once it has run

    @property
    def is_plain(self) -> bool:
        """Whether flushing files that are open is all there is to do."""
        are_open = all(each.listed and each.handle is not None for each in self.segments)
        return are_open and not self.sealed

    def start(self, committer: Committer, done: Callable[[OSError | None], None]) -> None:
        """Run in a thread of the committer; then call `done` on the loop, with the error if any."""
        if self.segments and self.is_plain and self.files.fdatasync is os.fdatasync:
            descriptors = [each.handle for each in self.segments if each.handle is not None]
            committer.flush(descriptors, partial(self.files_flushed, done))
        else:
            committer.submit(self.run, done, is_flush=True)

    def files_flushed(
        self, done: Callable[[OSError | None], None], failure: int, took_us: int
    ) -> None:
        """Note that the files were flushed, unless `failure` is an errno, and call `done`."""
        self.took_us = took_us
        done(OSError(failure, os.strerror(failure)) if failure else None)

    def run(self) -> None:
        """Flush the segments and write index files, in a worker thread. Raises OSError.

        Older segments come first: when a later one is on the disk, all before it is.
        """
        began = time.monotonic()
        try:
            for segment in self.segments:
                segment.flush(self.files)
        finally:
            self.took_us = int((time.monotonic() - began) * 1_000_000)
        for segment, stop in self.sealed:
            # Without an index file the segment is only checked once more by recovery.
            with suppress(OSError):
                segment.write_index(self.files, stop)


class FlushedLog(WrittenLog, ABC):
    """A log's files and offsets, and its flushes.

    `_failures` counts flushes in a row that have failed.
    """

    # More attributes than Python would find without a dictionary: see core.queues.open_queue.
    __slots__ = (
        "_closed",
        "_commit_callbacks",
        "_failure_callbacks",
        "_failures",
        "_flush_again",
        "_has_failed",
        "_replicated_place",
        "_running",
        "_services",
        "_unreplicated",
        "_until_flushed",
        "_until_idle",
        "_until_replicated",
        "copies_min",
        "directory",
        "erased",
        "retained_from",
        "undone",
    )

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        durability: Durability,
        recovered: Recovered,
        data_key: DataKey | None,
    ) -> None:
        self.directory = directory
        self.end = self._durable = recovered.end
        self._replicated = OFFSET_MAX  # as long as it is not copied
        self.settled = self._stated = recovered.settled
        if recovered.compacted:
            self._stated = self.settled.copy()
            self.settled.add_all(recovered.compacted)
        self.undone = recovered.told.undone
        self.erased = recovered.told.erased
        self.retained_from = recovered.told.retained_from
        self.flushed = recovered.flushed
        self._services = services
        self._figures = services.flushes
        self._keeps = durability is not Durability.NONE
        self._flushes = durability is Durability.FSYNC
        self._cache = services.tail_cache
        self._tail = LogTail(None if self._keeps else self._spill)
        self._segments = self._make_segments(data_key)
        self._segments.adopt(recovered.segments, begins_anew=recovered.begins_anew)
        self._reader = LogReader(
            services.files,
            self._segments,
            services.open_files,
            services.loop,
            services.pool,
            gapless=self._keeps,
            unseal=services.keyring.unsealer.open,
        )
        self._reclaimer = Reclaimer(
            services,
            directory,
            self._segments,
            self._reader,
            settled=self._stated,
            hidden=(self.undone, self.erased),
            removed=recovered.removed,
            keeps=self._keeps,
        )
        self._parts = TransactionParticipants(
            recovered.unresolved, services.decisions.remembered, services.report
        )
        self._unresolved = self._parts.unresolved  # asked for at each append
        self._commit()
        self._closed = False
        self._commit_callbacks: list[Callable[[], None]] = []
        self._failure_callbacks: list[Callable[[Exception], None]] = []
        self.is_flushing = False
        self._running: Flush | None = None
        self._has_failed = False  # a flush has failed, and is not repaired
        self.gathered_bytes_max = UNCOPIED_GATHERED_BYTES_MAX
        self.batch_bytes_max = UNCOPIED_BATCH_BYTES_MAX
        self.copies_min = 1
        self._waits_for_copies = True
        self._refusal: NotEnoughCopiesError | None = None
        self._replicated_place = START
        self._unreplicated: deque[tuple[LogPlace, Callable[[], None]]] = deque()
        self._flush_again = False  # something was written since that wants to be flushed
        self._failures = 0
        self._unflushed = []
        self._unflushed_bytes = 0
        self._until_flushed: list[asyncio.Future[None]] = []
        self._until_idle: list[asyncio.Future[None]] = []
        self._until_replicated: list[asyncio.Future[None]] = []

    def _make_segments(self, key: DataKey | None) -> Segments:
        services = self._services
        return Segments(
            services.files,
            self.directory,
            segment_bytes_max=services.segment_bytes_max,
            checkpoint=self._checkpoint if self._keeps else None,
            wall_ms=services.clock.wall_ms,
            on_roll=self._start_flush if self._keeps else lambda: None,
            key=key,
            new_sealer=services.keyring.sealer,
            on_open=services.open_files.opened,
            flushes=self._flushes,
            epoch=services.epoch,
        )

    def _spill(self, batch: Batch) -> None:
        """Write a batch to disk that leaves the memory cache. Raises StorageError."""
        self._segments.write(batch, batch.base_offset)

    @abstractmethod
    def _checkpoint(self) -> bytes:
        """Return the state of the log for the beginning of a segment."""

    @abstractmethod
    def _touch(self) -> None:
        """Have the settlements written soon."""

    @abstractmethod
    def _resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply a transaction's outcome in memory."""

    @abstractmethod
    def check_retention(self) -> None:
        """Settle records beyond the retention limits."""

    @property
    def is_closed(self) -> bool:
        """Whether the log is closed or deleted."""
        return self._closed

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` after commits (see ports.TopicLog)."""
        self._commit_callbacks.append(callback)

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` when a write has failed (see ports.TopicLog)."""
        self._failure_callbacks.append(callback)

    # Beginning

    def flush(self) -> None:
        """Flush what was written so far, if anything; after the flush that is running."""
        if self._flushes and self._segments.dirty:
            self._start_flush_behind()

    def _start_flush(self) -> None:
        """Start a flush of what was written so far, unless one runs or nothing is dirty."""
        if self.is_flushing or self._has_failed or not self._segments.dirty:
            return
        flush = self._begin_flush()
        flush.start(self._services.committer, partial(self._flush_finished, flush))

    def _loop_flush_failed(self, failure: int, took_us: int) -> None:
        """Handle the failure of a flush on the event loop, as soon as `append` has returned."""
        flush = self._begin_flush()
        finished = partial(self._flush_finished, flush)
        self._services.loop.call_soon(flush.files_flushed, finished, failure, took_us)

    def _begin_flush(self) -> Flush:
        """Return the flush of what was written so far, which counts as running from now on."""
        self.is_flushing, self._flush_again = True, False
        parts, reclaimer, waiting = self._parts, self._reclaimer, None
        if parts.preparing or parts.written or reclaimer.condemned:
            waiting = parts.waiting, reclaimer.waiting
        dirty, active = self._segments.take_dirty(), self._segments.active
        sealed = [(segment, segment.stop) for segment in dirty if segment is not active]
        stop = self._unflushed[-1].stop if self._unflushed else 0
        count = len(self._unflushed)
        place = START if self._segments.sink is None else self._segments.place
        flush = Flush(self._services.files, dirty, sealed, count, stop, place, waiting)
        self._running = flush
        return flush

    def _start_flush_behind(self) -> None:
        """Flush what was written so far, after the flush that is running."""
        self._flush_again = self.is_flushing
        self._start_flush()

    def _flush_for_reclaim(self) -> None:
        """Flush so that condemned segments can be removed, or remove them if no flush is needed."""
        if not self._reclaimer.condemned or self._closed:
            return
        if self.is_flushing or self._segments.dirty:
            self._start_flush_behind()
        elif not self._segments.untrusted:
            removal = partial(self._reclaimer.flushed, self._reclaimer.waiting)
            self._when_replicated(self._segments.place, removal)

    # Being copied

    @property
    def place(self) -> LogPlace:
        """End of the log in its files (see ports.ReplicatedLog)."""
        return self._segments.place

    def hold_files(self) -> list[Segment]:
        """Return the files, none of which is removed before `release_files`."""
        held = list(self._segments.items)
        for segment in held:
            segment.pins += 1
        return held

    def release_files(self, held: list[Segment]) -> None:
        """Let files go that were held."""
        for segment in held:
            self._segments.unpin(segment)

    def copy_to(self, sink: LogSink) -> None:
        """Have the log copied from now on (see ports.ReplicatedLog)."""
        assert self._flushes, "the copies of a log that is not flushed would be more durable"
        self._segments.sink = sink
        self.gathered_bytes_max, self.batch_bytes_max = GATHERED_BYTES_MAX, BATCH_BYTES_MAX
        self._replicated, self._replicated_place = self._durable, self.place

    def sent_to_copies(self) -> None:
        """Flush what has been sent to the copies, if that was waited for (see LogSink.wrote)."""
        if not self._flushes_once_sent:
            return
        self._flushes_once_sent = False
        if self._closed or self.is_flushing or self._has_failed or not self._segments.dirty:
            return
        if not self._may_flush_on_loop():
            self._start_flush()
            return
        committed = self.committed
        self._flush_on_loop()
        if self.committed != committed or not self._waits_for_copies:
            call_each(self._commit_callbacks, self._services.report)

    def replicated(self, place: LogPlace, offset: int) -> None:
        """Note how far all copies that count have the log (see ports.ReplicatedLog).

        While it refuses, they are too few to commit records. Settlements and removals go on.
        """
        if self._refusal is None:
            self._replicated = max(offset, self.committed)
        self._replicated_place = place
        due = []
        while self._unreplicated and self._unreplicated[0][0] <= place:
            due.append(self._unreplicated.popleft()[1])
        call_each(due, self._services.report)
        self._advance()
        _wake(self._until_replicated, None)

    def require_copies(self, count: int, *, waits: bool = True) -> None:
        """Store nothing while fewer nodes are in sync (see ports.TopicLog)."""
        self._waits_for_copies = waits
        if count != self.copies_min:
            self.copies_min = count
            if self._segments.sink is not None:
                self._segments.sink.requires_copies()

    @property
    def is_refusing(self) -> bool:
        """Whether nothing is stored (see ports.SharedLog)."""
        return self._refusal is not None

    def refuse(self, error: NotEnoughCopiesError | None) -> None:
        """Store nothing more from now on, or do so again (see ports.ReplicatedLog)."""
        self._refusal = error
        # A part that is aborted meanwhile is settled, though no more is committed: its file stays.
        self._reclaimer.keep_from(REFUSING, None if error is None else self.committed)
        if error is not None:
            self._parts.refuse(error)
            refused = (partial(callback, error) for callback in self._failure_callbacks)
            call_each(refused, self._services.report)

    def _when_replicated(self, place: LogPlace, callback: Callable[[], None]) -> None:
        """Call `callback` once all copies that count end at a place or behind; these are in order.

        At once where there is none.
        """
        if self._segments.sink is None or place <= self._replicated_place:
            callback()
        else:
            self._unreplicated.append((place, callback))

    def _stop_copying(self) -> None:
        """Forget what waits for copies: the log is closed."""
        self._unreplicated.clear()
        _wake(self._until_replicated, None)

    async def _wait_for_copies(self) -> None:
        """Wait until everything that is written now is replicated, or the log is closed."""
        place = self.place
        while place > self._replicated_place and not self._closed:
            await self._wait(self._until_replicated)

    # Waiting

    async def _next_flush(self) -> None:
        """Wait for the end of the running flush, or of a new one. Raises StorageError."""
        self._start_flush()
        await self._wait(self._until_flushed)

    async def _flush_idle(self) -> None:
        """Wait until no flush is running; one must be."""
        await self._wait(self._until_idle)

    async def _flush_all(self) -> None:
        failures = self._failures
        while self.is_flushing or self._segments.dirty:
            self._start_flush()
            await self._flush_idle()
        if self._failures > failures:
            raise StorageError(f"the log in {self.directory} could not be flushed at its close")

    async def _wait(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = self._services.loop.create_future()
        waiters.append(waiter)
        await waiter

    # Ending

    def _flush_finished(self, flush: Flush, error: OSError | None) -> None:
        self.is_flushing, self._running = False, None
        self._failures = 0 if error is None else self._failures + 1
        self._figures.ended(flush.took_us, flush.count, failed=error is not None)
        for segment in flush.segments:
            self._segments.unpin(segment)
        _wake(self._until_flushed, self._flush_failure(error) if error else None)
        # After any error in it, the next flush must start, or nothing is confirmed any more.
        try:
            self._flush_ended(flush, error)
        except Exception as bug:  # noqa: BLE001
            self._services.report(self._flush_ended, bug)
        if not self._closed and self._wants_flush:
            self._start_flush()
        if not self.is_flushing:
            _wake(self._until_idle, None)

    @property
    def _wants_flush(self) -> bool:
        waits = self._unflushed or self._segments.sealed_dirty or self._parts.preparing
        return bool(waits or self._flush_again)

    def _flush_ended(self, flush: Flush, error: OSError | None) -> None:
        if self._closed:
            return
        if self._services.open_files.is_crowded:
            self._services.open_files.shrink()
        if error is None:
            self._flush_succeeded(flush)
        else:
            self._flush_failed(flush, error)

    def _flush_succeeded(self, flush: Flush) -> None:
        if flush.count:
            self._forget_unflushed(flush.count)
            self._durable = flush.stop
            self.flushed = max(self.flushed, flush.stop)
        if flush.sealed:
            self.flushed = max(self.flushed, flush.sealed[-1][1])
        if self._segments.sink is None:
            self._flush_replicated(flush)
        else:
            self._when_replicated(flush.place, partial(self._flush_replicated, flush))
        self._advance()
        if flush.sealed:
            for segment, _ in flush.sealed:
                self._services.open_files.use(segment)
            self.check_retention()

    def _flush_replicated(self, flush: Flush) -> None:
        """Do what a flush was waited for, once all copies that count have flushed the same."""
        if self._closed:
            return
        newly_covered = flush.segments[-1] is not self._reclaimer.covered
        self._reclaimer.covered = flush.segments[-1]
        if flush.waiting is not None:
            of_parts, of_segments = flush.waiting
            self._reclaimer.flushed(of_segments)
            for transaction in self._parts.flushed(of_parts):
                self._resolve(transaction, committed=False)
            self._advance()
        if newly_covered or flush.sealed:
            self._reclaimer.reclaim_sealed()
            self._flush_for_reclaim()

    def _advance(self) -> None:
        """Commit what may be committed, and tell it to those who wait for it."""
        if self._commit() or not self._waits_for_copies:
            call_each(self._commit_callbacks, self._services.report)

    def _flush_failed(self, flush: Flush, error: OSError) -> None:
        """Rewrite unflushed batches in a new segment; never retry the old file (decision 0006).

        Copies have what cannot be flushed here, so that another node must lead instead.
        """
        failure = self._flush_failure(error)
        for segment in flush.segments:
            segment.mark_suspect(self._services.files)
        if self._segments.sink is not None:
            self._has_failed = True
            self._segments.sink.failed(failure)
            return
        self._touch()  # soon another segment is begun, even if nothing is appended
        if not self._flushes:
            self._segments.mark_suspect()
            self._services.warn(f"{failure}; a new segment is begun, nothing else is affected")
            return
        lost = self._cut_unflushed()
        self._reader.forget()
        if self._failures == 1 and all(entry.batch is not None for entry in lost):
            self._services.warn(f"{failure}; writing it anew into another file")
            try:
                self._write_again([entry.batch for entry in lost if entry.batch is not None])
            except StorageError as second:
                failure = second
            else:
                return
        self._lose(failure)

    def _flush_failure(self, error: OSError) -> StorageError:
        return storage_error("flush the log in", self.directory, error)

    def _cut_unflushed(self) -> list[UnflushedBatch]:
        """Cut off the batches that wait for a flush, and begin a new segment; return them."""
        lost, self._unflushed = self._unflushed, []
        self._unflushed_bytes = 0
        if lost:
            self._segments.cut(lost[0].segment, lost[0].position)
        self._segments.mark_suspect()
        return lost

    def _write_again(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._rewrite(batch)
        if self._parts.preparing and self._segments.untrusted:
            self._segments.roll(self.end)  # its checkpoint tells what will be settled
        self._start_flush()

    def _lose(self, failure: StorageError) -> None:
        """Drop the uncommitted records and report the failure."""
        self._cut_unflushed()
        self._cache.cut(self._tail, self._durable)
        lost = self.end - self._durable
        self.end = self._durable
        self._parts.lose(failure)
        self._services.warn(f"{failure}; {lost} records were not stored and are refused")
        failed = (partial(callback, failure) for callback in self._failure_callbacks)
        call_each(failed, self._services.report)


def _wake(waiters: list[asyncio.Future[None]], failure: Exception | None) -> None:
    """End all waiting, with `failure` if there is one."""
    woken, waiters[:] = waiters[:], []
    for waiter in woken:
        if waiter.done():  # the waiting coroutine was cancelled
            continue
        if failure is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(failure)
