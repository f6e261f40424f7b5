"""Replication's side of a log: what a leader's log gives to followers, and a follower's takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from leveret.ports import TopicLog
from leveret.ports.epochs import EpochIndex
from leveret.ports.records import Batch

__all__ = ["ReplicatedLog", "StreamRun"]


@dataclass(frozen=True, slots=True)
class StreamRun:
    """A piece of a leader's stream: whole batches as they lie, records and control batches.

    `position` is where the stream goes on; None: to be asked for by offset once more. The leader
    needs no records below `kept_from`, None: none that are settled.
    """

    data: bytes | bytearray | memoryview
    position: int | None
    kept_from: int | None = None


class ReplicatedLog(TopicLog, Protocol):
    """A log that has copies on other nodes; it follows until it is told to lead.

    All that a leader's log writes, records and what becomes of them, is its stream: followers copy
    it in the order in which it was written. Positions of the stream are of one leader's log, as
    long as that is open. `committed` begins at 0 and moves as far as `limit_commit` says.
    """

    @property
    def epochs(self) -> EpochIndex:
        """Epochs of the records."""
        ...

    @property
    def durable(self) -> int:
        """Offset below which the records are as durable as the log makes them."""
        ...

    @property
    def stream_end(self) -> int:
        """Position in a leader's stream behind everything that is written."""
        ...

    @property
    def stream_durable(self) -> int:
        """Position below which the leader's stream is durable here, on its own log or copied."""
        ...

    def on_progress(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever something was written, or has become durable."""
        ...

    def on_append_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `append` has failed, as where the disk is full.

        Nothing is lost but what was to be appended; the caller of `append` goes on behind it.
        """
        ...

    def limit_commit(self, offset: int) -> None:
        """Let `committed` move up to `offset`, as far as records are durable; it never falls."""
        ...

    def uncommitted(self) -> list[Batch] | None:
        """Return the batches from `committed` on; None if they are not all in memory.

        Those of transactions are left out.
        """
        ...

    def confirm(self, offset: int) -> None:
        """Let records below `offset` be confirmed though they are not committed, by a leader."""
        ...

    def require_replicas(self, missing: int) -> None:
        """Have `append` and `prepare` raise NotEnoughReplicasError while replicas are missing.

        `missing` are those that must come in sync first; 0: none, as when the log begins to lead.
        """
        ...

    @property
    def failure(self) -> Exception | None:
        """Error of the disk after which the log must be opened again before it is of use.

        Callbacks of `on_failure` are called when a flush has failed, none after `truncate`. `close`
        then leaves the files as they are.
        """
        ...

    # -- as a leader

    def lead(self, epoch: int) -> None:
        """Take appends, with batches of `epoch`. Transactions whose outcome is known end.

        Should records be lost later (see `on_failure`), the log follows: no offset may have two
        records in one epoch. Raises `failure`.
        """
        ...

    def replicated_to(self, position: int) -> None:
        """Note that all replicas in sync have the stream up to `position` durably.

        Parts of transactions count as prepared from then on, settlements as safe.
        """
        ...

    async def read_stream(self, offset: int, position: int | None, bytes_max: int) -> StreamRun:
        """Return what follows `position` for a follower whose log ends at `offset`.

        Without a position, or with one that is gone, the run begins with the control batches that
        tell the state as of `offset`. At the end of the stream it is empty. Raises
        CorruptBatchError, StorageError.
        """
        ...

    # -- as a follower

    @property
    def stream_position(self) -> int | None:
        """Position at which the next run is to begin; None: it is to be asked for by offset."""
        ...

    def follow(self) -> None:
        """Follow a leader, from now on, or another one. What waits for other replicas fails."""
        ...

    def append_stream(self, run: StreamRun, epoch: int) -> None:
        """Append a run of the leader of `epoch`.

        Raises CorruptBatchError for what does not follow what is there, NewerFormatError,
        DiskFullError and StorageError: the same run may be appended again then.
        """
        ...

    async def truncate(self, end: int) -> None:
        """Drop the records from `end` on, where another leader's epoch begins.

        `end` is not below `committed`. Nothing else may be done meanwhile. Raises StorageError;
        nothing has changed then.
        """
        ...
