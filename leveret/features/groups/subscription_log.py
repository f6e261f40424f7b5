"""Log of one subscription: the records of a partition, and settlements of its own.

A subscription reads what others have published, and settles it for itself. So its records are those
of the partition's log, and what it has settled and returned is written to a log without records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.ports import Damage, LogFile, Retention, SharedLog, TopicLog
    from leveret.ports.records import Batch
    from leveret.ports.returns import Returns

__all__ = ["SubscriptionLog"]


class SubscriptionLog:
    """Log of one subscription (see ports.TopicLog); nothing is appended to it."""

    retention: Retention | None = None
    kept_from: int | None = None
    appended_bytes = 0
    retained_from: int | None = None

    def __init__(self, records: SharedLog, settlements: TopicLog, *, is_new: bool) -> None:
        """`is_new`: nothing of the records was delivered before."""
        self.builder = BatchBuilder()  # always empty
        self.retention_waits_at: Callable[[], int | None] = lambda: None  # the partition's counts
        self.undone = RangeSet()
        self.erased = RangeSet()
        self._records = records
        self._settlements = settlements
        # Where nothing was settled there is no file, and nobody knows what was delivered.
        if settlements.unclean or not (is_new or settlements.list_files()):
            settlements.redelivered_stop = records.committed

    # -- the partition's records

    @property
    def first(self) -> int:
        """Lowest offset that may still be read."""
        return self._records.first

    @property
    def end(self) -> int:
        """Offset up to which there is something to be delivered."""
        return self._records.committed

    @property
    def committed(self) -> int:
        """Offset up to which there is something to be delivered."""
        return self._records.committed

    @property
    def removed(self) -> RangeSet:
        """Offsets that no file holds any more."""
        return self._records.removed

    def list_files(self) -> list[LogFile]:
        """Return the files of the partition."""
        return self._records.list_files()

    def read(self, offset: int, bytes_max: int) -> list[Batch] | None:
        """Return batches from `offset` on (see ports.TopicLog)."""
        return self._records.read(offset, bytes_max)

    def peek(self, offset: int) -> Batch | None:
        """Return the batch with `offset` if it is in memory."""
        return self._records.peek(offset)

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        """Return batches from `offset` on, waiting for the device."""
        return await self._records.fetch(offset, bytes_max)

    async def offset_at(self, time_ms: int) -> int:
        """Return the first offset stored at a time or later."""
        return await self._records.offset_at(time_ms)

    async def set_aside(self, offset: int) -> Damage:
        """Quarantine the damage met when reading `offset`."""
        return await self._records.set_aside(offset)

    # -- its own settlements

    @property
    def settled(self) -> RangeSet:
        """Offsets that this subscription has settled."""
        return self._settlements.settled

    @property
    def returns(self) -> Returns:
        """Delivery counts of what was returned by this subscription's consumers."""
        return self._settlements.returns

    @property
    def unclean(self) -> bool:
        """Whether the last run did not close the log cleanly."""
        return self._settlements.unclean

    @property
    def held_bytes(self) -> int:
        """Zero: the records count for the partition."""
        return 0

    @property
    def redelivered_stop(self) -> int:
        """Offset below which records may have been delivered before."""
        return self._settlements.redelivered_stop

    @redelivered_stop.setter
    def redelivered_stop(self, offset: int) -> None:
        self._settlements.redelivered_stop = offset

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle ranges; written behind."""
        self._settlements.settle(ranges)

    def erase(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: ARG002
        """Refuse: messages are their queue's."""
        raise AssertionError("a subscription erases nothing")

    def restate(self, settled: RangeSet) -> None:
        """Replace what is settled. Raises StorageError."""
        self._settlements.restate(settled)

    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Persist the changed delivery counts of these offsets."""
        self._settlements.note_returns(ranges)

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        *,
        erases: bool = False,
    ) -> None:
        """Write what a transaction settles."""
        assert not erases, "only the queue erases its messages"
        self._settlements.prepare(transaction, records, ranges, prepared)

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply the outcome of a transaction."""
        self._settlements.resolve(transaction, committed=committed)

    def takes_part(self, transaction: int) -> bool:
        """Whether the log holds a part of the transaction that survives a restart."""
        return self._settlements.takes_part(transaction)

    async def settlements_safe(self) -> None:
        """Wait until all settlements so far are durable. Raises StorageError."""
        await self._settlements.settlements_safe()

    async def close(self) -> None:
        """Close the log of settlements; the partition's stays open."""
        await self._settlements.close()

    async def delete(self) -> None:
        """Delete the log of settlements; the partition's stays."""
        await self._settlements.delete()

    # -- what a log of records does

    def append(self, may_block: bool = False) -> int:  # noqa: ARG002
        """Refuse: a subscription reads what others publish."""
        raise AssertionError("nothing is published to a subscription")

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Do nothing: the partition tells its subscriptions."""

    @property
    def acknowledged(self) -> int:
        """Offset of the partition's log (see ports.SharedLog)."""
        return self._records.acknowledged

    def require_copies(self, count: int, *, waits: bool = True) -> None:
        """Do nothing: the partition's queue requires them."""

    @property
    def is_refusing(self) -> bool:
        """Whether no settlements are stored; what is published is the partition's."""
        return self._settlements.is_refusing

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """Do nothing: what is not committed was never seen here."""

    def on_remove(self, callback: Callable[[Sequence[tuple[int, int]]], None]) -> None:
        """Do nothing: the partition tells its subscriptions."""

    def keep_from(self, reader: str, offset: int | None) -> None:
        """Do nothing: the partition's extension says what is kept."""
