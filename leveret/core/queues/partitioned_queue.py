"""Partitioned queue: one queue for its clients, whose messages lie in several logs.

Each partition is a `Queue` or a `Stream` with a log of its own and the whole's definition. Order
holds within a partition. A publish goes to the partition that the `Partitioner` chooses for the
message; a consumer is served by all partitions through its shares, and basic.get takes from them in
turn. Lifetimes, limits and counters are those of the whole.

A partition that is being retired takes no more publishes; it is removed once nothing is left to
be read there (see leveret.features.topics.partition_changes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.core.logs.log_writer import GONE
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.queues.open_queue import HANDED_OUT
from leveret.core.queues.queue_expiry import QueueExpiry
from leveret.core.settings.partitioning import layout_of
from leveret.core.settings.policies import NO_POLICY
from leveret.ports.after_all import AfterAll
from leveret.ports.callbacks import call_each
from leveret.ports.counters import BYTES_OUT, Counters
from leveret.ports.partitioner import Partitioner
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.turn import Turn
    from leveret.ports.definitions import PartitionLayout, QueueDefinition

    OpenPartition = Callable[["PartitionedQueue", int], OpenQueue]

__all__ = ["PartitionedQueue"]

SEEDS = 1 << 30  # of random placement


class AddedConsumer(NamedTuple):
    """Consumer of the whole queue, and its shares by the number of the partition."""

    exclusive: bool
    shares: dict[int, QueueConsumer]


class PartitionedQueue(DeclaredQueue):
    """An open queue with partitions. `open_partition(whole, number)` opens one.

    Raises StorageError where a log cannot be opened; those opened before stay open.
    """

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        services: QueueServices,
        open_partition: OpenPartition,
    ) -> None:
        self._definition = definition
        self.settings = settings
        self.services = services
        self.owner = owner
        self._policy = NO_POLICY
        self.gone = self.deleted = False
        self.rates: Any = None
        self.opened_ms = services.timers.wall_ms()
        self.counters = Counters()
        self._open_partition = open_partition
        self._expiry: QueueExpiry | None = None
        self._consumers: dict[QueueConsumer, AddedConsumer] = {}
        self._first = 0  # of the next get, as an index
        self._removed = Usage()  # of partitions that were removed
        assert settings.partitioning is not None, "it has partitions"
        seed = services.random_below(SEEDS) + 1
        self._partitioner = Partitioner(self, settings.partitioning.by, seed)
        self._partitions: dict[int, OpenQueue] = {}
        for number in self.layout.present:
            self._partitions[number] = open_partition(self, number)
        self._place()
        self.used()

    def _place(self) -> None:
        """Publish to the partitions that are not being retired."""
        chosen = [self._partitions[number] for number in self.layout.active]
        self._partitioner.set_builders(part.builder for part in chosen)

    # -- what it is

    @property
    def definition(self) -> QueueDefinition:
        """Definition, which the partitions have as well."""
        return self._definition

    @definition.setter
    def definition(self, definition: QueueDefinition) -> None:
        self._definition = definition
        for part in self.partitions:
            part.definition = definition

    @property
    def policy(self) -> EffectivePolicy:
        """Policy that the settings were resolved with."""
        return self._policy

    @policy.setter
    def policy(self, policy: EffectivePolicy) -> None:
        self._policy = policy
        for part in self.partitions:
            part.policy = policy

    @property
    def layout(self) -> PartitionLayout:
        """Numbers of the partitions."""
        return layout_of(self._definition)

    @property
    def turn(self) -> Turn:
        """Turn that flushes and pumps the partitions."""
        return self.services.turn

    @property
    def builder(self) -> Partitioner:
        """Partitioner that chooses the builder for each record."""
        return self._partitioner

    @property
    def partitions(self) -> Sequence[OpenQueue]:
        """Partitions by number, those that are being retired included."""
        return list(self._partitions.values())

    def in_turn(self) -> Sequence[OpenQueue]:
        """Return the partitions, beginning with another one each time: a use of the queue."""
        self.used()
        parts = self.partitions
        self._first = (self._first + 1) % len(parts)
        return [*parts[self._first :], *parts[: self._first]]

    # -- opening

    @property
    def is_opened(self) -> bool:
        """Whether all partitions are opened."""
        return all(part.is_opened for part in self._partitions.values())

    def open(self) -> bool:
        """Open the partitions whose logs need not be recovered. Raises StorageError."""
        return all(part.open() for part in self.partitions)

    async def opened(self) -> None:
        """Wait until all partitions are opened. Raises StorageError."""
        parts = [part for part in self.partitions if not part.is_opened]
        if parts and parts[0].logs is not None:
            await parts[0].logs.recover(parts)  # together
        for part in parts:
            await part.opened()

    # -- changes of the partitions

    def follow_layout(self) -> None:
        """Have the partitions that the definition says; publish to the active ones from now on.

        Raises StorageError if one cannot be opened: publishes go where they went, and another call
        goes on.
        """
        for number in self.layout.present:
            if number not in self._partitions:
                self._partitions[number] = self._open_partition(self, number)
        for consumer, added in self._consumers.items():
            for part in self.partitions:
                if part.number not in added.shares:
                    part.open()  # it is new
                    self._add_share(consumer, added, part)
        self._place()

    def drop(self, numbers: Iterable[int]) -> list[OpenQueue]:
        """Be without partitions that hold nothing and are not published to; nobody is notified.

        Returns them. Their logs are left to the caller, who must not delete them before the layout
        without them is stored.
        """
        dropped = [self._partitions.pop(number) for number in numbers]
        for part in dropped:
            for added in self._consumers.values():
                share = added.shares.pop(part.number, None)
                if share is not None:
                    part.remove_consumer(share)
            self._removed = self._removed.plus(part.total_usage())
            part.mark_deleted()
            part.builder.partitioner = None
        return dropped

    # -- settings

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, after a policy change."""
        self.settings = settings
        if self.deleted:
            return
        for part in self.partitions:
            part.reconfigure(settings.of_partition())
        if self._expiry is not None:
            self._expiry.forget()
        self.used()

    @property
    def can_reorder(self) -> bool:
        """Whether `reorder` may be called, in every partition."""
        return all(part.can_reorder for part in self.partitions)

    def reorder(self, settings: QueueSettings) -> None:
        """Apply settings that change the order of messages within each partition."""
        self.settings = settings
        for part in self.partitions:
            part.reorder(settings.of_partition())

    # -- contents

    @property
    def message_count(self) -> int:
        """Number of ready messages."""
        return sum(part.message_count for part in self._partitions.values())

    @property
    def leased_count(self) -> int:
        """Number of messages delivered and neither settled nor returned."""
        return sum(part.leased_count for part in self._partitions.values())

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed."""
        return sum(part.delayed_count for part in self._partitions.values())

    @property
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them."""
        return sum(part.dead_letters_waiting for part in self._partitions.values())

    @property
    def died_count(self) -> int:
        """Number of messages that the present partitions have discarded."""
        return sum(part.died_count for part in self._partitions.values())

    @property
    def consumer_count(self) -> int:
        """Number of consumers, each of which all partitions have, and of members of groups."""
        return max((part.consumer_count for part in self._partitions.values()), default=0)

    @property
    def held_bytes(self) -> int:
        """Estimated memory in bytes."""
        return sum(part.held_bytes for part in self._partitions.values())

    @property
    def position(self) -> int:
        """Number of records ever published to the present partitions."""
        return sum(part.position for part in self._partitions.values())

    def total_usage(self) -> Usage:
        """Return the queue's usage since it was opened."""
        value = self.counters.value
        logged = self._removed
        for part in self._partitions.values():
            logged = logged.plus(part.total_usage())
        return Usage(
            logged.messages_in,
            logged.bytes_in,
            sum(value(mode) for mode in HANDED_OUT),
            value(BYTES_OUT),
        )

    # -- publishing

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published so far is committed, possibly at once."""
        parts = self.partitions
        all_of_them = AfterAll(len(parts), waiter.done)
        for part in parts:
            part.await_commit(all_of_them)

    def has_room(self, count: int, body_bytes: int) -> bool:
        """Whether the limits allow so many more records, wherever they are placed."""
        parts = self.partitions  # what is not opened holds nothing
        part = next((part for part in parts if part.is_opened), parts[0])
        return part.has_room(count, body_bytes)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published so far is committed."""
        return all(part.is_caught_up for part in self._partitions.values())

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called now for such a consumer."""
        return all(part.admits(exclusive=exclusive) for part in self.partitions)

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Add `consumer` to all partitions, from the next turn on. Call `admits` first."""
        added = self._consumers[consumer] = AddedConsumer(exclusive, {})
        for part in self.partitions:
            self._add_share(consumer, added, part)

    @staticmethod
    def _add_share(consumer: QueueConsumer, added: AddedConsumer, part: OpenQueue) -> None:
        share = added.shares[part.number] = consumer.share(part)
        part.add_consumer(share, exclusive=added.exclusive)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove `consumer`; what it holds stays leased."""
        added = self._consumers.pop(consumer)
        for number, share in added.shares.items():
            self._partitions[number].remove_consumer(share)
        self.used()

    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """Note that this consumer, or any, may have more capacity."""
        if consumer is None:
            for part in self.partitions:
                part.wake()
        elif (added := self._consumers.get(consumer)) is not None:
            for number, share in added.shares.items():
                self._partitions[number].wake(share)

    def used(self) -> None:
        """Restart the expiry time of a queue with `x-expires`."""
        if self.settings.expires_ms is not None and not self.deleted:
            if self._expiry is None:
                self._expiry = QueueExpiry(self)
            self._expiry.end()

    # -- the end

    def mark_deleted(self) -> None:
        """Stop the partitions, each of which notifies its waiting publishers and its consumers."""
        self.deleted = True
        if self._expiry is not None:
            self._expiry.close()
            self._expiry = None
        self._consumers.clear()
        call_each([part.mark_deleted for part in self.partitions], self.services.report)
        self._partitioner.owner = GONE
        for part in self.partitions:
            part.builder.partitioner = None

    def delete_logs(self, spawn: Callable[[Any], object]) -> None:
        """Delete the files of all partitions, after `mark_deleted`, and leave no cycle."""
        super().delete_logs(spawn)
        self._partitions.clear()
