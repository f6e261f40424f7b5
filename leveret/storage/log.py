"""One partition on disk: what `core` sees of the storage engine.

Everything here runs on the event loop. A write goes into the page cache; whatever waits for a
device is work for the committer's threads, whose completion comes back as a call on the loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from crc32c import crc32c

from leveret.errors import StorageError
from leveret.ports import Damage, Durability, LogFile
from leveret.ports.ranges import RangeSet
from leveret.ports.records import HEADER_BYTES, Batch, BatchBuilder
from leveret.storage.checkpoint import (
    CloseMark,
    Part,
    Told,
    checkpoint_payload,
    part_payload,
    resolved_payload,
    return_payload,
    settlement_payload,
)
from leveret.storage.damage import Survey, keep_aside
from leveret.storage.files import storage_error
from leveret.storage.flush import Flush, FlushFigures, Unflushed
from leveret.storage.parts import Parts
from leveret.storage.reader import LogReader, OpenFiles
from leveret.storage.retention import Retainer, segment_bytes
from leveret.storage.segment import Segment
from leveret.storage.segments import Segments
from leveret.storage.tail import LogTail, TailCache
from leveret.storage.times import TimeSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from leveret.ports import Clock, Retention
    from leveret.storage.commit import Committer
    from leveret.storage.decisions import Decisions
    from leveret.storage.encryption import DataKey
    from leveret.storage.files import FileSystem
    from leveret.storage.keyring import Keyring
    from leveret.storage.recovery import Recovered

__all__ = ["LogServices", "PartitionLog"]

MERGED_RANGES_MIN = 64  # so many settled at once take one pass over all ranges, not one each
IDLE_ROLL_SHARE = 8  # a settled segment of at least an eighth of the maximum is rolled, to go


@dataclass(frozen=True, slots=True)
class LogServices:
    """What all logs of a node share. `warn` is the shell's voice."""

    files: FileSystem
    loop: asyncio.AbstractEventLoop
    clock: Clock
    tail_cache: TailCache
    keyring: Keyring
    committer: Committer
    flushes: FlushFigures
    pool: ThreadPoolExecutor
    open_files: OpenFiles
    segment_bytes_max: int
    decisions: Decisions
    touched: Callable[[PartitionLog], None]  # has settlements to write down
    closed: Callable[[PartitionLog, CloseMark | None], None]
    deleted: Callable[[PartitionLog], Callable[[], None]]  # moves files away; returns their removal
    warn: Callable[[str], None]


class PartitionLog:
    """See ports.TopicLog.

    Invariant: first <= committed <= durable <= end, settled below durable. Between committed and
    durable are a transaction's records, until it is resolved, and what was published behind them.
    """

    # More attributes than Python would find without a dictionary: see core.logs.appender.
    __slots__ = (
        "_cache",
        "_closed",
        "_commit_callbacks",
        "_covered",
        "_durable",
        "_failure_callbacks",
        "_flush_again",
        "_flush_failures",
        "_flush_waiters",
        "_flushes",
        "_flushing",
        "_keep_from",
        "_keeps",
        "_parts",
        "_pending",
        "_reader",
        "_retainer",
        "_returned",
        "_segments",
        "_services",
        "_setting_aside",
        "_tail",
        "_touched",
        "_unflushed",
        "_unresolved",
        "_waiters",
        "appended_bytes",
        "builder",
        "committed",
        "directory",
        "end",
        "redelivered_stop",
        "returns",
        "settled",
        "unclean",
        "undone",
    )

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        durability: Durability,
        recovered: Recovered,
        *,
        retention: Retention | None,
        key: DataKey | None,
    ) -> None:
        """`key` seals what is written, until `use_key` says otherwise."""
        self.builder = BatchBuilder()
        self.directory = directory
        self.end = self.committed = self._durable = recovered.end
        self.settled = recovered.settled
        self.returns = recovered.returns
        self.undone = recovered.told.undone
        self.unclean = recovered.unclean
        self.appended_bytes = 0
        self.redelivered_stop = recovered.redelivered_stop
        self._services = services
        self._keeps = durability is not Durability.NONE
        self._flushes = durability is Durability.FSYNC
        self._cache = services.tail_cache
        self._tail = LogTail(None if self._keeps else self._spill)
        self._segments = Segments(
            services.files,
            directory,
            segment_bytes_max=services.segment_bytes_max,
            checkpoint=self._checkpoint if self._keeps else None,
            wall_ms=services.clock.wall_ms,
            on_roll=self._start_flush if self._keeps else lambda: None,
            key=key,
            new_sealer=services.keyring.sealer,
        )
        self._segments.adopt(recovered.segments)
        self._retainer = Retainer(
            services.files,
            self._segments,
            services.committer,
            wall_ms=services.clock.wall_ms,
            is_given_up=lambda segment: self.settled.contains(segment.base, segment.stop),
            settle_below=self._settle_below,
            warn=services.warn,
        )
        self._reader = LogReader(
            services.files,
            self._segments,
            services.open_files,
            services.loop,
            services.pool,
            gapless=self._keeps,
            unseal=services.keyring.unsealer.open,
        )
        self._setting_aside = asyncio.Lock()
        self._parts = Parts(recovered.unresolved, services.decisions.remembered)
        self._unresolved = self._parts.unresolved  # asked for at each append
        self._unflushed = Unflushed()
        self._pending = RangeSet()  # settled, not yet written down
        self._returned = RangeSet()  # the same of what came back
        self._touched = False
        self._flushing = False
        self._flush_again = False  # something was written since that wants to be flushed
        self._flush_failures = 0  # in a row
        self._covered: Segment | None = None  # newest segment whose checkpoint is durable
        self._closed = False
        self._keep_from: int | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._flush_waiters: list[asyncio.Future[None]] = []  # for the end of the next flush
        self._commit_callbacks: list[Callable[[], None]] = []
        self._failure_callbacks: list[Callable[[Exception], None]] = []
        self.retention = retention
        for transaction in list(self._unresolved):
            self._resolve(transaction, committed=services.decisions.asked(transaction))

    def __repr__(self) -> str:
        return f"PartitionLog({str(self.directory)!r}, end={self.end})"

    @property
    def first(self) -> int:
        """See ports.TopicLog."""
        items = self._segments.items
        if self._keeps:
            return items[0].base if items else self.end
        return next(iter(self.settled))[1] if self.settled.first == 0 else 0

    @property
    def segments(self) -> list[Segment]:
        """Its files, in order."""
        return self._segments.items

    def list_files(self) -> list[LogFile]:
        """See ports.TopicLog."""
        segments = self._segments.items
        last = segments[-1] if segments else None
        return [
            LogFile(each.base, each.stop, each.size, each.began_ms, is_sealed=True)
            if each is not last
            else LogFile(each.base, self.end, self._segments.position, each.began_ms, False)
            for each in segments
        ]

    @property
    def retention(self) -> Retention | None:
        """See ports.TopicLog."""
        return self._retainer.retention

    @retention.setter
    def retention(self, retention: Retention | None) -> None:
        self._retainer.retention = retention
        self._segments.segment_bytes_max = segment_bytes(
            retention, self._services.segment_bytes_max
        )
        self.check_retention()

    @property
    def keep_from(self) -> int | None:
        """See ports.TopicLog."""
        return self._keep_from

    @keep_from.setter
    def keep_from(self, offset: int | None) -> None:
        kept, self._keep_from = self._keep_from, offset
        if kept is not None and not self._closed and self._segments.items:
            stop = self._segments.active.base if offset is None else offset
            self._remove_settled(self._segments.overlapping(kept, stop))

    def check_retention(self) -> None:
        """Settle what is to be kept no longer: when a sealed segment was flushed, and at times."""
        if not self._closed:
            self._retainer.check()

    def _settle_below(self, stop: int) -> None:
        """Give up old records: those of them that are committed, as others may yet be cut off."""
        stop = min(stop, self.committed)
        if stop:
            self.settle([(0, stop)])

    def use_key(self, key: DataKey | None) -> None:
        """Seal what is written from now on with another key; None: seal no more."""
        self._segments.use_key(key)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """See ports.TopicLog."""
        self._commit_callbacks.append(callback)

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """See ports.TopicLog."""
        self._failure_callbacks.append(callback)

    def append(self) -> int:
        """See ports.TopicLog."""
        base = self.end
        transient = self.builder.transient
        batch = self.builder.seal(base)
        self.appended_bytes += batch.size - HEADER_BYTES
        if not self._keeps:
            if self._cache.stuck:
                self._cache.write_down_stuck()
            self.end = self._durable = base + batch.count
            if not self._unresolved:
                self.committed = self.end
        else:
            batch.set_checksum(crc32c(batch.checked))
            segment, position = self._segments.write(batch, base)
            self.end = base + batch.count
            if self._flushes and (self._unflushed.entries or not transient):
                self._unflushed.add(batch, segment, position)
                if not self._flushing:
                    self._start_flush()
            else:
                self._durable = self.end
                if not self._unresolved:
                    self.committed = self.end
        self._cache.add(self._tail, batch)
        return base

    def _spill(self, batch: Batch) -> None:
        """Write down a batch that memory has no room for. Raises StorageError."""
        batch.set_checksum(crc32c(batch.checked))
        self._segments.write(batch, batch.base_offset)

    # Taking part in transactions

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
    ) -> None:
        """See ports.TopicLog."""
        part = self._unresolved[transaction] = Part(self.end, self.end, RangeSet(ranges))
        try:
            # Settlements first: should they find no room, no offset has been used up.
            if ranges and self._keeps:
                self._write_control(part_payload(transaction, part.settles))
            if records.count:
                self._append_pending(transaction, records)
        except BaseException:
            del self._unresolved[transaction]
            records.clear()
            raise
        part.stop = self.end
        if not self._flushes:
            self._durable = self.end
            prepared(None)
            return
        self._parts.await_flush(transaction, prepared)
        self._start_flush()

    def _append_pending(self, transaction: int, records: BatchBuilder) -> None:
        base = self.end
        batch = records.seal(base)
        self.appended_bytes += batch.size - HEADER_BYTES
        if not self._keeps:
            if self._cache.stuck:
                self._cache.write_down_stuck()
        else:
            batch.set_pending(transaction)
            batch.set_checksum(crc32c(batch.checked))
            segment, position = self._segments.write(batch, base)
            if self._flushes:
                self._unflushed.add(batch, segment, position)
        self.end = base + batch.count
        self._cache.add(self._tail, batch)

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """See ports.TopicLog."""
        if transaction not in self._unresolved or self._closed:
            return
        if not committed and not self._parts.undo(transaction):
            return
        self._resolve(transaction, committed=committed)
        self._advance()

    def _resolve(self, transaction: int, *, committed: bool) -> None:
        part = self._unresolved[transaction]
        if committed:
            self.settle(list(part.settles))
        elif part.first < part.stop:
            self.undone.add(part.first, part.stop)
            self.settle([(part.first, part.stop)])
        self._parts.resolve(transaction)
        self._touch()

    def takes_part(self, transaction: int) -> bool:
        """Whether recovery would ask for the outcome of a transaction that is prepared now."""
        return self._keeps and transaction in self._unresolved

    # Reading

    def read(self, offset: int, bytes_max: int) -> list[Batch] | None:
        """See ports.TopicLog."""
        if offset >= self.committed:
            return []
        found = self._tail.read(offset, self.committed, bytes_max)
        return found or self._reader.read(offset, self.committed, bytes_max)

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        """See ports.TopicLog."""
        if offset >= self.committed:
            return []
        found = self._tail.read(offset, self.committed, bytes_max)
        return found or await self._reader.fetch(offset, self.committed, bytes_max)

    async def offset_at(self, time_ms: int) -> int:
        """See ports.TopicLog. Raises StorageError."""
        segments = list(self._segments.items)
        unseal = self._services.keyring.unsealer.open
        search = TimeSearch(self._services.files, segments, time_ms, self.end, unseal)
        for segment in segments:
            segment.pins += 1
        try:
            return await self._services.loop.run_in_executor(self._services.pool, search.run)
        except OSError as error:
            raise storage_error("read the log in", self.directory, error) from error
        finally:
            for segment in segments:
                segment.unpin(self._services.files)

    async def set_aside(self, offset: int) -> Damage:
        """See ports.TopicLog. One at a time: each reads a whole segment."""
        async with self._setting_aside:
            if self._closed:
                raise StorageError(f"the log in {self.directory} is closed")
            segment = self._segments.find(offset)
            if segment is None:
                return Damage(RangeSet([(offset, offset + 1)]), [])
            if segment is self._segments.active:
                # Recovery cuts a last segment at its first damage: nothing more shall be behind it.
                self._segments.roll(self.end)
            return await self._set_aside(segment)

    async def _set_aside(self, segment: Segment) -> Damage:
        # A flush to come writes the index too. Where neither does, the next run finds the same
        # damage again, and loses nothing more by it.
        settled_down = not (segment.dirty or segment.doubtful or self._flushing)
        segment.pins += 1
        try:
            found, kept = await self._services.loop.run_in_executor(
                self._services.pool,
                lambda: keep_aside(
                    self._services.files,
                    segment,
                    gapless=self._keeps,
                    indexed=settled_down,
                    check=self._services.keyring.unsealer.verify,
                ),
            )
        except OSError as error:
            raise storage_error("set aside what is damaged in", segment.path, error) from error
        finally:
            segment.unpin(self._services.files)
        if not self._closed:
            self._reader.forget()
            segment.index = found.index
            self._services.open_files.use(segment)
        return Damage(self._lost(found), [str(segment.directory / name) for name in kept])

    def _lost(self, found: Survey) -> RangeSet:
        """What of the damaged stretches is not settled, nor in memory, nor waits for a flush."""
        lost = RangeSet()
        for stretch in found.damaged:
            for first, stop in self.settled.gaps(stretch.first, min(stretch.stop, self.committed)):
                lost.add(first, stop)
        for batch in self._tail.batches:
            if batch is not None:
                lost.remove(batch.base_offset, batch.stop_offset)
        return lost

    # Settling

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See ports.TopicLog."""
        settled, pending, cache, tail = self.settled, self._pending, self._cache, self._tail
        if len(ranges) >= MERGED_RANGES_MIN:
            settled.add_all(ranges)
            pending.add_all(ranges)
        else:
            for first, stop in ranges:
                settled.add(first, stop)
                pending.add(first, stop)
        if len(ranges) > 1 and tail.place(ranges[-1][0]) - tail.place(ranges[0][0]) < len(ranges):
            cache.settle(tail, ranges[0][0], ranges[-1][1], settled)  # close together
        else:
            for first, stop in ranges:
                cache.settle(tail, first, stop, settled)
        if not self._touched:
            self._touch()

    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See ports.TopicLog."""
        for first, stop in ranges:
            self._returned.add(first, stop)
        self._touch()

    def _checkpoint(self) -> bytes:
        return checkpoint_payload(Told(self.settled, self.returns, self.undone, self._unresolved))

    def _touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._services.touched(self)

    def write_settlements(self) -> None:
        """Write down what was settled since the last call; remove segments nobody needs.

        Raises StorageError; what was settled is then kept for the next call.
        """
        self._touched = False
        if self._closed or not (self._segments.items or self._keeps):
            self._pending.clear()
            self._returned.clear()
            self._parts.resolved.clear()
            return
        try:
            self._write_pending()
        except StorageError:
            self._touched = True
            raise
        self._parts.outcomes_written(flushes=self._flushes)
        pending, self._pending, self._returned = self._pending, RangeSet(), RangeSet()
        for first, stop in pending:
            self._remove_settled(self._segments.overlapping(first, stop))
        self._roll_settled()
        if self.retention is not None and self._covered is None:
            self._start_flush()  # durability OS would not by itself, and no segment could go

    def _write_pending(self) -> None:
        if not self._keeps:
            return
        if self._segments.untrusted:
            self._segments.roll(self.end)  # its checkpoint tells everything
            return
        if self._parts.resolved:
            self._write_control(resolved_payload(self._parts.resolved, self.undone, self._pending))
        elif self._pending:
            self._write_control(settlement_payload(self._pending))
        if self._returned:
            self._write_control(return_payload(self.returns, self._returned))

    def _write_control(self, payload: bytes) -> None:
        batch = Batch.control(self.end, payload, self._services.clock.wall_ms())
        batch.set_checksum(crc32c(batch.checked))
        self._segments.write(batch, self.end)

    def _remove_settled(self, segments: Sequence[Segment]) -> None:
        """Remove those of the sealed `segments` that hold nothing unsettled.

        Their control batches must not be needed either: a later checkpoint is durable.
        """
        for segment in list(segments):
            if self._keeps and (self._covered is None or not precedes(segment, self._covered)):
                continue
            if self._keep_from is not None and segment.stop > self._keep_from:
                break
            if segment.pins or not self.settled.contains(segment.base, segment.stop):
                continue
            self._services.open_files.forget(segment)
            self._services.committer.submit(self._segments.remove(segment), self._removed)
            self.undone.remove(segment.base, segment.stop)
            self._reader.forget()

    def _removed(self, error: OSError | None) -> None:
        if error is not None:
            self._services.warn(
                str(storage_error("remove a settled segment in", self.directory, error))
            )

    def _roll_settled(self) -> None:
        """Seal a large last segment that is settled entirely, so that it can be removed."""
        size = self._segments.position * IDLE_ROLL_SHARE
        if size < self._services.segment_bytes_max or not self._segments.items:
            return
        base = self._segments.active.base
        if base < self.end and self.settled.contains(base, self.end):
            self._segments.roll(self.end)
            if not self._keeps:
                self._remove_settled(self._segments.items[:-1])

    # Flushing

    def flush(self) -> None:
        """Flush what was written so far, if anything was; after the flush that is under way."""
        if self._flushes and self._segments.dirty:
            self._flush_again = self._flushing
            self._start_flush()

    async def settlements_safe(self) -> None:
        """See ports.TopicLog. Raises StorageError."""
        if self._closed or not self._keeps:
            return
        self.write_settlements()
        under_way = True
        # A flush that is under way may have begun too early: the one behind it has not.
        while self._flushes and under_way and (self._flushing or self._segments.dirty):
            under_way = self._flushing
            self._start_flush()
            waiter = self._services.loop.create_future()
            self._flush_waiters.append(waiter)
            await waiter

    def _start_flush(self) -> None:
        if self._flushing or not self._segments.dirty:
            return
        self._flushing, self._flush_again = True, False
        self._parts.flush_begins()
        flush = Flush.begin(self._services.files, self._segments, self._unflushed)
        self._services.committer.submit(flush.run, partial(self._flushed, flush))

    def _flushed(self, flush: Flush, error: OSError | None) -> None:
        self._flushing = False
        self._services.flushes.ended(flush, failed=error is not None)
        flush.unpin()
        waiting, self._flush_waiters = self._flush_waiters, []
        for waiter in waiting:
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(storage_error("flush the log in", self.directory, error))
        if not self._closed:
            if error is None:
                self._flush_succeeded(flush)
            else:
                self._flush_failed(flush, error)
            if (
                self._unflushed.entries
                or self._segments.sealed_dirty
                or self._parts.waits
                or self._flush_again
            ):
                self._start_flush()
        if not self._flushing:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.set_result(None)

    def _flush_succeeded(self, flush: Flush) -> None:
        self._flush_failures = 0
        newly_covered = flush.segments[-1] is not self._covered
        self._covered = flush.segments[-1]
        if flush.count:
            self._unflushed.flushed(flush.count)
            self._durable = flush.stop
        for transaction in self._parts.flushed():
            self._resolve(transaction, committed=False)
        self._advance()
        if flush.sealed:
            for segment, _ in flush.sealed:
                self._services.open_files.use(segment)
            self.check_retention()
        if newly_covered or flush.sealed:
            self._remove_settled(self._segments.items[:-1])

    def _advance(self) -> None:
        """Show what is durable, as far as no transaction is in the way."""
        committed = self._parts.limit(self._durable) if self._unresolved else self._durable
        if committed == self.committed:
            return
        self.committed = committed
        for callback in self._commit_callbacks:
            callback()

    def _flush_failed(self, flush: Flush, error: OSError) -> None:
        """A flush that failed is never repeated on the same file: see decision 0011."""
        failure = storage_error("flush the log in", self.directory, error)
        self._flush_failures += 1
        for segment in flush.segments:
            segment.doubt(self._services.files)
        self._touch()  # soon another segment is begun, even if nothing is appended
        if not self._flushes:
            self._segments.distrust()
            self._services.warn(f"{failure}; a new segment is begun, nothing else is affected")
            return
        lost = self._unflushed.take()
        if lost:
            self._segments.cut(lost[0].segment, lost[0].position)
        self._segments.distrust()
        self._reader.forget()
        if self._flush_failures == 1 and all(entry.batch is not None for entry in lost):
            self._services.warn(f"{failure}; writing it anew into another file")
            try:
                self._write_again([entry.batch for entry in lost if entry.batch is not None])
            except StorageError as second:
                failure = second
            else:
                return
        self._lose(failure)

    def _write_again(self, batches: list[Batch]) -> None:
        for batch in batches:
            segment, position = self._segments.write(batch, batch.base_offset)
            self._unflushed.add(batch, segment, position)
        if self._parts.waits and self._segments.untrusted:
            self._segments.roll(self.end)  # its checkpoint tells what will be settled
        self._start_flush()

    def _lose(self, failure: StorageError) -> None:
        """Give up the records that were not committed, and say so."""
        for entry in self._unflushed.take():
            self._segments.cut(entry.segment, entry.position)
            break
        self._segments.distrust()
        self._cache.cut(self._tail, self._durable)
        lost = self.end - self._durable
        self.end = self._durable
        self._parts.lose(failure)
        self._services.warn(f"{failure}; {lost} records were not stored and are refused")
        for callback in self._failure_callbacks:
            callback(failure)

    # Ending

    async def close(self) -> None:
        """See ports.TopicLog. Raises StorageError; the log then counts as not cleanly closed."""
        if self._closed:
            return
        mark = None
        try:
            if self._keeps:
                self.write_settlements()
                await self._flush_all()
                mark = self._mark()
        finally:
            self._closed = True
            self._release()
            self._services.closed(self, mark)

    async def _flush_all(self) -> None:
        failures = self._flush_failures
        while self._flushing or self._segments.dirty:
            self._start_flush()
            waiter = self._services.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self._flush_failures > failures:
            raise StorageError(f"the log in {self.directory} could not be flushed at its close")

    def _mark(self) -> CloseMark | None:
        if not self._segments.items:
            return None
        active = self._segments.active
        if active.index is not None:
            try:
                active.write_index(self._services.files, self.end)
            except OSError as error:
                raise storage_error("write", active.index_path, error) from error
        return CloseMark(
            active.base,
            active.generation,
            active.size,
            self.end,
            self.redelivered_stop,
            self._checkpoint(),
        )

    def _release(self) -> None:
        self._cache.clear(self._tail)
        for segment in self._segments.items:
            self._services.open_files.forget(segment)
        self._segments.release()

    async def delete(self) -> None:
        """See ports.TopicLog. Raises StorageError."""
        self._closed = True
        self.builder.clear()
        self._parts.close()
        while self._flushing:
            waiter = self._services.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self._release()
        self._services.committer.submit(self._services.deleted(self), self._removed)


def precedes(segment: Segment, other: Segment) -> bool:
    """Whether a segment stands before another in its log."""
    return (segment.base, segment.generation) < (other.base, other.generation)
