"""Extensions of a queue: features that look at its records, without the queue knowing them.

A queue has a tuple of extensions, which is empty for most: what its settings and its records ask
for. It calls each at a few points of a record's way, in the order of `QueueServices.extensions`;
an extension implements what it needs, and inherits the rest. Ranges are lists of (first, stop).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.logs.log_writer import Committing, Waiter
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import LogName
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch, BatchBuilder

    Ranges = list[tuple[int, int]]

__all__ = ["Demand", "ExtensionKind", "QueueExtension"]


class QueueExtension:
    """One feature of one queue; nothing is done by default."""

    indexed_features = RecordFlag(0)  # `appended` must see records that have one of these flags
    indexes_all = False  # `appended` must see all records
    needs_backlog = False  # nothing may be delivered before it has seen all unsettled records
    recovers = False  # it has something to restore, whatever unsettled records the queue has
    scans_from: int | None = None  # offset from which `scanned` must see all records
    held_bytes = 0  # estimated memory
    consumer_count = 0  # consumers that are not the queue's own, but the extension's
    parked_count = 0  # leased to no consumer, until the extension makes them ready
    holds_messages = False  # of the queue, elsewhere, or for others who have not read them
    is_caught_up = True  # everything that it stored elsewhere is committed
    outlives_reordering = False  # else it is made anew when the queue's order changes
    # As a kind of itself, see ExtensionKind:
    demanded_by = RecordFlag(0)
    for_streams = False

    @staticmethod
    def acts_alone(_definition: QueueDefinition, _settings: QueueSettings, _partition: int) -> bool:
        """See ExtensionKind."""
        return False

    @staticmethod
    def logs(
        _definition: QueueDefinition, _settings: QueueSettings, _partition: int
    ) -> Sequence[LogName]:
        """See ExtensionKind."""
        return ()

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on."""

    # -- publishing

    def admit(self, builder: BatchBuilder) -> Committing | None:  # noqa: ARG002
        """Remove records from a batch that is about to be appended.

        Returns what has stored them, if publishers must wait for that as well.
        """
        return None

    def has_room(self, count: int, body_bytes: int) -> bool:  # noqa: ARG002
        """Whether `admit` would let so many records pass, with so many bytes in their bodies."""
        return True

    def drop_duplicates(self, records: BatchBuilder) -> None:
        """Remove duplicates from records about to be appended, those of atomic writes included."""

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything that it stored elsewhere is committed."""
        waiter.done(failed=False)

    def appended(self, batch: Batch, settled: RangeSet | None) -> None:
        """Index the records of a batch, except `settled` ones: new ones, or of the backlog."""

    def truncated(self, offset: int) -> None:
        """Forget uncommitted records from `offset` on: they are lost, their offsets reused."""

    def undone(self, first: int, stop: int) -> bool:  # noqa: ARG002
        """Forget records [first, stop), whose atomic write was undone.

        Returns whether publishers of duplicates may wait for them, and must be refused.
        """
        return False

    def committed(self) -> None:
        """Note that more records are ready."""

    # -- recovery

    async def recover(self) -> None:
        """Read what it needs besides the queue's log, before that is scanned.

        Raises StorageError; it is called again later then.
        """

    def scanned(self, batch: Batch) -> None:
        """Note a batch of the log, of which all records may be settled; called in order."""

    def recovered(self) -> None:
        """Note that the log was scanned as far as needed; may be called more than once."""

    # -- delivery

    def consumer_added(self, consumer: QueueConsumer) -> None:
        """Note a new consumer."""

    def consumer_removed(self, consumer: QueueConsumer) -> None:
        """Note that a consumer has left."""

    delivers = False  # whether it decides who gets what, by `pump`, instead of the queue
    is_held_up = False  # whether, in its last pump, a consumer lacked capacity shared with others

    def pump(self) -> tuple[int, bool]:
        """Deliver. Returns (records sent, whether another turn could do more)."""
        return 0, False

    def may_offer(self, consumer: QueueConsumer) -> bool:  # noqa: ARG002
        """Whether a consumer may still get some of the present messages from `pump`."""
        return False

    def filter_ready(self, runs: Ranges, batches: list[Batch]) -> Ranges:  # noqa: ARG002
        """Return those of these ready records that may be delivered; withdraw the others."""
        return runs

    def withholds(self, batch: Batch, offset: int) -> bool:  # noqa: ARG002
        """Whether a record that was just leased must not be delivered; it then takes it over."""
        return False

    def holds_back(self, offset: int) -> bool:  # noqa: ARG002
        """Whether it has parked a record."""
        return False

    def pumped(self, *, delivered: bool) -> bool:  # noqa: ARG002
        """Act after a turn's deliveries. Returns whether another turn could do more."""
        return False

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note settled records."""

    def earlier_copies(self, ranges: Sequence[tuple[int, int]]) -> Ranges:  # noqa: ARG002
        """Return where the queue's log has earlier records of the same messages."""
        return []

    def copies_erased(self, ranges: Ranges) -> None:
        """Erase earlier records of erased messages that are not settled: a crash has undone it."""

    def let_go(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Make ready what it has parked of some records, which are about to be erased."""

    def returned(self) -> None:
        """Note that records have become ready again."""

    # -- the end

    def close(self) -> None:
        """Release what refers to the queue: it was deleted, or is rebuilt."""

    def delete(self) -> None:
        """Delete what it stored elsewhere: the queue was deleted."""


class Demand(NamedTuple):
    """Reasons for which a queue may need an extension, besides its settings."""

    features: RecordFlag = RecordFlag(0)  # flags of records that it is about to have
    consumer: QueueConsumer | None = None  # a consumer that it is about to have
    opening: bool = False  # the queue is being opened: an earlier run may have left something


class ExtensionKind(Protocol):
    """One kind of extension, with what all of a node's share.

    `demanded_by` are flags of records for which a queue needs one, whatever its settings. Streams
    have only those extensions that are `for_streams`.
    """

    demanded_by: RecordFlag = RecordFlag(0)
    for_streams: bool = False

    def follow(self, queue: Any, present: Any, demand: Demand) -> QueueExtension | None:
        """Return the extension that a queue needs, if any; `present` is the one that it has.

        `queue` is a Queue, or any DeclaredQueue for kinds that are `for_streams`.
        """
        ...

    def acts_alone(
        self, definition: QueueDefinition, settings: QueueSettings, partition: int
    ) -> bool:
        """Whether an earlier run may have left what acts though the partition has no messages."""
        return bool(self.logs(definition, settings, partition))

    def logs(
        self, _definition: QueueDefinition, _settings: QueueSettings, _partition: int
    ) -> Sequence[LogName]:
        """Return the logs of an earlier run that `follow` opens with the partition."""
        return ()
