"""Replication's side of a log on disk (see ports.ReplicatedLog).

The stream that followers copy is the log's files one behind the other. A follower writes the
control batches of its leader at the places at which they stood among the records: so what recovery
finds in its files is what it would have found in the leader's. Checkpoints are the exception: each
log has its own, and takes from its leader's what it did not know.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from crc32c import crc32c

from leveret.errors import NotEnoughReplicasError, StorageError
from leveret.ports.callbacks import call_each
from leveret.ports.records import HEADER_BYTES, Batch, BatchAttribute
from leveret.ports.replication import StreamRun
from leveret.storage.checkpoint import (
    RecoveredState,
    TransactionPart,
    apply_payload,
    concerns_transactions,
    is_checkpoint,
    part_payload,
)
from leveret.storage.compacted_log import CompactedLog
from leveret.storage.files import storage_error
from leveret.storage.flush import UnflushedBatch
from leveret.storage.index import OFFSET_MAX
from leveret.storage.scan import refuse, scan, verify
from leveret.storage.stream import LogStreamReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from leveret.ports import Durability
    from leveret.ports.epochs import EpochIndex
    from leveret.ports.returns import Returns
    from leveret.storage.encryption import DataKey
    from leveret.storage.flush import Flush
    from leveret.storage.recovery import Recovered
    from leveret.storage.segment import Segment
    from leveret.storage.services import LogServices

    Done = Callable[[Exception | None], None]

__all__ = ["ReplicaLog"]

LEADER = "the leader"  # as a reader that needs records (see keep_from)


class ReplicaLog(CompactedLog):
    """A log that may have copies on other nodes.

    One that `is_replicated` either leads, with batches of `epoch`, or `follows`: then it leaves to
    the leader what is settled and what is committed.
    """

    __slots__ = (
        "_append_failure_callbacks",
        "_awaiting",
        "_confirmed",
        "_missing",
        "_progress_callbacks",
        "_spreading",
        "_stream_copied",
        "_stream_durable",
        "_stream_flushing",
        "_stream_reader",
        "_unflushed_end",
        "epoch",
        "epochs",
        "failure",
        "follows",
        "is_replicated",
        "partition",
        "refuses",
        "stream_position",
    )

    def __init__(
        self,
        services: LogServices,
        directory: Path,
        durability: Durability,
        recovered: Recovered,
        data_key: DataKey | None,
    ) -> None:
        super().__init__(services, directory, durability, recovered, data_key)
        self.epoch = 0
        self.epochs = recovered.told.epochs
        self.is_replicated = self.follows = False
        self.partition = ""  # name of a replicated one on all nodes
        self.refuses = False  # appends: because it follows, or replicas are missing
        self._missing = 0  # replicas that must come in sync first
        self._confirmed = 0  # what a leader confirms though it is not committed ends here
        self.failure: StorageError | None = None
        self.stream_position: int | None = None
        # What waits until all replicas in sync have the stream up to a position.
        self._awaiting: deque[tuple[int, Done]] = deque()
        self._spreading: set[int] = set()  # transactions whose outcomes are among those
        self._progress_callbacks: list[Callable[[], None]] = []
        self._append_failure_callbacks: list[Callable[[], None]] = []
        self._stream_reader: LogStreamReader | None = None
        self._stream_copied = 0  # end of what is copied of the leader's stream
        self._stream_durable = 0  # how much of that is flushed, or of its own stream
        self._stream_flushing = 0  # how much it will be after the running flush
        self._unflushed_end = 0  # end of recovered records that were not known to be flushed

    @abstractmethod
    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle ranges of records."""

    @abstractmethod
    def write_settlements(self) -> None:
        """Write what was settled since the last call. Raises StorageError."""

    @abstractmethod
    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the delivery counts of ranges written."""

    @abstractmethod
    def keep_from(self, reader: str, offset: int | None) -> None:
        """Remove nothing from `offset` on."""

    @abstractmethod
    def _keep_retained(self) -> None:
        """Keep what retention keeps, unless the leader says what to keep."""

    @abstractmethod
    def _write_control(self, payload: bytes | memoryview) -> None:
        """Write a control batch. Raises StorageError."""

    def replicate(self, missing_from: int | None) -> None:
        """Make a log that was just opened one that has copies: it follows.

        Where it is to survive its machine, what recovery found counts once it is flushed. Whatever
        stands behind a record that is missing (`missing_from`) comes from the leader again.
        """
        self.is_replicated = self.follows = self.refuses = True
        self.committed = self._commit_limit = 0
        self._parts.remembered = self._remembered
        self._keep_retained()
        if missing_from is not None:
            self._truncate_at_once(missing_from)
        if self._flushes and self.flushed < self.end:
            self._unflushed_end, self._durable = self.end, self.flushed
            self._segments.soil_from(self.flushed)
            self._start_flush()

    # -- what is durable, and what is committed

    @property
    def durable(self) -> int:
        """Offset below which records are durable (see ports.ReplicatedLog)."""
        return self._durable

    @property
    def stream_end(self) -> int:
        """Position behind what is written (see ports.ReplicatedLog)."""
        return self._segments.stream_end

    @property
    def stream_durable(self) -> int:
        """Position below which the stream is durable here (see ports.ReplicatedLog)."""
        if self._flushes:
            return self._stream_durable
        return self._stream_copied if self.follows else self.stream_end

    def on_progress(self, callback: Callable[[], None]) -> None:
        """Call `callback` when more is written or durable (see ports.ReplicatedLog)."""
        self._progress_callbacks.append(callback)

    def on_append_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the leader could not write (see ports.ReplicatedLog)."""
        self._append_failure_callbacks.append(callback)

    def _append_failed(self) -> None:
        call_each(self._append_failure_callbacks, self._services.report)

    def _progressed(self) -> None:
        call_each(self._progress_callbacks, self._services.report)

    def limit_commit(self, offset: int) -> None:
        """Let `committed` move up to `offset` (see ports.ReplicatedLog)."""
        if offset > self._commit_limit:
            self._commit_limit = offset
            self._advance()

    @property
    def confirmed(self) -> int:
        """Offset below which records may be confirmed (see ports.TopicLog)."""
        return max(self.committed, self._confirmed)

    def confirm(self, offset: int) -> None:
        """Let records below `offset` be confirmed (see ports.ReplicatedLog)."""
        if offset > self.confirmed and not self.follows:
            self._confirmed = min(offset, self.end)
            call_each(self._commit_callbacks, self._services.report)

    def _flush_begins(self) -> None:
        self._stream_flushing = self._stream_copied if self.follows else self.stream_end

    def _flush_covers(self) -> None:
        if not self.is_replicated:
            return
        self._durable = max(self._durable, self._unflushed_end)
        self._unflushed_end = 0
        if not self._segments.dirty:  # no flush comes behind this one for what was copied meanwhile
            self._stream_flushing = self._stream_copied if self.follows else self.stream_end
        self._stream_durable = max(self._stream_durable, self._stream_flushing)
        self._progressed()

    def _flush_failed(self, flush: Flush, error: OSError) -> None:
        if self._unflushed_end:
            self._failures += 1  # what recovery has found is not in memory, to be written anew
        super()._flush_failed(flush, error)

    def _lose(self, failure: StorageError) -> None:
        durable = self._durable
        if self._unflushed_end:
            # Much of it was flushed before the node ended, and counts for others: it stays.
            self.failure, self._durable = failure, self._unflushed_end
        copied = self._stream_durable if self.follows else 0
        if self.is_replicated:
            self.follow()
        self._stream_copied = self._stream_durable = copied
        super()._lose(failure)
        self._durable = durable
        self._forget_behind(self.end)

    def uncommitted(self) -> list[Batch] | None:
        """Return the batches that are not committed (see ports.ReplicatedLog)."""
        found = []
        offset = self.committed
        while offset < self.end:
            batch = self._tail.holding(offset, self.end)
            if batch is None:
                return None
            if not batch.transaction:
                found.append(batch)
            offset = batch.stop_offset
        return found

    def _leave_replicas(self) -> None:
        """Wait for no other replica any more, because the log is closed or deleted."""
        self._progress_callbacks.clear()
        self._append_failure_callbacks.clear()
        if self.is_replicated:
            self.follow()
            self._parts.remembered = self._services.decisions.remembered

    # -- leading

    def lead(self, epoch: int) -> None:
        """Take appends in `epoch` (see ports.ReplicatedLog)."""
        if self.failure is not None:
            raise self.failure
        assert epoch >= max(self.epochs.last, 1), "each leader has an epoch of its own"
        self._cache.cut(self._tail, 0)  # of an earlier reign: what was copied since is not in there
        self.epoch, self.follows, self.stream_position = epoch, False, None
        self._missing, self.refuses = 0, False
        self._stream_durable = self._stream_flushing = 0
        self._keep_retained()
        self.keep_from(LEADER, None)
        self._ask_outcomes()
        if self.is_flushing or self._segments.dirty:
            self._start_flush_behind()
        elif self._flushes:
            self._stream_durable = self.stream_end
        self._advance()

    def _ask_outcomes(self) -> None:
        """End the transactions that are not resolved as the decisions say."""
        decisions = self._services.decisions
        for transaction in list(self._unresolved):
            if not decisions.is_elsewhere(transaction):
                self._resolve(transaction, committed=decisions.asked(transaction))

    def _decides(self, transaction: int) -> bool:
        """Whether nobody but this leader, and its replicas, can know that one has committed."""
        return self.is_replicated and not self._services.decisions.is_elsewhere(transaction)

    @property
    def undecided(self) -> list[int]:
        """Transactions with a part here whose outcome others must be asked for."""
        is_elsewhere = self._services.decisions.is_elsewhere
        return [each for each in self._unresolved if is_elsewhere(each)]

    def has_part(self, transaction: int) -> bool:
        """Whether there is a part of a transaction, or its outcome is not safe yet."""
        return transaction in self._spreading or self._parts.knows(transaction)

    def require_replicas(self, missing: int) -> None:
        """Refuse appends while replicas are missing (see ports.ReplicatedLog)."""
        self._missing = missing
        self.refuses = self.follows or missing > 0

    def _refuse_append(self) -> StorageError:
        """Return the error of an append to a log that refuses it."""
        if self.follows:
            return StorageError(f"another node leads the log in {self.directory}")
        return NotEnoughReplicasError(
            f"the log in {self.directory} takes nothing until {self._missing} more of its replicas "
            "are in sync: start the nodes that are away, or lower x-min-isr or x-acks of the queue"
        )

    def _appended(self, base: int) -> None:
        """Note that the leader has appended a batch at `base`."""
        self.epochs.add(self.epoch, base)
        self._progressed()

    def _once_replicated(self, done: Done) -> Done:
        """Return what to call once something is durable here: `done` waits for the replicas."""
        if not self.is_replicated:
            return done

        def durable_here(error: Exception | None) -> None:
            if error is None and not self.follows:
                self._awaiting.append((self.stream_end, done))
                self._progressed()  # a leader without followers has all that it needs
            else:
                done(error or self._refuse_append())

        return durable_here

    def replicated_to(self, position: int) -> None:
        """Note what all replicas in sync have (see ports.ReplicatedLog)."""
        reached = []
        while self._awaiting and self._awaiting[0][0] <= position:
            reached.append(partial(self._awaiting.popleft()[1], None))
        call_each(reached, self._services.report)

    def _remembered(self, transaction: int) -> None:
        """Let a decision be forgotten once all replicas in sync know it."""
        self._spreading.add(transaction)

        def known(error: Exception | None) -> None:
            self._spreading.discard(transaction)
            if error is None:
                self._services.decisions.remembered(transaction)
            self._parts.tell((transaction,), error)
            self._advance()

        self._once_replicated(known)(None)

    def _tell_once_replicated(self, transaction: int, part: TransactionPart, told: Done) -> None:
        """Show and tell a committed part once all replicas in sync know its outcome."""
        first = part.first if part.first < part.stop else OFFSET_MAX
        self._parts.untold[transaction] = first, told
        try:
            self.write_settlements()
        except StorageError:
            self._services.touched(self.directory)  # to be written after a while
            return
        self.flush()

    def _unless_resolved(self, transaction: int, prepared: Done) -> Done:
        """Return what to call with what a part waited for: it may have been aborted meanwhile."""
        if not self.is_replicated:
            return prepared

        def answer(error: Exception | None) -> None:
            if error is None and transaction not in self._unresolved:
                error = StorageError(f"the log in {self.directory} has given up a transaction")
            prepared(error)

        return answer

    async def _replicated(self) -> None:
        """Wait until all replicas in sync have what is written now. Raises StorageError."""
        if not self.is_replicated:
            return
        waiter = self._services.loop.create_future()

        def done(error: Exception | None) -> None:
            if waiter.done():
                return  # cancelled
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self._once_replicated(done)(None)
        await waiter

    async def read_stream(self, offset: int, position: int | None, bytes_max: int) -> StreamRun:
        """Return a piece of the stream (see ports.ReplicatedLog)."""
        if self._stream_reader is None:
            self._stream_reader = LogStreamReader(self._services, self._segments)
        kept_from = self._reclaimer.kept_from
        if position == self.stream_end:  # also of a log without any file, which has no place for it
            return StreamRun(b"", position, kept_from)
        place = None if position is None else self._segments.in_stream(position)
        if place is not None:
            segment, at = place
            if segment is self._segments.active and at >= segment.size:
                return StreamRun(b"", position, kept_from)
            return StreamRun(*await self._stream_reader.read(segment, at, bytes_max), kept_from)
        if offset >= self.end:
            state = Batch.control(self.end, self._checkpoint(), self._services.clock.wall_ms())
            state.set_checksum(crc32c(state.checked))
            return StreamRun(bytes(state), self.stream_end, kept_from)
        return StreamRun(*await self._stream_reader.begin(offset, bytes_max), kept_from)

    # -- following

    def follow(self) -> None:
        """Follow a leader (see ports.ReplicatedLog)."""
        self.epoch, self.follows, self.stream_position = 0, True, None
        self.refuses, self._confirmed = True, 0
        self._stream_copied = self._stream_durable = self._stream_flushing = 0
        waiting, self._awaiting = self._awaiting, deque()
        error = self._refuse_append()
        call_each((partial(done, error) for _, done in waiting), self._services.report)
        self._parts.tell(list(self._parts.untold), error)

    def append_stream(self, run: StreamRun, epoch: int) -> None:
        """Append a run of the leader (see ports.ReplicatedLog)."""
        assert self.follows, "a leader takes no copies"
        if self.failure is not None:
            raise self.failure
        settled: list[tuple[int, int]] = []
        at, size, wants_flush = 0, len(run.data), False
        try:
            while at < size:
                batch = Batch.parse(run.data, at)
                verify(batch)
                if batch.is_control:
                    settled += self._take_control(batch)
                    wants_flush = wants_flush or concerns_transactions(batch)
                elif batch.stop_offset > self.end:
                    self._take_records(batch, epoch)
                at += batch.size
            self._stream_copied = max(self._stream_copied, run.position or 0)
            self.stream_position = run.position
        finally:
            self._copied(settled, wants_flush=wants_flush)
        self.keep_from(LEADER, run.kept_from)

    def _copied(self, settled: Sequence[tuple[int, int]], *, wants_flush: bool) -> None:
        """Flush what was copied where it must be, and remove what is not needed any more."""
        for first, stop in settled:
            self._reclaimer.reclaim(first, stop)
        if settled:
            self._reclaimer.roll_settled(self.end)
            self._flush_for_reclaim()
        if self._flushes:
            if wants_flush or self._unflushed:
                self._start_flush()
            elif self.is_flushing or self._segments.dirty:
                self._touch()  # settlements alone are flushed later
            else:
                self._stream_durable = self._stream_copied
        self._advance()
        self._progressed()

    def _take_records(self, batch: Batch, epoch: int) -> None:
        """Append a batch as it lies."""
        base, end = batch.base_offset, self.end
        if batch.attributes & BatchAttribute.ENCRYPTED or not batch.count:
            refuse(f"the batch at offset {base} is none that a leader sends")
        if not self.epochs.last <= batch.leader_epoch <= epoch:
            refuse(f"epoch {batch.leader_epoch} at offset {base} follows {self.epochs.last}")
        if base > end and batch.attributes & BatchAttribute.COMPACTED:
            self.settle([(end, base)])  # the batch itself says that something is missing
        elif base != end:
            refuse(f"offset {base} where {end} follows")
        segment, position = self._segments.write(batch, base)
        self.epochs.add(batch.leader_epoch, base)
        self.appended_bytes += batch.size - HEADER_BYTES
        self.end = batch.stop_offset
        if batch.transaction:
            part = self._unresolved.setdefault(batch.transaction, TransactionPart(0, 0))
            part.first, part.stop = base, batch.stop_offset
        is_transient = batch.attributes & BatchAttribute.TRANSIENT
        if self._flushes and (self._unflushed or not is_transient):
            self._add_unflushed(batch, segment, position)
        else:
            self._durable = self.end

    def _take_control(self, batch: Batch) -> list[tuple[int, int]]:
        """Take a control batch of the leader. Returns ranges that are settled by it."""
        base, end = batch.base_offset, self.end
        if is_checkpoint(batch):
            told = self._merge(batch)
            if base > end:
                self._skip_to(base, told.epochs)
            return []
        if batch.attributes & BatchAttribute.COMPACTED:
            self.settle([(end, base)] if base > end else [])
            return []
        if base > end:
            refuse(f"a control batch at offset {base} where {end} follows")
        apply_payload(batch.payload, RecoveredState())  # what makes no sense is not written
        self._write_control(batch.payload)
        told = RecoveredState(returns=self.returns, undone=self.undone, unresolved=self._unresolved)
        apply_payload(batch.payload, told)
        settled = list(told.settled)
        self.settled.add_all(settled)
        if self._stated is not self.settled:
            self._stated.add_all(settled)
        self.returns.forget(settled)
        return settled

    def _skip_to(self, offset: int, epochs: EpochIndex) -> None:
        """Leave out what no file of the leader has any more: all of that is settled.

        The control batches that say so may come behind. `epochs` are those of the leader.
        """
        for epoch, first in epochs:
            if epoch > self.epochs.last and first < offset:
                self.epochs.add(epoch, max(first, self.end))
        self.settle([(self.end, offset)])
        self._segments.roll(offset)  # with a checkpoint that says it here
        self._reclaimer.removed.add(self.end, offset)
        self.end = offset
        if self._flushes:
            active = self._segments.active
            self._unflushed.append(UnflushedBatch(None, active, active.size, offset))
        else:
            self._durable = offset

    def _merge(self, checkpoint: Batch) -> RecoveredState:
        """Take what a checkpoint of the leader says and is not known here, and write it down."""
        told = RecoveredState()
        apply_payload(checkpoint.payload, told)
        unknown = [gap for first, stop in told.settled for gap in self.settled.gaps(first, stop)]
        self.settle(unknown)
        self.undone.add_all(list(told.undone))
        is_new = self._merge_returns(told.returns) or bool(unknown)
        if self._merge_parts(told, checkpoint.base_offset) or is_new:
            self.write_settlements()
        return told

    def _merge_returns(self, told: Returns) -> bool:
        """Take delivery counts as they are in a checkpoint. Returns whether they are others."""
        runs = list(told.runs())
        if runs == list(self.returns.runs()):
            return False
        self.returns.clear()
        for run in runs:
            self.returns.put(*run)
        self.note_returns([(first, stop) for first, stop, _, _ in runs])
        return True

    def _merge_parts(self, told: RecoveredState, offset: int) -> bool:
        """Take the parts of transactions that were unresolved as of `offset`.

        A part from before that is not among them was resolved; `told` has what became of it. Where
        a part without records came behind, its control batch comes again.
        """
        known = self._unresolved
        resolved = [
            transaction
            for transaction, part in known.items()
            if transaction not in told.unresolved
            and (part.first < offset or part.first == part.stop)
        ]
        for transaction in resolved:
            self._parts.resolve(transaction)
        is_new = bool(resolved)
        for transaction, part in told.unresolved.items():
            own = known.setdefault(transaction, TransactionPart(0, 0))
            if part.first < part.stop:  # else its records come behind the checkpoint
                own.first, own.stop = part.first, part.stop
            if own.settles != part.settles:
                own.settles, is_new = part.settles, True
                self._write_control(part_payload(transaction, part.settles))
        return is_new

    async def truncate(self, end: int) -> None:
        """Drop the records from `end` on (see ports.ReplicatedLog)."""
        assert self.committed <= end, "what is committed stays"
        while self.is_flushing:  # it would say of what is gone that it is flushed
            await self._flush_idle()
        if end >= self.end:
            return
        dropped, cut = self._branch(end)
        try:
            if self._flushes:
                await self._next_flush()
            self._segments.drop(dropped, cut)
            if self._flushes:
                # Records that come must not be durable before those files are gone for good.
                await self._sync_directory()
        except StorageError as error:
            self.failure = error
            raise

    async def _sync_directory(self) -> None:
        services = self._services
        sync = partial(services.files.sync_directory, self.directory)
        try:
            await services.loop.run_in_executor(services.pool, sync)
        except OSError as error:
            raise storage_error("truncate the log in", self.directory, error) from error

    def _truncate_at_once(self, end: int) -> None:
        """Truncate a log that is being opened, waiting for the device. Raises StorageError."""
        dropped, cut = self._branch(end)
        files, active = self._services.files, self._segments.active
        assert active.handle is not None, "it was just begun"
        try:
            files.fdatasync(active.handle)
            files.sync_directory(self.directory)
            self._segments.drop(dropped, cut)
            files.sync_directory(self.directory)
        except OSError as error:
            raise storage_error("truncate the log in", self.directory, error) from error

    def _branch(self, end: int) -> tuple[list[Segment], Segment | None]:
        """Begin a new segment in place of the records from `end` on.

        Returns the segments that are not needed any more, and the last one that is.
        """
        segment, position = self._find_batch(end)
        known = self.settled.copy(), self._stated.copy(), self.undone.copy()
        parts, epochs = dict(self._unresolved), list(self.epochs)
        self._forget_behind(end)
        try:
            dropped = self._segments.branch(segment, position, end)
        except StorageError:
            for before, now in zip(known, (self.settled, self._stated, self.undone), strict=True):
                now.add_all(list(before))
            self._unresolved.update(parts)
            for epoch in epochs:
                if epoch[0] > self.epochs.last:
                    self.epochs.add(*epoch)
            raise
        self._unflushed = [each for each in self._unflushed if each.stop <= end]
        self._unflushed_bytes = sum(
            each.batch.size for each in self._unflushed if each.batch is not None
        )
        self._unflushed_end = min(self._unflushed_end, end)
        self._durable, self.flushed = min(self._durable, end), min(self.flushed, end)
        self.end = end
        self._cache.cut(self._tail, end)
        self._reader.forget()
        self.stream_position = None
        return dropped, segment

    def _forget_behind(self, end: int) -> None:
        """Forget what became of records from `end` on, which are gone."""
        self.epochs.truncate(end)
        for known in (self.settled, self._stated, self.undone, self._reclaimer.pending):
            known.remove(end, OFFSET_MAX)
        for transaction, part in list(self._unresolved.items()):
            if end <= part.first < part.stop:
                del self._unresolved[transaction]

    def _find_batch(self, offset: int) -> tuple[Segment | None, int]:
        """Return segment and position of the first batch from `offset` on; None: of the first file.

        Raises StorageError.
        """
        segment = self._segments.find(offset)
        if segment is None:
            return None, 0
        files = self._services.files
        try:
            handle = files.open(segment.path)
            try:
                index = segment.index or segment.load_index(files, handle)
                _, position = index.find(offset) or (segment.base, 0)
                for at, batch in scan(files, handle, position, segment.size):
                    if not batch.is_control and batch.base_offset >= offset:
                        return segment, at
                return segment, segment.size
            finally:
                files.close(handle)
        except OSError as error:
            raise storage_error("read", segment.path, error) from error
