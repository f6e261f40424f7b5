"""Opening and reconfiguring queues according to their definitions and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.queues.unopened_queue import UnopenedQueue, may_stay_unopened
from leveret.core.settings.arguments import type_of
from leveret.core.settings.policies import NO_POLICY
from leveret.core.settings.queue_settings import TOPIC_SUFFIX, QueueSettings, resolve_settings
from leveret.ports import Durability

if TYPE_CHECKING:
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy, Policies
    from leveret.ports import TopicLog, TopicStore
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
        self._topics = topics
        self._durability = durability
        self._policies = policies
        self.services = services  # of queues that are opened from now on
        self._open_log = self._open_log_of  # one for all unopened queues
        # What was resolved last, and what of: shared by equal queues, since there may be many.
        self._latest = QueueSettings()
        self._latest_of: tuple[object, ...] = ()
        self._latest_policy = NO_POLICY

    def open(self, definition: QueueDefinition, owner: object | None) -> OpenQueue:
        """Return a queue, opened unless it holds nothing that is known. Raises StorageError."""
        policy = self.policy_of(definition)
        settings = self._resolve(definition, policy)
        queue: OpenQueue
        if self._may_stay_unopened(definition, settings):
            queue = UnopenedQueue(definition, settings, self.services, self._open_log)
        elif settings.is_stream:
            log = self._open_log(definition, settings)
            queue = Stream(definition, settings, log, self.services)
        else:
            log = self._open_log(definition, settings)
            queue = Queue(definition, settings, owner, log, self.services)
        queue.policy = policy
        return queue

    def _may_stay_unopened(self, definition: QueueDefinition, settings: QueueSettings) -> bool:
        """Whether nothing is to be done for a queue until it is used. Raises StorageError."""
        if not may_stay_unopened(definition, settings, self.services):
            return False
        log = definition.vhost, definition.topic, definition.incarnation, 0
        if settings.retention is not None:  # what it keeps is to be deleted in time
            return not self._topics.exists(*log)
        return self._topics.leave_unopened(*log)

    def _open_log_of(self, definition: QueueDefinition, settings: QueueSettings) -> TopicLog:
        """Create or recover the log of a queue. Raises StorageError."""
        return self._topics.open(
            definition.vhost,
            definition.topic,
            definition.incarnation,
            0,
            self._durability if definition.durable else Durability.NONE,
            retention=settings.retention,
        )

    def reconfigure(self, queue: OpenQueue, *, reorder: bool = False) -> None:
        """Apply the present definition and policy to a queue.

        With `reorder`, changes of the message order are applied too, which the queue must allow
        now.
        """
        queue.policy = self.policy_of(queue.definition)
        settings = self._resolve(queue.definition, queue.policy)
        if reorder and isinstance(queue, Queue):
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
