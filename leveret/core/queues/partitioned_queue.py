"""Partitioned queue: one queue for its clients, whose messages lie in several logs.

Each partition is a `Queue` or a `Stream` with a log of its own and the whole's definition. Order
holds within a partition. A publish goes to the partition that the `Partitioner` chooses for the
message; a consumer is served by all partitions through its shares, and basic.get takes from them in
turn. Lifetimes, limits and counters are those of the whole.

A partition that is being retired takes no more publishes; it is removed once nothing is left to
be read there (see leveret.features.topics.partition_changes).

In a cluster every queue is such a one, most with a single partition. Where another node leads one
of them, a stand-in has its place, which forwards what is done with it (see leveret.clustering).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.core.logs.log_writer import GONE, present_place
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.queues.open_queue import HANDED_OUT
from leveret.core.queues.queue_expiry import QueueExpiry
from leveret.core.settings.partitioning import BY_KEY, layout_of
from leveret.core.settings.policies import NO_POLICY
from leveret.core.settings.stream_offsets import STREAM_OFFSET
from leveret.ports.after_all import AfterAll
from leveret.ports.callbacks import call_each
from leveret.ports.counters import BYTES_OUT, Counters
from leveret.ports.partitioner import Partitioner
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.turn import Turn
    from leveret.ports.definitions import PartitionLayout, QueueDefinition
    from leveret.ports.partitioner import RecordTarget
    from leveret.ports.records import BatchBuilder

    # Of an OpenQueue, or of what stands for it.
    OpenPartition = Callable[["PartitionedQueue", int], Any]
    DeleteLogs = Callable[[Any, Callable[[Any], object]], None]

__all__ = ["PartitionedQueue"]

SEEDS = 1 << 30  # of random placement


class AddedConsumer(NamedTuple):
    """Consumer of the whole queue, and its shares by the number of the partition."""

    exclusive: bool
    shares: dict[int, QueueConsumer]


class PartitionedQueue(DeclaredQueue):
    """An open queue with partitions. `open_partition(whole, number)` opens one.

    `delete_logs(part, spawn)` deletes the files of one that has ended. Raises StorageError where a
    log cannot be opened; those opened before stay open.
    """

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        services: QueueServices,
        open_partition: OpenPartition,
        *,
        delete_logs: DeleteLogs,
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
        self._delete_logs = delete_logs
        self._expiry: QueueExpiry | None = None
        self._consumers: dict[QueueConsumer, AddedConsumer] = {}
        self._first = 0  # of the next get, as an index
        self._removed = Usage()  # of partitions that were removed
        seed = services.random_below(SEEDS) + 1
        by = BY_KEY if settings.partitioning is None else settings.partitioning.by
        self._partitioner = Partitioner(self, by, seed)
        self._partitions: dict[int, Any] = {}
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
        for part in self.places:
            part.definition = definition

    @property
    def policy(self) -> EffectivePolicy:
        """Policy that the settings were resolved with."""
        return self._policy

    @policy.setter
    def policy(self, policy: EffectivePolicy) -> None:
        self._policy = policy
        for part in self.places:
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
    def builder(self) -> RecordTarget:
        """Partitioner that chooses the builder for each record, or the only one."""
        if self.settings.partitioning is None:
            return next(iter(self._partitions.values())).builder  # type: ignore[no-any-return]
        return self._partitioner

    @property
    def partitions(self) -> Sequence[OpenQueue]:
        """Partitions by number that this node leads, those that are being retired included."""
        return [part for part in self._partitions.values() if part.is_led_here]

    @property
    def places(self) -> Sequence[Any]:
        """Partitions by number, and what stands here for those that other nodes lead."""
        return list(self._partitions.values())

    @property
    def is_led_here(self) -> bool:  # type: ignore[override]
        """Whether this node leads all partitions."""
        return all(part.is_led_here for part in self._partitions.values())

    async def refresh(self) -> None:
        """Wait until the figures of all partitions are as of now. Raises ChannelError 404."""
        for part in self.places:
            await present_place(part).refresh()

    def in_turn(self) -> Sequence[OpenQueue]:
        """Return the partitions, beginning with another one each time: a use of the queue."""
        self.used()
        parts = self.places
        self._first = (self._first + 1) % len(parts)
        return [*parts[self._first :], *parts[: self._first]]

    def has_place(self, number: int) -> bool:
        """Whether it has a partition of this number, which may be replaced."""
        return number in self._partitions

    def replace(self, part: Any, resume_points: Mapping[QueueConsumer, int]) -> None:
        """Put a partition in the place of the one that has its number, which has ended.

        It has the same builder. The consumers are served by it from now on, and get what follows
        the `resume_points` that the other one had for them.
        """
        number = part.number
        before, self._partitions[number] = self._partitions[number], part
        self._removed = self._removed.plus(before.total_usage())
        for consumer, added in list(self._consumers.items()):
            share = added.shares.pop(number, None)
            offset = None if share is None else resume_points.get(share)
            self._add_share(consumer, added, part, offset)

    # -- changes of the partitions

    def follow_layout(self) -> None:
        """Have the partitions that the definition says; publish to the active ones from now on.

        Those that it does not have any more must have been read. Raises StorageError if one cannot
        be opened: publishes go where they went, and another call goes on.
        """
        wanted = self.layout.present
        for number in wanted:
            if number not in self._partitions:
                self._partitions[number] = self._open_partition(self, number)
        for consumer, added in self._consumers.items():
            for part in self.places:
                if part.number not in added.shares:
                    self._add_share(consumer, added, part)
        self._place()
        for part in [part for number, part in self._partitions.items() if number not in wanted]:
            self._drop(part)

    def _drop(self, part: Any) -> None:
        """Delete a partition, which holds nothing; nobody is notified."""
        for added in self._consumers.values():
            share = added.shares.pop(part.number, None)
            if share is not None:
                part.remove_consumer(share)
        del self._partitions[part.number]
        self._removed = self._removed.plus(part.total_usage())
        part.mark_deleted()
        part.builder.partitioner = None
        self._delete_logs(part, self.services.spawn)

    # -- settings

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, after a policy change."""
        self.settings = settings
        if self.deleted:
            return
        for part in self.places:
            part.reconfigure(settings.of_partition())
        if self._expiry is not None:
            self._expiry.forget()
        self.used()

    @property
    def can_reorder(self) -> bool:
        """Whether `reorder` may be called, in every partition."""
        return all(part.can_reorder for part in self.places)

    def reorder(self, settings: QueueSettings) -> None:
        """Apply settings that change the order of messages within each partition."""
        self.settings = settings
        for part in self.places:
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
        parts = self.places
        all_of_them = AfterAll(len(parts), waiter.done)
        for part in parts:
            part.await_commit(all_of_them)

    def has_room(self, records: BatchBuilder) -> bool:
        """Whether the limits allow all of the records, wherever they are placed."""
        return self.places[0].has_room(records)  # type: ignore[no-any-return]

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published so far is committed."""
        return all(part.is_caught_up for part in self._partitions.values())

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called now for such a consumer."""
        return all(part.admits(exclusive=exclusive) for part in self.places)

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Add `consumer` to all partitions, from the next turn on. Call `admits` first."""
        added = self._consumers[consumer] = AddedConsumer(exclusive, {})
        for part in self.places:
            self._add_share(consumer, added, part)

    @staticmethod
    def _add_share(
        consumer: QueueConsumer, added: AddedConsumer, part: Any, offset: int | None = None
    ) -> None:
        share = consumer.share(part)
        if share is None:
            return
        added.shares[part.number] = share
        if offset is not None:
            share.arguments = {**share.arguments, STREAM_OFFSET: offset}
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
            for part in self.places:
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
        call_each([part.mark_deleted for part in self.places], self.services.report)
        self._partitioner.owner = GONE
        for part in self.places:
            part.builder.partitioner = None

    def delete_logs(self, spawn: Callable[[Any], object]) -> None:
        """Delete the files of all partitions, after `mark_deleted`, and leave no cycle."""
        for part in self.places:
            self._delete_logs(part, spawn)
        self._partitions.clear()
