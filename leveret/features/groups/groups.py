"""Consumer groups of a node: durable subscriptions, created by their first consumer.

A `ConsumerGroup` is where its consumers are added, as plain consumers are to a queue. Its
coordinator says which member gets which partitions; the group carries that out on its
subscriptions. `ConsumerGroups` has the groups of all queues, and is the kind of extension by which
their partitions tell subscriptions what was committed.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.core.names import resource, topic_beside
from leveret.core.queues.consumer import say_farewell
from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.core.queues.queue import Queue
from leveret.core.settings.stream_offsets import duration_ms
from leveret.errors import ChannelError
from leveret.features.groups.at_most_once import AtMostOnceShare
from leveret.features.groups.coordinator import Assign, GroupCoordinator
from leveret.features.groups.places import offset_of
from leveret.features.groups.rules import GROUP_ASSIGN, GROUP_SESSION, SESSION_MS
from leveret.features.groups.subscription import Subscription
from leveret.features.groups.subscription_log import SubscriptionLog
from leveret.ports.counters import Counters
from leveret.ports.definitions import GroupDefinition
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leveret.core.dependencies import CoreServices
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.settings.stream_offsets import Start
    from leveret.features.groups.coordinator import Revoke
    from leveret.features.groups.rules import GroupLimits
    from leveret.ports import LogName, MetadataStore
    from leveret.ports.definitions import QueueDefinition

__all__ = ["ConsumerGroup", "ConsumerGroups"]

SUFFIX = ".group."


def _settlements_of(
    group: GroupDefinition, queue: QueueDefinition, partition: int
) -> tuple[str, str, str, int]:
    """Return where the log is of what a group has settled of a partition."""
    topic = topic_beside(queue.topic, SUFFIX + group.name)
    return group.vhost, topic, group.incarnation, partition


class ConsumerGroup:
    """One consumer group of a queue."""

    def __init__(self, queue: Any, definition: GroupDefinition) -> None:
        self.queue = queue  # the whole one, whatever its partitions
        self.group = definition
        self.subscriptions: dict[int, Subscription] = {}
        self.coordinator: GroupCoordinator[Any] = GroupCoordinator([])
        self.counters = Counters()  # holder of the samples of its lag
        self._shares: dict[int, Any] = {}  # by partition: what it is delivered by
        self._turn = queue.turn

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.queue.definition.name!r}, {self.group.name!r})"

    # -- as what consumers are added to

    partitions = ()  # nothing is published to it
    is_caught_up = True

    @property
    def whole(self) -> Any:
        """Queue that it is a group of."""
        return self.queue

    @property
    def name(self) -> str:
        """Name of the queue."""
        name: str = self.queue.definition.name
        return name

    @property
    def definition(self) -> QueueDefinition:
        """Definition of the queue."""
        definition: QueueDefinition = self.queue.definition
        return definition

    @property
    def rates(self) -> Any:
        """Rates of the queue, if it has any."""
        return self.queue.rates

    @property
    def deleted(self) -> bool:
        """Whether the queue was deleted."""
        return bool(self.queue.deleted)

    @property
    def consumer_count(self) -> int:
        """Number of consumers of the queue: it is what auto-delete looks at."""
        count: int = self.queue.consumer_count
        return count

    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called: members share partitions, whoever they are."""
        return not exclusive

    def add_consumer(self, consumer: Any, *, exclusive: bool = False) -> None:  # noqa: ARG002
        """Add a member."""
        wanted = consumer.arguments.get(GROUP_ASSIGN)
        self._carry_out(self.coordinator.join(consumer, wanted))

    def remove_consumer(self, consumer: Any) -> None:
        """Remove a member; others get its partitions once nothing of them is unsettled."""
        self._carry_out(self.coordinator.leave(consumer))

    def wake(self, consumer: Any = None) -> None:
        """Note that a member, or any, may have more capacity."""
        partitions = list(self._shares) if consumer is None else self._delivered_to(consumer)
        for number in partitions:
            share = self._shares[number]
            if isinstance(share, AtMostOnceShare):
                share.go_on()
            self.subscriptions[number].wake(share)

    def _delivered_to(self, consumer: Any) -> list[int]:
        return [number for number, share in self._shares.items() if share.whole is consumer]

    def resume(self, consumer: Any) -> None:
        """Note that a member which did not settle in time has settled something."""
        self._carry_out(self.coordinator.resume(consumer))

    def member_of(self, number: int) -> str | None:
        """Return how its client calls the member that a partition is delivered to, or None."""
        share = self._shares.get(number)
        return None if share is None else f"{share.channel.name} {share.tag}"

    @property
    def lag(self) -> int:
        """Number of committed records that the group has not settled, of all partitions."""
        return sum(subscription.lag for subscription in self.subscriptions.values())

    @property
    def unacked(self) -> int:
        """Number of records that are delivered, or on their way to the dead letters."""
        return sum(subscription.leased_count for subscription in self.subscriptions.values())

    @property
    def is_in_use(self) -> bool:
        """Whether it has members, or some of what they got is unsettled."""
        held = any(each.leased_count for each in self.subscriptions.values())
        return bool(self.coordinator.members) or held

    # -- partitions

    def attach(self, partition: OpenQueue, subscription: Subscription) -> None:
        """Subscribe to a partition, which was opened."""
        self.subscriptions[partition.number] = subscription
        self._carry_out(self.coordinator.set_partitions(self.subscriptions))

    def detach(self, number: int) -> None:
        """Forget a partition, which is deleted: everything in it was settled."""
        others = [other for other in self.subscriptions if other != number]
        self._carry_out(self.coordinator.set_partitions(others))
        self.subscriptions.pop(number).mark_deleted()

    def _carry_out(self, steps: Iterable[Assign[Any] | Revoke[Any]]) -> None:
        for step in steps:
            number = step.partition
            if isinstance(step, Assign):
                self._assign(number, step.member)
            else:
                self.subscriptions[number].remove_consumer(self._shares[number])
        for number in list(self._shares):
            if self.coordinator.is_revoked(number):  # still: a release carries out more steps
                self._release_if_settled(number)

    def _assign(self, number: int, member: Any) -> None:
        subscription = self.subscriptions[number]
        share = self._shares.get(number)
        if share is None:
            share = member.member_share(subscription, number)
            if member.no_ack:
                share = AtMostOnceShare(share, subscription)
            self._shares[number] = share
            session = member.arguments.get(GROUP_SESSION, SESSION_MS)
            share.visibility_timeout_ms = duration_ms(session)
        subscription.add_consumer(share)

    def changed(self, number: int, timed_out: bool) -> None:
        """Note that deliveries of a partition were settled or returned (see Subscription)."""
        share = self._shares.get(number)
        if share is None:
            return
        if timed_out:
            member = share.whole
            member.suspended(self)
            self._carry_out(self.coordinator.suspend(member))
        elif self.coordinator.is_revoked(number):
            self._release_if_settled(number)

    def _release_if_settled(self, number: int) -> None:
        """Let a revoked partition go to another member once its owner holds nothing of it.

        What an owner holds is known by the subscription, which tells each change of it. The credit
        of its consumer may be given back earlier or later than that.
        """
        share = self._shares[number]
        if isinstance(share, AtMostOnceShare) and share.in_flight:
            share.go_on()  # which comes back here, unless it is not safe, or nobody has room for it
        elif not self.subscriptions[number].held_count:
            del self._shares[number]
            self._carry_out(self.coordinator.released(number))

    # -- the end

    def close(self) -> None:
        """End the subscriptions, since the queue or the group was deleted; notify the members."""
        members = self.coordinator.members
        for subscription in self.subscriptions.values():
            subscription.mark_deleted()
        self.subscriptions.clear()
        self._shares.clear()
        say_farewell(self._turn, members)


class PartitionSubscriptions(QueueExtension):
    """Subscriptions of one partition: tells them what was committed and removed.

    Where the settings name groups that settle for the queue (x-retention-settles), it has the
    partition settle what all of them have settled. These must all exist.
    """

    outlives_reordering = True

    def __init__(self, partition: OpenQueue, delete: Callable[[], None]) -> None:
        self.subscriptions: dict[ConsumerGroup, Subscription] = {}
        self._partition = partition
        self._delete = delete
        self._is_behind = False  # what groups have settled is to be settled in the partition
        partition.log.retention_waits_at = self._waits_at
        partition.log.on_remove(self._removed)
        # A crash may have kept what groups have settled, and not what the queue has.
        partition.services.timers.after(0, self.settle_all)

    def committed(self) -> None:
        """Tell the subscriptions that more was committed."""
        for subscription in self.subscriptions.values():
            subscription.advance()
        if self._is_behind:
            self.settle_all()

    def _removed(self, ranges: Sequence[tuple[int, int]]) -> None:
        for subscription in self.subscriptions.values():
            subscription.removed(ranges)

    def _waits_at(self) -> int | None:
        """Return the first offset that a group has not read for which retention waits."""
        names = self._partition.settings.retention_waits_for
        offsets = [
            subscription.committed_offset
            for group, subscription in self.subscriptions.items()
            if group.group.name in names
        ]
        return min(offsets, default=None)

    # -- settling for the queue

    def settle_all(self) -> None:
        """Have the partition settle everything that the named groups have settled."""
        if self.subscriptions:
            self._settle([(0, self._partition.log.committed)])

    def settled_by(self, group: ConsumerGroup, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the partition settle what a group has settled now, and all the others before."""
        if group.group.name in self._partition.settings.retention_settles:
            self._settle(ranges)

    def _settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        partition = self._partition
        settings = partition.settings
        if not settings.retention_settles or settings.retention is None:
            return
        assert isinstance(partition, Queue), "nobody settles for a stream"
        self._is_behind = partition.is_restoring
        if partition.is_restoring:
            return  # what is ready is not known; when it is, `committed` is called
        by_name = {group.group.name: each for group, each in self.subscriptions.items()}
        common = RangeSet(ranges)
        for name in settings.retention_settles:
            if name not in by_name:
                return
            settled, either = by_name[name].log.settled, common
            common = RangeSet()
            for first, stop in either:
                common.add_all(list(settled.gaps(first, stop).gaps(first, stop)))
        if common:
            partition.lose(common)
            partition.counters.moved = True  # so that the lower message count is sampled

    def returned(self) -> None:
        """Settle what consumers of the queue have returned, though the groups are done with it."""
        self.settle_all()

    def close(self) -> None:
        """Leave no cycle: the queue was deleted."""
        self.subscriptions.clear()
        self._partition.log.retention_waits_at = lambda: None
        del self._partition, self._delete

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings to the subscriptions as well."""
        for subscription in self.subscriptions.values():
            subscription.follow(settings)
        self.settle_all()

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """Estimated memory of the subscriptions."""
        return sum(subscription.held_bytes for subscription in self.subscriptions.values())

    @property
    def consumer_count(self) -> int:  # type: ignore[override]
        """Number of members of the groups."""
        return sum(len(group.coordinator.members) for group in self.subscriptions)

    @property
    def holds_messages(self) -> bool:  # type: ignore[override]
        """Whether a group has not settled all of the partition."""
        return any(each.lag or each.leased_count for each in self.subscriptions.values())

    def delete(self) -> None:
        """Delete the groups with their queue, or with a partition what they know of it."""
        self._delete()


class ConsumerGroups(ExtensionKind):
    """ConsumerGroups of all queues of a node, by incarnation of the queue and name."""

    for_streams = True

    def __init__(self, core: CoreServices, metadata: MetadataStore, limits: GroupLimits) -> None:
        self._core = core
        self._limits = limits
        self._metadata = metadata
        self._defined: dict[str, dict[str, GroupDefinition]] = {}  # of queues to be opened
        self._groups: dict[str, dict[str, ConsumerGroup]] = {}
        self._subscription_counts: Counter[str] = Counter()  # by virtual host

    def load(self, definitions: Iterable[GroupDefinition]) -> None:
        """Note the groups of an earlier run; they are opened with their queues."""
        for definition in definitions:
            self._defined.setdefault(definition.queue, {})[definition.name] = definition

    # -- as a kind of extension

    def follow(
        self, queue: OpenQueue, present: PartitionSubscriptions | None, demand: Demand
    ) -> PartitionSubscriptions | None:
        """See ExtensionKind. ConsumerGroups of an earlier run are opened with the partition."""
        if present is not None or not demand.opening:
            return present
        defined = self._defined.get(queue.definition.incarnation)
        if not defined:
            return None
        extension = self._extension(queue)
        for definition in defined.values():
            self._open(queue, extension, definition)
        return extension

    def logs(
        self, definition: QueueDefinition, _settings: QueueSettings, partition: int
    ) -> Sequence[LogName]:
        """Return the logs of what groups, which may read what others settled, have settled."""
        name = self._core.internal_topics.settlements_name
        return [
            name(*_settlements_of(group, definition, partition))
            for group in self._defined.get(definition.incarnation, {}).values()
        ]

    def _extension(self, partition: OpenQueue) -> PartitionSubscriptions:
        return PartitionSubscriptions(partition, partial(self._deleted, partition))

    # -- groups

    def all(self) -> list[ConsumerGroup]:
        """Return the groups of all queues."""
        return [group for of_queue in self._groups.values() for group in of_queue.values()]

    def of_queue(self, queue: Any) -> Mapping[str, ConsumerGroup]:
        """Return the groups of a queue by name."""
        return self._groups.get(queue.definition.incarnation, {})

    async def start_offsets(self, queue: Any, start: Start) -> dict[int, int]:
        """Return where a group begins in each partition. Raises StorageError."""
        now_ms = self._core.timers.wall_ms()
        return {part.number: await offset_of(part, start, now_ms) for part in queue.partitions}

    def create(self, queue: Any, name: str, starts: Mapping[int, int]) -> ConsumerGroup:
        """Create a group which begins at these offsets of its partitions.

        Raises ChannelError 406 where there may be no more groups, StorageError.
        """
        self._check_room(queue, name)
        definition = GroupDefinition(
            queue.definition.vhost,
            queue.definition.incarnation,
            name,
            self._core.random_name(),
            self._core.timers.wall_ms(),
        )
        self._defined.setdefault(definition.queue, {})[name] = definition
        for part in queue.partitions:
            extension = part.extension(PartitionSubscriptions)
            if extension is None:
                extension = self._extension(part)
                part.adopt(self, extension)
            self._open(part, extension, definition, starts.get(part.number, 0))
        self._metadata.put(definition)
        return self._groups[definition.queue][name]

    def _check_room(self, queue: Any, name: str) -> None:
        """Raise ChannelError 406 if a queue, or its virtual host, has as many groups as it may."""
        vhost, limits = queue.definition.vhost, self._limits
        count = self._subscription_counts[vhost] + len(queue.partitions)
        if len(self.of_queue(queue)) >= limits.groups_per_queue_max:
            limit = f"{resource('queue', queue.definition.name, vhost)} has the limit of "
            limit += f"{limits.groups_per_queue_max} groups"
        elif count > limits.partitions_per_vhost_max:
            limit = f"the groups of vhost '{vhost}' may read {limits.partitions_per_vhost_max} "
            limit += "partitions together"
        else:
            return
        raise ChannelError(
            406, f"cannot create consumer group '{name}': {limit}; delete those that are not used"
        )

    def _open(
        self,
        partition: OpenQueue,
        extension: PartitionSubscriptions,
        definition: GroupDefinition,
        start: int | None = None,
    ) -> None:
        """Open a group's subscription to one partition. Raises StorageError.

        `start`: where it begins; None: where it was in an earlier run, if the partition is as old.
        """
        of_queue = self._groups.setdefault(definition.queue, {})
        group = of_queue.get(definition.name)
        if group is None:
            group = of_queue[definition.name] = ConsumerGroup(partition.whole, definition)
        place = _settlements_of(definition, partition.definition, partition.number)
        settlements = self._core.internal_topics.open_settlements(*place)
        if start:
            settlements.restate(RangeSet([(0, start)]))
        changed = partial(group.changed, partition.number)
        settled = partial(extension.settled_by, group)
        log = SubscriptionLog(partition.log, settlements, is_new=start is not None)
        subscription = Subscription(partition, log, changed, settled)
        extension.subscriptions[group] = subscription
        self._subscription_counts[definition.vhost] += 1
        group.attach(partition, subscription)
        if start is not None:
            extension.settle_all()

    def delete_left(self, definition: QueueDefinition, number: int) -> None:
        """Delete what groups had settled of a partition that an earlier run has removed."""
        topics = self._core.internal_topics
        for group in self._defined.get(definition.incarnation, {}).values():
            place = _settlements_of(group, definition, number)
            if topics.exists_at(*place):
                self._core.spawn(topics.delete(*place))

    def delete(self, group: ConsumerGroup) -> None:
        """Delete a group and what it has settled."""
        incarnation, name = group.group.queue, group.group.name
        for subscription in group.subscriptions.values():
            extension = subscription.partition.extension(PartitionSubscriptions)
            if extension is not None:
                del extension.subscriptions[group]
        self._close(group)
        for groups in (self._groups, self._defined):
            del groups[incarnation][name]
            if not groups[incarnation]:
                del groups[incarnation]
        self._metadata.remove(group.group)

    def _close(self, group: ConsumerGroup) -> None:
        for subscription in group.subscriptions.values():
            self._core.spawn(subscription.log.delete())
        self._subscription_counts[group.group.vhost] -= len(group.subscriptions)
        group.close()

    def _deleted(self, partition: OpenQueue) -> None:
        """Delete all groups of a deleted queue, or what they know of one of its partitions."""
        incarnation = partition.definition.incarnation
        if not partition.whole.deleted:
            for group in self._groups.get(incarnation, {}).values():
                self._core.spawn(group.subscriptions[partition.number].log.delete())
                group.detach(partition.number)
                self._subscription_counts[group.group.vhost] -= 1
            return
        # No-op but for the first partition of the queue.
        for group in self._groups.pop(incarnation, {}).values():
            self._close(group)
            self._metadata.remove(group.group)
        self._defined.pop(incarnation, None)
