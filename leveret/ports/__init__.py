"""Protocols between the packages, and the values exchanged through them.

`ranges` and `records` are compiled: sets of offsets, and batches of packed records. Everything here
is a contract; each implementation of a protocol passes the suite of the same name in
`tests/contracts/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol

from leveret.ports.definitions import Definition, Definitions
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder
from leveret.ports.returns import Returns

__all__ = [
    "Clock",
    "Compaction",
    "Damage",
    "DefinitionSink",
    "Durability",
    "LogFile",
    "LogName",
    "MetadataStore",
    "Retention",
    "SharedLog",
    "StateStore",
    "TopicLog",
    "TopicStore",
]


class Clock(Protocol):
    """Source of the current time, passed as an argument so that tests control it."""

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970; it may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since some fixed moment; the value never goes back."""
        ...


class Durability(Enum):
    """Failure that a persistent record must survive before it counts as committed."""

    FSYNC = "fsync"  # machine failure: the batch was flushed to the disk
    OS = "os"  # process failure: the batch was written to the page cache
    NONE = "none"  # none: transient queues


class LogName(NamedTuple):
    """Name of a log in its store, and how it is kept; without `has_records` see TopicStore.open."""

    vhost: str
    topic: str
    incarnation: str
    partition: int
    durability: Durability
    has_records: bool = True


class Damage(NamedTuple):
    """Result of `TopicLog.set_aside`: the lost offsets, and copies of the damaged bytes."""

    lost: RangeSet  # committed, unsettled offsets that can no longer be read
    kept: Sequence[str]  # the files into which the damaged bytes were copied
    unreadable: RangeSet  # the lost offsets, and the settled ones that can no longer be read
    is_new: bool  # whether this call made any of the copies


@dataclass(frozen=True, slots=True)
class Compaction:
    """Compaction of a log by key: of the records with one key only the latest is kept.

    A record without the key, the header `x-partition-key`, is kept. One with a key and without a
    body, a tombstone, removes the earlier ones, and goes itself `tombstones_ms` after it has.
    """

    tombstones_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention limits of a log. None: no limit.

    With `keeps_settled` records that were settled stay readable within the limits; otherwise
    records beyond the limits are settled, as nobody else settles them. Whole segments are deleted,
    oldest first, never the one that is being written.

    A log waits for readers that are behind (`TopicLog.retention_waits_at`), but for no record
    longer than `waits_ms_max`, and beyond no more than twice its other limits. So does compaction.

    With `compaction`, superseded records go before the limits ask for it, never those of the
    segment that is being written. Only for logs whose records nobody else settles.
    """

    bytes_max: int | None = None
    age_ms_max: int | None = None
    records_max: int | None = None
    segment_bytes_max: int | None = None  # None or larger than the node's: the node's
    keeps_settled: bool = False
    waits_ms_max: int | None = None  # None: twice `age_ms_max`
    compaction: Compaction | None = None

    @property
    def while_waiting(self) -> Retention:
        """Limits that count for records that a reader still needs."""
        age_ms_max = self.waits_ms_max
        if age_ms_max is None and self.age_ms_max is not None:
            age_ms_max = 2 * self.age_ms_max
        return replace(
            self,
            bytes_max=None if self.bytes_max is None else 2 * self.bytes_max,
            records_max=None if self.records_max is None else 2 * self.records_max,
            age_ms_max=age_ms_max,
        )


class LogFile(NamedTuple):
    """One file of a log, with the records [first, stop).

    `is_sealed` means that nothing more is appended to it. `began_ms` is the time of its first
    record, None where that has not been looked up.
    """

    first: int
    stop: int
    size: int
    began_ms: int | None
    is_sealed: bool


class SharedLog(Protocol):
    """One partition: an append-only log of batches, and the set of its settled records.

    This is what everybody may use who has to do with a queue; only its owner settles (TopicLog).

    Everything but the coroutines is called on the event loop and does not block on a device for
    longer than a write into the page cache. Offsets: `first <= … <= committed <= end`.
    """

    @property
    def builder(self) -> BatchBuilder:
        """Builder that gathers records until `append`.

        The code that opens the log sets its `owner`.
        """
        ...

    @property
    def first(self) -> int:
        """Lowest offset that may still be read."""
        ...

    @property
    def end(self) -> int:
        """Offset that the next record will get."""
        ...

    @property
    def committed(self) -> int:
        """One past the last offset that may be delivered and confirmed."""
        ...

    @property
    def acknowledged(self) -> int:
        """One past the last offset that may be confirmed: `committed`, or more.

        More only if publishers do not wait for copies (see TopicLog.require_copies).
        """
        ...

    @property
    def settled(self) -> RangeSet:
        """Settled offsets, including those below `first` if `settle` or recovery has reported them.

        The log owns the set; callers only read it.
        """
        ...

    @property
    def undone(self) -> RangeSet:
        """Settled offsets of aborted transactions, whose records never took effect."""
        ...

    @property
    def erased(self) -> RangeSet:
        """Settled offsets whose records were deleted: nobody may read them any more.

        The log owns the set. An offset leaves it with the file that held it.
        """
        ...

    @property
    def retained_from(self) -> int | None:
        """Offset from which on compaction, and not retention, has removed what is missing.

        None where the log is not compacted: what is missing at its beginning was removed by
        retention.
        """
        ...

    def list_files(self) -> list[LogFile]:
        """Return the log's files, oldest first, from memory: no file is read."""
        ...

    @property
    def unclean(self) -> bool:
        """Whether recovery found that the last run did not close the log cleanly."""
        ...

    retention: Retention | None
    """Retention limits that the log applies by itself, oldest records first. None: it has none."""

    retention_waits_at: Callable[[], int | None]
    """Offset from which a reader that retention must wait for has records to read; None: nobody.

    Asked whenever the limits are checked. To be set again whenever the log is opened.
    """

    @property
    def returns(self) -> Returns:
        """Delivery counts of requeued messages.

        The queue counts, the log persists noted changes.
        """
        ...

    def keep_from(self, reader: str, offset: int | None) -> None:
        """Keep records from `offset` on, settled or not, since a reader still needs them.

        None: it needs none any more. To be called again whenever the log is opened, before anything
        is settled. Each reader has a name of its own.
        """
        ...

    @property
    def kept_from(self) -> int | None:
        """Lowest offset that some reader still needs; None: none does."""
        ...

    @property
    def removed(self) -> RangeSet:
        """Settled offsets that no file holds any more, but compacted ones. The log owns the set."""
        ...

    def on_remove(self, callback: Callable[[Sequence[tuple[int, int]]], None]) -> None:
        """Call `callback(ranges)` on the loop before files with these offsets are removed.

        Also when they are erased, and in a log without consumers of its own when retention or
        compaction settles records.
        """
        ...

    @property
    def appended_bytes(self) -> int:
        """Bytes of the records appended since the log was opened, as stored."""
        ...

    redelivered_stop: int
    """Offset below which records may have been delivered before.

    Kept by `close`; after a crash it covers all records.
    """

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever `committed` advances outside of `append`."""
        ...

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` on the loop when a write or flush fails after `append` returned.

        Records from `end` on, as it is then, are lost and have been truncated from the log. After
        a NotEnoughCopiesError nothing is lost, and what is not committed may become so later.
        """
        ...

    def require_copies(self, count: int, *, waits: bool = True) -> None:
        """Store and commit nothing while fewer nodes than `count` are in sync.

        Without `waits`, what is safe on this node counts as `acknowledged`, before it is committed.
        Without effect on a single node; in a cluster no more are required than it has. What is
        refused raises NotEnoughCopiesError.
        """
        ...

    @property
    def is_refusing(self) -> bool:
        """Whether too few nodes are in sync: `append` and `prepare` raise NotEnoughCopiesError.

        What is not committed counts as refused then, and nobody waits for it.
        """
        ...

    def append(self, may_block: bool = False) -> int:
        """Write the builder's records as a batch and return its base offset; many as several.

        `may_block`: nothing else is to be done now, so that the log may wait for a quick disk.

        `committed` has advanced on return unless the batch waits for a flush. Raises DiskFullError
        or StorageError; the builder's records are then dropped, and nothing was appended but
        batches in front of one that could not be written.
        """
        ...

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        *,
        erases: bool = False,
    ) -> None:
        """Write this log's part of a transaction: `records` as one batch, and `ranges` to settle.

        `erases`: the ranges are erased.

        Neither takes effect before `resolve`; until then `committed` stays below the records, and
        so below all records behind them. `prepared` is called once, possibly before this returns:
        with None when the part is as durable as the log makes records, or with the error, in which
        case the part is dropped; after a NotEnoughCopiesError it must be resolved as aborted, which
        may take effect much later. Raises DiskFullError or StorageError if nothing was appended. A
        log has at most one part in a transaction. `records` is empty afterwards.
        """
        ...

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply this log's part of a transaction if it `committed`, otherwise discard it.

        Records of an aborted transaction count as settled, at the latest when `committed` passes
        them. Calls the `on_commit` callbacks if `committed` advances. Must be called before
        anything else is done to the ranges that the part settles. No-op if the log has no part.
        """
        ...

    def takes_part(self, transaction: int) -> bool:
        """Whether the log holds a part of the transaction that survives a restart."""
        ...

    def restate(self, settled: RangeSet) -> None:
        """Replace the settled offsets of a log without records; returns are forgotten.

        Raises StorageError; then nothing has changed. Durable with the next `settlements_safe`.
        """
        ...

    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Persist the changed `returns` of these offsets; written behind, as settlements are."""
        ...

    def read(self, offset: int, bytes_max: int) -> list[Batch] | None:
        """Return consecutive batches from the one with `offset` on, at least one.

        They have about `bytes_max` bytes; control batches are left out. Empty if nothing is
        committed at `offset`; None if the bytes must come from a device: `fetch` them then. Raises
        CorruptBatchError.
        """
        ...

    def peek(self, offset: int) -> Batch | None:
        """Return the committed batch with `offset` if it is in memory, else None; reads no file."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of records in memory: those in the builder, and the cached newest batches."""
        ...

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        """Read as `read` does, but wait for the device in a worker thread."""
        ...

    async def offset_at(self, time_ms: int) -> int:
        """Return the first offset stored at `time_ms` or later, about `end` if there is none.

        Times are milliseconds since 1970. The offset may be a settled one. Waits for the device.
        """
        ...

    async def set_aside(self, offset: int) -> Damage:
        """Quarantine the damage met when reading `offset`; everything near it can be read again.

        The damaged bytes are copied into files that the node never deletes. The caller settles the
        lost offsets and must not read them again; if `offset` is not among them, it can be read
        now. Waits in a worker thread. Raises StorageError if quarantining fails.
        """
        ...

    async def settlements_safe(self) -> None:
        """Wait until all settlements so far are as durable as records are. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Flush everything, settlements included, and mark the log as cleanly closed."""
        ...

    async def delete(self) -> None:
        """Remove the log and its files. Nothing may be called afterwards."""
        ...


class TopicLog(SharedLog, Protocol):
    """The log of one partition, as its owner has it.

    Settling is the owner's, who tells all others that must know: the delivery state, extensions.
    """

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Mark [first, stop) ranges as settled; written behind, within one flush interval."""
        ...

    def erase(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle ranges, if they are not, and let nobody read them any more; written as these."""
        ...


class TopicStore(Protocol):
    """Factory of logs, one per node.

    A log that an earlier run has left is recovered before it is opened, which waits for the device;
    opening does not.
    """

    async def recover(self, logs: Iterable[LogName]) -> None:
        """Recover logs that have files, several at a time; others need not be.

        What was recovered is kept until `open`. Whoever asks for the same log meanwhile waits for
        the same recovery. Raises StorageError, NewerFormatError once all have ended, if one has
        failed: it can be tried again.
        """
        ...

    def must_recover(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether a log has, or should have, files that were not recovered since it was closed."""
        ...

    def open(
        self,
        vhost: str,
        topic: str,
        incarnation: str,
        partition: int,
        durability: Durability,
        *,
        retention: Retention | None = None,
        has_records: bool = True,
    ) -> TopicLog:
        """Open the log of one partition, a new one or one that was recovered; reads no file.

        The files of a log with durability NONE are deleted at the next start. A log without records
        (`has_records`) keeps what was settled and returned of another log's records. Raises
        StorageError, and ValueError if the log is open or `must_recover`.
        """
        ...

    async def delete(self, vhost: str, topic: str, incarnation: str, partition: int) -> None:
        """Remove a log that is not open, and its files. Raises StorageError.

        No-op if there is none. A recovery that runs is waited for.
        """
        ...

    def exists(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether a persistent log was left by an earlier run, or is open."""
        ...

    @property
    def in_sync_count(self) -> int | None:
        """Number of nodes in sync, where some log may require more (see TopicLog.require_copies).

        Persistent logs that require more refuse what is stored now. None: no log refuses.
        """
        ...

    def leave_unopened(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Leave a persistent log as it is until it is opened, if that is known to be right.

        Returns whether it is: nothing in the log is unsettled or has to be recovered.
        """
        ...

    def decide(
        self,
        transactions: Mapping[int, Collection[SharedLog]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        """Commit transactions that are prepared in all these logs: the point of no return.

        `decided` is called once, possibly before this returns: with None, or with the error if they
        have not committed. The caller then resolves them in the logs.
        """
        ...

    async def close(self) -> None:
        """Close every open log, then the threads and stores behind them."""
        ...


class StateStore(Protocol):
    """Small ordered key-value store: ledger checkpoints, delay indexes, de-duplication windows."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    def write(self, changes: Sequence[tuple[bytes, bytes | None]], *, durable: bool) -> None:
        """Apply all changes in one transaction (None deletes); on disk on return if `durable`."""
        ...

    def scan(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Return all pairs whose key begins with `prefix`, in key order."""
        ...

    def range(self, first: bytes, stop: bytes, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """Return the pairs with first <= key < stop in key order, at most `count_max`."""
        ...

    def keys(self, first: bytes, stop: bytes) -> Sequence[bytes]:
        """Return all keys in [first, stop) in order, without reading their values."""
        ...

    async def fetch(
        self, first: bytes, stop: bytes, count_max: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return what `range` does, waiting for the device in a worker thread."""
        ...

    async def write_behind(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply all changes in one durable transaction (None deletes), in a worker thread.

        Meant for many changes at a time: they are written in key order. Raises StorageError; the
        changes then stay visible and are retried with the next write.
        """
        ...

    def close(self) -> None:
        """Release the store; what was written durably stays."""
        ...


class DefinitionSink(Protocol):
    """Destination of definition changes. Writes are queued in order."""

    def put(self, definition: Definition) -> None:
        """Insert or replace a definition by its natural key. Returns without waiting."""
        ...

    def remove(self, definition: Definition) -> None:
        """Delete a definition by its natural key; a missing one is no error.

        Returns without waiting.
        """
        ...

    def remove_vhost(self, name: str) -> None:
        """Delete a virtual host and all its definitions in one change. Returns without waiting."""
        ...


class MetadataStore(DefinitionSink, Protocol):
    """Persistent store of definitions. What was written is durable after `flush`."""

    async def load(self) -> Definitions:
        """Return all stored definitions."""
        ...

    @property
    def pending(self) -> bool:
        """Whether queued changes are not durable yet."""
        ...

    async def flush(self) -> None:
        """Wait until everything queued before this call is durable. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Flush, then release the store."""
        ...
