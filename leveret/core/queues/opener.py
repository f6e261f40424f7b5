"""Opening and reconfiguring queues according to their definitions and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.logs.internal_topics import PlacedLogs
from leveret.core.names import DELAYED_QUEUE
from leveret.core.queues.open_queue import PartOf
from leveret.core.queues.partitioned_queue import PartitionedQueue
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.queues.unopened_queue import UnopenedQueue, may_stay_unopened
from leveret.core.settings.arguments import type_of
from leveret.core.settings.policies import NO_POLICY
from leveret.core.settings.queue_settings import TOPIC_SUFFIX, QueueSettings, resolve_settings
from leveret.ports import Durability

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy, Policies
    from leveret.ports import TopicLog, TopicStore
    from leveret.ports.definitions import QueueDefinition

__all__ = ["Placement", "QueueOpener"]


class Placement(PlacedLogs, Protocol):
    """Where the partitions of a cluster's queues are led."""

    def open(self, whole: PartitionedQueue, number: int, opener: QueueOpener) -> Any:
        """Return a partition, opened where this node leads it, else what stands for it.

        It is replaced (PartitionedQueue.replace) whenever the leader changes. May raise
        StorageError.
        """
        ...

    def reconfigured(self, whole: PartitionedQueue) -> None:
        """Note that a queue has other settings."""
        ...

    def delete(self, part: Any) -> None:
        """Delete this node's log of a partition, which has ended."""
        ...


class QueueOpener:
    """Opens queues. `durability` is that of durable queues; `services` are shared by all queues.

    In a cluster `placement` says where.
    """

    def __init__(
        self,
        topics: TopicStore,
        durability: Durability,
        policies: Policies,
        services: QueueServices,
        placement: Placement | None = None,
    ) -> None:
        self._placement = placement
        self._topics = topics
        self._durability = durability
        self._policies = policies
        self.services = services  # of queues that are opened from now on
        self._open_log = self._open_log_of  # one for all unopened queues
        # What was resolved last, and what of: shared by equal queues, since there may be many.
        self._latest = QueueSettings()
        self._latest_of: tuple[object, ...] = ()
        self._latest_policy = NO_POLICY

    def open(self, definition: QueueDefinition, owner: object | None) -> DeclaredQueue:
        """Return a queue, opened unless it holds nothing that is known. Raises StorageError."""
        policy = self.policy_of(definition)
        settings = self._resolve(definition, policy)
        queue: DeclaredQueue
        if settings.partitioning is None and self._placement is None:
            queue = self._open_one(definition, settings, owner)
        else:
            queue = PartitionedQueue(
                definition,
                settings,
                owner,
                self.services,
                self._open_partition,
                delete_logs=self._delete_logs,
            )
        queue.policy = policy
        return queue

    def _delete_logs(self, part: Any, spawn: Callable[[Any], object]) -> None:
        """Delete the files of a partition that has ended; `spawn` runs a coroutine."""
        if self._placement is None:
            part.delete_logs(spawn)
        else:
            self._placement.delete(part)

    def _open_partition(self, whole: PartitionedQueue, number: int) -> Any:
        """Return a partition of a queue. Raises StorageError."""
        if self._placement is not None:
            return self._placement.open(whole, number, self)
        settings = whole.settings.of_partition()
        part = self._open_one(whole.definition, settings, whole.owner, PartOf(whole, number))
        part.policy = whole.policy
        return part

    def _open_one(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        part_of: PartOf | None = None,
    ) -> OpenQueue:
        """Return a queue with one log. Raises StorageError."""
        services, number = self.services, 0 if part_of is None else part_of.number
        if self._may_stay_unopened(definition, settings, number):
            return UnopenedQueue(definition, settings, services, self._open_log, part_of=part_of)
        log = self._open_log(definition, settings, number)
        return self._open_on(log, definition, settings, owner, part_of)

    def open_led(self, whole: PartitionedQueue, number: int, log: TopicLog) -> OpenQueue:
        """Return a partition whose log is open already."""
        settings, part_of = whole.settings.of_partition(), PartOf(whole, number)
        part = self._open_on(log, whole.definition, settings, whole.owner, part_of)
        part.policy = whole.policy
        return part

    def _open_on(
        self,
        log: TopicLog,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        part_of: PartOf | None,
    ) -> OpenQueue:
        if settings.is_stream:
            return Stream(definition, settings, log, self.services, part_of=part_of)
        return Queue(definition, settings, owner, log, self.services, part_of=part_of)

    def _may_stay_unopened(
        self, definition: QueueDefinition, settings: QueueSettings, number: int
    ) -> bool:
        """Whether nothing is to be done for a queue until it is used. Raises StorageError."""
        if not may_stay_unopened(definition, settings, self.services, number):
            return False
        log = definition.vhost, definition.topic, definition.incarnation, number
        if settings.retention is not None:  # what it keeps is to be deleted in time
            return not self._topics.exists(*log)
        return self._topics.leave_unopened(*log)

    def _open_log_of(
        self, definition: QueueDefinition, settings: QueueSettings, number: int
    ) -> TopicLog:
        """Create or recover the log of a partition. Raises StorageError."""
        return self._topics.open(
            definition.vhost,
            definition.topic,
            definition.incarnation,
            number,
            self._durability if definition.durable else Durability.NONE,
            retention=settings.retention,
        )

    def reconfigure(self, queue: DeclaredQueue, *, reorder: bool = False) -> None:
        """Apply the present definition and policy to a queue.

        With `reorder`, changes of the message order are applied too, which the queue must allow
        now.
        """
        queue.policy = self.policy_of(queue.definition)
        settings = self._resolve(queue.definition, queue.policy)
        if reorder:
            queue.reorder(settings)
        else:
            queue.reconfigure(settings)
        if self._placement is not None and isinstance(queue, PartitionedQueue):
            self._placement.reconfigured(queue)

    def policy_of(self, queue: QueueDefinition) -> EffectivePolicy:
        """Return the effective policy of a queue; that of a cluster's delayed messages has none.

        It would be meant for others, and lose messages: by their time to live, for example.
        """
        if self._placement is not None and queue.name == DELAYED_QUEUE:
            return NO_POLICY
        policy = self._policies.for_queue(queue.vhost, queue.name, type_of(queue.arguments))
        if policy != self._latest_policy:
            self._latest_policy = policy
        return self._latest_policy

    def _resolve(self, definition: QueueDefinition, policy: EffectivePolicy) -> QueueSettings:
        """Return a queue's settings, shared with other queues if equal."""
        is_topic = definition.name.endswith(TOPIC_SUFFIX)
        of = definition.arguments, is_topic, definition.paused, policy.definition
        if of != self._latest_of:
            settings = resolve_settings(definition, policy.definition)
            self._latest = self._latest if settings == self._latest else settings
            self._latest_of = of
        return self._latest
