"""The protocols at which rooms meet, and the values they exchange there.

`ranges` and `records` are compiled: sets of offsets, and batches of packed records. Everything here
is a contract; each implementation of a protocol passes the suite of the same name in
`tests/contracts/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from leveret.ports.definitions import Definition, Definitions
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder
from leveret.ports.returns import Returns

__all__ = [
    "Clock",
    "Damage",
    "DefinitionSink",
    "Durability",
    "LogFile",
    "MetadataStore",
    "Retention",
    "StateStore",
    "TopicLog",
    "TopicStore",
]


class Clock(Protocol):
    """Time as an argument."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        ...


class Durability(Enum):
    """What a persistent record must survive before it counts as committed."""

    FSYNC = "fsync"  # the machine's death: the batch was flushed to the disk
    OS = "os"  # the process's death: the batch was written to the page cache
    NONE = "none"  # nothing: transient queues


class Damage(NamedTuple):
    """What `TopicLog.set_aside` found: offsets that nothing holds any more, and what is left."""

    lost: RangeSet  # unsettled offsets that cannot be read; committed ones only
    kept: Sequence[str]  # the files into which the damaged bytes were copied


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a log is kept that no consumer ever settles. None: without that limit.

    Whole segments go, oldest first, and never the one that is written to.
    """

    bytes_max: int | None = None
    age_ms_max: int | None = None
    segment_bytes_max: int | None = None  # None: the node's; a larger one counts as the node's


class LogFile(NamedTuple):
    """One file of a log, with the records [first, stop); `is_sealed`: nothing more comes to it.

    `began_ms` is when its first record came, None where nobody has had to look that up.
    """

    first: int
    stop: int
    size: int
    began_ms: int | None
    is_sealed: bool


class TopicLog(Protocol):
    """One partition: an append-only log of batches, and which of its records are settled.

    Everything but the coroutines is called on the event loop and does not block on a device for
    longer than a write into the page cache. Offsets: `first <= … <= committed <= end`.
    """

    @property
    def builder(self) -> BatchBuilder:
        """Where records gather until `append`. Its `owner` is set by whoever opened the log."""
        ...

    @property
    def first(self) -> int:
        """Lowest offset that may still be read."""
        ...

    @property
    def end(self) -> int:
        """Offset that the next record gets."""
        ...

    @property
    def committed(self) -> int:
        """One past the last offset that is safe to show and to confirm."""
        ...

    @property
    def settled(self) -> RangeSet:
        """Settled offsets, those below `first` included once `settle` or recovery has told them.

        Owned by the log; others read it.
        """
        ...

    @property
    def undone(self) -> RangeSet:
        """Those of the settled offsets whose records were never there: aborted transactions'."""
        ...

    def list_files(self) -> list[LogFile]:
        """Its files, oldest first, as they are known: nothing is read."""
        ...

    @property
    def unclean(self) -> bool:
        """Whether recovery found that the last run did not close the log."""
        ...

    retention: Retention | None
    """What is settled by and by without being asked, oldest first; None: nothing is."""

    @property
    def returns(self) -> Returns:
        """How often messages came back; the queue counts, the log keeps what it was told of."""
        ...

    keep_from: int | None
    """Records from this offset on are kept, settled or not: somebody else must read them first.

    None: nobody. To be set again when the log is opened, before anything is settled.
    """

    @property
    def appended_bytes(self) -> int:
        """Bytes of the records that were appended since it was opened, as they are stored."""
        ...

    redelivered_stop: int
    """Offsets below may have been delivered before; kept by `close`, everything after a crash."""

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever `committed` moved later than during `append`."""
        ...

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Call `callback` on the loop when a write or flush failed after `append` returned.

        Records from `end`, as it is then, on are lost for this run; they are cut off the log.
        """
        ...

    def append(self) -> int:
        """Write the builder's records as one batch. Returns its base offset.

        `committed` has moved already on return unless the batch waits for a flush. Raises
        DiskFullError or StorageError; the builder's records are then gone and nothing was appended.
        """
        ...

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
    ) -> None:
        """Write down this log's part of a transaction: `records` as one batch, and what it settles.

        Neither has any effect before `resolve`; `committed` stays below the records, and so do the
        records behind them. `prepared` is called once, perhaps before this returns: when the part
        is as durable as the log makes records, or with what has kept it from being so; it is then
        gone. Raises DiskFullError or StorageError; nothing was appended then. Each log has one part
        of a transaction. `records` is empty afterwards.
        """
        ...

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """The transaction has committed: its part takes effect. Or it has aborted: none of it does.

        Its records then count as settled, at the latest when `committed` passes them. Callbacks of
        `on_commit` are called where that moves `committed`. To be called before anything else is
        done to the ranges that the part settles. Without a part nothing happens.
        """
        ...

    def takes_part(self, transaction: int) -> bool:
        """Whether there is a part that survives this process, and asks for the outcome then."""
        ...

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Mark [first, stop) ranges as settled; written behind, within one flush interval."""
        ...

    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        """`returns` has changed for these offsets; written behind, as settlements are."""
        ...

    def read(self, offset: int, bytes_max: int) -> list[Batch] | None:
        """Consecutive batches, the first holding `offset`, about `bytes_max` bytes (at least one).

        Control batches are left out. Empty where nothing is committed at `offset`; None where the
        bytes would have to come from a device: then `fetch` them. Raises CorruptBatchError.
        """
        ...

    def peek(self, offset: int) -> Batch | None:
        """The committed batch that holds `offset`, if it is in memory: no file is asked."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of records that it has in memory: those that gather, and the newest batches."""
        ...

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        """The same, waiting for the device in a worker thread."""
        ...

    async def offset_at(self, time_ms: int) -> int:
        """The first offset whose record came at `time_ms` or later, about `end` if none has.

        Times are milliseconds since 1970. What was settled may be told, too. Waits for the device.
        """
        ...

    async def set_aside(self, offset: int) -> Damage:
        """Deal with the damage that reading `offset` met; all else near it can be read afterwards.

        The damaged bytes are copied into files that the node never deletes. The caller settles the
        lost offsets and must not ask for them again; where `offset` is not among them, it can be
        read now. Waits in a worker thread. Raises StorageError where that cannot be done.
        """
        ...

    async def settlements_safe(self) -> None:
        """Until what was settled so far is kept as durably as records are. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Flush everything, settlements included, and mark the log as cleanly closed."""
        ...

    async def delete(self) -> None:
        """Remove the log and its files. Nothing may be called afterwards."""
        ...


class TopicStore(Protocol):
    """Opens logs. One for a node."""

    def open(
        self,
        vhost: str,
        topic: str,
        incarnation: str,
        partition: int,
        durability: Durability,
        *,
        retention: Retention | None = None,
    ) -> TopicLog:
        """Create or recover one partition's log.

        Durability NONE makes a log whose files are gone at the next start.
        """
        ...

    def exists(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether a log that is kept was left by an earlier run, or is open."""
        ...

    def decide(
        self,
        transactions: Mapping[int, Collection[TopicLog]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        """Let transactions commit that are prepared in all these logs: the point of no return.

        `decided` is called once, perhaps before this returns; with what has kept them from
        committing if they have not. The caller then resolves them in the logs.
        """
        ...

    async def close(self) -> None:
        """Close every open log, then the threads and stores behind them."""
        ...


class StateStore(Protocol):
    """Small ordered key-value state: checkpoints of ledgers, indexes of waiting rooms, windows."""

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None where there is none."""
        ...

    def write(self, changes: Sequence[tuple[bytes, bytes | None]], *, durable: bool) -> None:
        """Apply all changes in one transaction (None deletes); on disk on return if `durable`."""
        ...

    def scan(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Every pair whose key begins with `prefix`, in order of the keys."""
        ...

    def range(self, first: bytes, stop: bytes, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """Pairs with first <= key < stop in order of the keys, at most `count_max`."""
        ...

    def keys(self, first: bytes, stop: bytes) -> Sequence[bytes]:
        """All keys in [first, stop), in order; the values, however large, are not read."""
        ...

    async def fetch(
        self, first: bytes, stop: bytes, count_max: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """What `range` gives, waiting for the device in a worker thread."""
        ...

    async def write_behind(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply all changes in one durable transaction (None deletes), in a worker thread.

        Meant for many at a time: they are written in order of the keys. Raises StorageError; the
        changes are then seen, and wait for the next write.
        """
        ...

    def close(self) -> None:
        """Release the store; what was written durably stays."""
        ...


class DefinitionSink(Protocol):
    """Where definitions go to survive. Writes are queued in order."""

    def put(self, definition: Definition) -> None:
        """Insert or replace by the definition's natural key. Returns at once."""
        ...

    def remove(self, definition: Definition) -> None:
        """Delete by the definition's natural key; a missing one is no error. Returns at once."""
        ...

    def remove_vhost(self, name: str) -> None:
        """Delete a virtual host and all that was put of it, together. Returns at once."""
        ...


class MetadataStore(DefinitionSink, Protocol):
    """Definitions that survive. What was written is durable after `flush`."""

    async def load(self) -> Definitions:
        """Everything that was kept."""
        ...

    @property
    def pending(self) -> bool:
        """Whether anything queued is not durable yet."""
        ...

    async def flush(self) -> None:
        """Wait until everything queued before this call is durable. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Flush, then release the store."""
        ...
