"""One partition on disk: what `core` sees of the storage engine.

Everything here runs on the event loop. A write goes into the page cache; whatever waits for a
device is work for the committer's threads, whose completion comes back as a call on the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.ports import Damage, Durability, LogFile
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder
from leveret.ports.replication import RawBatches
from leveret.storage.checkpoint import (
    RecoveredState,
    TransactionPart,
    checkpoint_payload,
    erased_payload,
    part_payload,
    resolved_payload,
    retained_payload,
    return_payload,
    settlement_payload,
)
from leveret.storage.compacted_log import CompactedLog
from leveret.storage.files import storage_error
from leveret.storage.marks import LogMark
from leveret.storage.quarantine import Quarantine
from leveret.storage.retention import Retainer, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from leveret.ports import Compaction, Retention
    from leveret.ports.replication import LogPlace
    from leveret.storage.encryption import DataKey
    from leveret.storage.recovery import Recovered
    from leveret.storage.segment import Segment
    from leveret.storage.services import LogServices

__all__ = ["PartitionLog"]

RETENTION = "retention"  # as a reader that needs records (see keep_from)


class PartitionLog(CompactedLog):
    """One log on disk (see ports.TopicLog).

    Invariant: first <= committed <= durable <= end, settled below durable. Between committed and
    durable are a transaction's records, until it is resolved, and what was published behind them.
    Offsets below `flushed` were flushed in this run or before; `key` is its name in the state
    store, `noted` what was noted there last.
    """

    __slots__ = (
        "_erasing",
        "_is_retaining",
        "_quarantine",
        "_retainer",
        "_returned",
        "key",
        "noted",
        "redelivered_stop",
        "retention_waits_at",
        "returns",
        "unclean",
    )

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        durability: Durability,
        recovered: Recovered,
        *,
        retention: Retention | None,
        data_key: DataKey | None,
        key: bytes = b"",
    ) -> None:
        """`data_key` seals new batches, until `use_key` sets another."""
        super().__init__(services, directory, durability, recovered, data_key)
        self.builder = BatchBuilder()
        self.returns = recovered.returns
        self.unclean = recovered.unclean
        self.key = key
        self.noted = (-1, -1, -1)
        self.appended_bytes = 0
        self.redelivered_stop = recovered.redelivered_stop
        self.retention_waits_at: Callable[[], int | None] = nobody
        self._retainer: Retainer | None = None  # once records are to be kept no longer than …
        self._quarantine: Quarantine | None = None  # once something is damaged
        self._pending = self._reclaimer.pending  # settled, not yet written down
        self._erasing = RangeSet()  # the same of what was erased
        self._is_retaining = False  # `retained_from` is to be written down
        self._returned = RangeSet()  # the same of what came back
        self._touched = False
        self.retention = retention
        if recovered.given_up:
            self._pending.add_all(recovered.given_up)
            self._touch()  # the next start need not tell it, and cannot know what was not flushed

    def _make_retainer(self) -> Retainer:
        services = self._services
        return Retainer(
            services.files,
            self._segments,
            services.committer,
            wall_ms=services.clock.wall_ms,
            end=lambda: self.end,
            waits_at=self._waits_at,
            is_given_up=self._is_given_up,
            apply=self._let_go,
            warn=services.warn,
        )

    def __repr__(self) -> str:
        return f"PartitionLog({str(self.directory)!r}, end={self.end})"

    @property
    def first(self) -> int:
        """Offset of the first record (see ports.TopicLog)."""
        items = self._segments.items
        if self._keeps:
            return items[0].base if items else self.end
        return next(iter(self.settled))[1] if self.settled.first == 0 else 0

    @property
    def segments(self) -> list[Segment]:
        """Segments of the log, in order."""
        return self._segments.items

    @property
    def written(self) -> tuple[Segment, int] | None:
        """Last segment and the number of its bytes that are written; None without segments."""
        segments = self._segments
        return (segments.items[-1], segments.position) if segments.items else None

    def list_files(self) -> list[LogFile]:
        """Return the log's files (see ports.TopicLog)."""
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
        """Retention limits (see ports.TopicLog)."""
        return None if self._retainer is None else self._retainer.retention

    @retention.setter
    def retention(self, retention: Retention | None) -> None:
        if self._retainer is None and retention is not None:
            self._retainer = self._make_retainer()
        if self._retainer is not None:
            self._retainer.retention = retention
            self.keep_from(RETENTION, 0 if self._keeps_settled else None)
        self._segments.segment_bytes_max = segment_bytes(
            retention, self._services.segment_bytes_max
        )
        self._track_retention()
        self.check_retention()

    @property
    def kept_from(self) -> int | None:
        """Offset from which on nothing is removed (see ports.TopicLog)."""
        return self._reclaimer.kept_from

    def keep_from(self, reader: str, offset: int | None) -> None:
        """Remove nothing from `offset` on (see ports.TopicLog)."""
        free = self._reclaimer.keep_from(reader, offset)
        if free is not None and not self._closed:
            self._reclaimer.reclaim(*free)
            self._flush_for_reclaim()

    @property
    def removed(self) -> RangeSet:
        """Settled offsets that no file holds (see ports.TopicLog)."""
        return self._reclaimer.removed

    def on_remove(self, callback: Callable[[Sequence[tuple[int, int]]], None]) -> None:
        """Call `callback` for ranges that are removed (see ports.TopicLog)."""
        self._reclaimer.on_remove.append(callback)

    def check_retention(self) -> None:
        """Apply the retention limits; called at times and for sealed segments."""
        if not self._closed and self._retainer is not None:
            self._retainer.check()
            if self.compaction is not None:
                self._services.may_compact(self.directory)

    @property
    def _keeps_settled(self) -> bool:
        return self.retention is not None and self.retention.keeps_settled

    def _waits_at(self) -> int | None:
        return self.retention_waits_at()

    def _is_given_up(self, segment: Segment) -> bool:
        """Whether retention has let go of a segment, whose files may still be there."""
        return not self._keeps_settled and self.settled.contains(segment.base, segment.stop)

    def _let_go(self, stop: int) -> None:
        """Keep no settled records below `stop`, or settle all that are below.

        Uncommitted ones may yet be truncated.
        """
        if self._keeps_settled:
            self.keep_from(RETENTION, stop)
            return
        stop = min(stop, self.committed)
        first = self.first
        if first < stop:
            # What is settled entirely, compaction has removed.
            if self.retained_from is not None and not self.settled.contains(first, stop):
                self._retain_from(max(stop, self.retained_from))
            self.settle([(0, stop)])
            self.tell_removed([(first, stop)])

    def _track_retention(self) -> None:
        """Begin to tell what retention removes from what compaction does."""
        if self.compaction is not None and self.retained_from is None and self._keeps:
            self._retain_from(self.first)

    def _retain_from(self, offset: int) -> None:
        """Write down the first offset that retention keeps, with the next settlements.

        The first checkpoint of a new log tells it.
        """
        self.retained_from = offset
        if self._segments.items:
            self._is_retaining = True
            self._touch()

    @property
    def compaction(self) -> Compaction | None:
        """How the log is compacted by key; None: it is not."""
        retention = self.retention
        return None if self._closed or retention is None else retention.compaction

    def retention_waits_from(self) -> int | None:
        """Return the offset from which on retention keeps all for a reader that is behind."""
        return None if self._retainer is None else self._retainer.waits_at()

    def use_key(self, key: DataKey | None) -> None:
        """Seal new batches with another key; None: stop sealing."""
        self._segments.use_key(key)

    # Taking part in transactions

    @property
    def unresolved(self) -> list[int]:
        """Transactions that have a part here and wait for `resolve`, those of earlier runs first.

        The store resolves those that a log was opened with.
        """
        return list(self._unresolved)

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        *,
        erases: bool = False,
    ) -> None:
        """Write the log's part of a transaction (see ports.TopicLog)."""
        if self._refusal is not None:  # settlements would wait for copies, too
            records.clear()
            raise self._refusal
        part = TransactionPart(self.end, self.end, RangeSet(ranges), erases)
        self._unresolved[transaction] = part
        try:
            # Settlements first: should they find no room, no offset has been used up.
            if ranges and self._keeps:
                self._write_control(part_payload(transaction, part))
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

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply a transaction's outcome (see ports.TopicLog)."""
        if transaction not in self._unresolved or self._closed:
            return
        if not committed and not self._parts.undo(transaction):
            return
        self._resolve(transaction, committed=committed)
        self._advance()

    def _resolve(self, transaction: int, *, committed: bool) -> None:
        part = self._unresolved[transaction]
        if committed:
            settles = list(part.settles)
            if part.erases:
                self.erase(settles)
            else:
                self.settle(settles)
        elif part.first < part.stop:
            self.undone.add(part.first, part.stop)
            self.settle([(part.first, part.stop)])
        self._parts.resolve(transaction)
        self._touch()

    def takes_part(self, transaction: int) -> bool:
        """Whether recovery would need the outcome of a transaction that is prepared now."""
        return self._keeps and transaction in self._unresolved

    # Reading

    @property
    def held_bytes(self) -> int:
        """Bytes held in memory (see ports.TopicLog)."""
        return self._tail.bytes + self.builder.held_bytes

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        """Read batches, waiting for the device (see ports.TopicLog)."""
        if offset >= self.committed:
            return []
        found = self._tail.read(offset, self.committed, bytes_max)
        return found or await self._reader.fetch(offset, self.committed, bytes_max)

    async def offset_at(self, time_ms: int) -> int:
        """Return the first offset at or after a time (see ports.TopicLog). Raises StorageError."""
        return await self._reader.offset_at(time_ms, self.end)

    async def set_aside(self, offset: int) -> Damage:
        """Quarantine damage at `offset`, one call at a time (see ports.TopicLog)."""
        if self._quarantine is None:
            self._quarantine = Quarantine(
                self, self._services, self._segments, self._reader, self._tail
            )
        return await self._quarantine.set_aside(offset)

    # Being copied

    def read_raw(self, place: LogPlace, offset: int, bytes_max: int) -> RawBatches | None:
        """Return batches as they stand in a file (see ports.ReplicatedLog)."""
        if not self._segments.items:
            return RawBatches(bytearray(), place, offset)
        return self._reader.read_raw(place, offset, bytes_max)

    async def fetch_raw(self, place: LogPlace, offset: int, bytes_max: int) -> RawBatches:
        """Read as `read_raw`, waiting for the device (see ports.ReplicatedLog)."""
        if not self._segments.items:
            return RawBatches(bytearray(), place, offset)
        return await self._reader.fetch_raw(place, offset, bytes_max)

    # Settlements

    def erase(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle ranges of records, and let nobody read them (see ports.TopicLog)."""
        self.erased.add_all(ranges)
        self._erasing.add_all(ranges)
        self.settle(ranges)
        self.tell_removed(ranges)

    def restate(self, settled: RangeSet) -> None:
        """Replace what is settled of another log's records (see ports.TopicLog)."""
        assert self.end == 0, "the log has records of its own"
        before = self.settled.copy()
        self._set_settled(settled)
        try:
            self._segments.roll(self.end)  # its checkpoint tells everything
        except StorageError:
            self._set_settled(before)
            raise
        self._pending.clear()
        self._returned.clear()
        self.returns.clear()
        self._start_flush()

    def _set_settled(self, settled: RangeSet) -> None:
        self.settled.clear()  # in place: others have the set
        self.settled.add_all(list(settled))

    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Count the return of ranges of records (see ports.TopicLog)."""
        for first, stop in ranges:
            self._returned.add(first, stop)
        self._touch()

    def _checkpoint(self) -> bytes:
        return checkpoint_payload(
            RecoveredState(
                self._stated,
                self.returns,
                self.undone,
                self._unresolved,
                self.erased,
                self.retained_from,
            )
        )

    def _touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._services.touched(self.directory)

    def write_settlements(self) -> None:
        """Write the settlements since the last call; remove segments that are not needed.

        Raises StorageError; the settlements are then kept for the next call.
        """
        self._touched = False
        if self._closed or not (self._segments.items or self._keeps):
            self._pending.clear()
            self._erasing.clear()
            self._returned.clear()
            self._parts.resolved.clear()
            return
        try:
            self._write_pending()
        except StorageError:
            self._touched = True
            raise
        self._parts.outcomes_written(flushes=self._flushes)
        pending, self._returned = list(self._pending), RangeSet()
        self._pending.clear()
        self._erasing.clear()
        self._is_retaining = False
        for first, stop in pending:
            self._reclaimer.reclaim(first, stop)
        self._reclaimer.roll_settled(self.end)
        self._flush_for_reclaim()
        if self.retention is not None and self._reclaimer.covered is None:
            self._start_flush()  # durability OS would not by itself, and no segment could go

    def _write_pending(self) -> None:
        if not self._keeps:
            return
        if self._segments.untrusted:
            self._segments.roll(self.end)  # its checkpoint tells everything
            return
        if self.retained_from is not None and self._is_retaining:
            self._write_control(retained_payload(self.retained_from))
        if self._erasing:
            self._write_control(erased_payload(self._erasing))
        if self._parts.resolved:
            self._write_control(resolved_payload(self._parts.resolved, self.undone, self._pending))
        elif self._pending:
            self._write_control(settlement_payload(self._pending))
        if self._returned:
            self._write_control(return_payload(self.returns, self._returned))

    def _write_control(self, payload: bytes) -> None:
        batch = Batch.control(self.end, payload, self._services.clock.wall_ms())
        self._segments.write(batch, self.end)

    async def settlements_safe(self) -> None:
        """Wait until all settlements are flushed (see ports.TopicLog). Raises StorageError."""
        if self._closed or not self._keeps:
            return
        self.write_settlements()
        was_flushing = True
        # A flush that is under way may have begun too early: the one behind it has not.
        while self._flushes and was_flushing and (self.is_flushing or self._segments.dirty):
            was_flushing = self.is_flushing
            await self._next_flush()
        if self._segments.sink is not None:
            await self._wait_for_copies()

    # Ending

    async def close(self) -> None:
        """Close the log (see ports.TopicLog). Raises StorageError; it then counts as not closed."""
        if self._closed:
            return
        mark = None
        try:
            if self._keeps:
                self.write_settlements()
                self._segments.finish()
                await self._flush_all()
                mark = self._mark()
        finally:
            self._closed = True
            self._release()
            self._services.closed(self.directory, mark)

    def _mark(self) -> LogMark | None:
        """Return the mark of the closed log. Raises StorageError."""
        if not self._segments.items:
            return None
        active = self._segments.active
        if active.index is not None:
            try:
                active.write_index(self._services.files, self.end)
            except OSError as error:
                raise storage_error("write", active.index_path, error) from error
        return LogMark(
            self._services.run,
            True,
            active.base,
            active.revision,
            active.size,
            self.end,
            self.end,
            self.redelivered_stop,
            self._checkpoint(),
        )

    def growth(self) -> LogMark | None:
        """Return the mark of the open log, None if nothing is new."""
        items = self._segments.items
        if not items or not self._keeps:
            return None
        last = items[-1]
        grown = (self.committed, last.base, last.revision)
        if grown == self.noted:
            return None
        self.noted = grown
        return LogMark(
            *(self._services.run, False, last.base, last.revision, 0),
            *(self.committed, min(self.flushed, self.committed)),
        )

    def _release(self) -> None:
        self._cache.clear(self._tail)
        for segment in self._segments.items:
            self._services.open_files.forget(segment)
        self._services.open_files.closed(self._segments)
        self._segments.release()
        # What refers to the log, and to which it refers: it goes with the last who has it.
        self._reclaimer.close()
        self._stop_copying()
        self._retainer = None
        self.retention_waits_at = nobody
        self._commit_callbacks.clear()
        self._failure_callbacks.clear()

    async def delete(self) -> None:
        """Delete the log (see ports.TopicLog). Raises StorageError."""
        self._closed = True
        self.builder.clear()
        self._parts.close()
        while self.is_flushing:
            await self._flush_idle()
        self._release()
        self._services.deleted(self.directory, self.key)


def nobody() -> None:
    """Return None: retention waits for no reader."""
