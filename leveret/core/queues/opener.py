"""Opening and reconfiguring queues according to their definitions and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.open_queue import PartOf
from leveret.core.queues.partitioned_queue import PartitionedQueue
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_logs import QueueLogs, may_stay_unopened
from leveret.core.queues.stream import Stream
from leveret.core.settings.arguments import type_of
from leveret.core.settings.partitioning import layout_of
from leveret.core.settings.policies import NO_POLICY
from leveret.core.settings.queue_settings import TOPIC_SUFFIX, QueueSettings, resolve_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy, Policies
    from leveret.ports import Durability, LogName, TopicStore
    from leveret.ports.definitions import QueueDefinition

__all__ = ["QueueOpener"]


class QueueOpener:
    """Opens queues. `durability` is that of durable queues; `services` are shared by all queues."""

    def __init__(
        self,
        topics: TopicStore,
        durability: Durability,
        policies: Policies,
        services: QueueServices,
    ) -> None:
        self._logs = QueueLogs(topics, durability)
        self._policies = policies
        self.services = services  # of queues that are opened from now on
        # Partitions without work, by virtual host, queue and number: a start looks at them once.
        self._idle: set[tuple[str, str, int]] = set()
        # What was resolved last, and what of: shared by equal queues, since there may be many.
        self._latest = QueueSettings()
        self._latest_of: tuple[object, ...] = ()
        self._latest_policy = NO_POLICY

    def logs(self, definition: QueueDefinition) -> Iterator[LogName]:
        """Return the logs that `open` opens with a queue, to be recovered before.

        For a start, which ends with `started`. Raises StorageError.
        """
        settings = self._resolve(definition, self.policy_of(definition))
        numbers: Iterable[int] = (0,)
        if settings.partitioning is not None:
            settings, numbers = settings.of_partition(), layout_of(definition).present
        for number in numbers:
            if self._may_stay_unopened(definition, settings, number):
                self._idle.add((definition.vhost, definition.name, number))
                continue
            yield self._logs.name(definition, number)
            for kind in self.services.extensions:
                yield from kind.logs(definition, settings, number)

    def started(self) -> None:
        """Forget what was found for the start."""
        self._idle.clear()

    def open(self, definition: QueueDefinition, owner: object | None) -> DeclaredQueue:
        """Return a queue, opened unless it holds nothing that is known. Raises StorageError."""
        policy = self.policy_of(definition)
        settings = self._resolve(definition, policy)
        queue: DeclaredQueue
        if settings.partitioning is None:
            queue = self._open_one(definition, settings, owner)
        else:
            queue = PartitionedQueue(
                definition, settings, owner, self.services, self._open_partition
            )
        queue.policy = policy
        return queue

    def _open_partition(self, whole: PartitionedQueue, number: int) -> OpenQueue:
        """Return a partition of a queue. Raises StorageError."""
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
        if settings.is_stream:
            log = self._logs.open(definition, settings, number)
            return Stream(definition, settings, log, services, part_of=part_of)
        queue = Queue(definition, settings, owner, None, services, part_of=part_of)
        queue.logs = self._logs
        if not self._may_stay_unopened(definition, settings, number):
            queue.attach(self._logs.open(definition, settings, number))
        return queue

    def _may_stay_unopened(
        self, definition: QueueDefinition, settings: QueueSettings, number: int
    ) -> bool:
        """Whether nothing is to be done for a queue until it is used. Raises StorageError."""
        if self._idle and (definition.vhost, definition.name, number) in self._idle:
            return True
        may_stay = may_stay_unopened(definition, settings, self.services, number)
        return may_stay and self._logs.holds_nothing(definition, settings, number)

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

    def policy_of(self, queue: QueueDefinition) -> EffectivePolicy:
        """Return the effective policy of a queue."""
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
