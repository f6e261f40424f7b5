"""Opening and reconfiguring queues according to their definitions and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.settings.arguments import type_of
from leveret.core.settings.queue_settings import QueueSettings, resolve_settings
from leveret.ports import Durability

if TYPE_CHECKING:
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy, Policies
    from leveret.ports import TopicStore
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
        self._latest = QueueSettings()  # the settings resolved last, shared by equal queues

    def open(self, definition: QueueDefinition, owner: object | None) -> OpenQueue:
        """Open a queue and create or recover its log. Raises StorageError."""
        policy = self.policy_of(definition)
        settings = self._resolve(definition, policy)
        log = self._topics.open(
            definition.vhost,
            definition.topic,
            definition.incarnation,
            0,
            self._durability if definition.durable else Durability.NONE,
            retention=settings.retention,
        )
        queue: OpenQueue
        if settings.retention is None:
            queue = Queue(definition, settings, owner, log, self.services)
        else:
            queue = Stream(definition, settings, log, self.services)
        queue.policy = policy
        return queue

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
        return self._policies.for_queue(queue.vhost, queue.name, type_of(queue.arguments))

    def _resolve(self, definition: QueueDefinition, policy: EffectivePolicy) -> QueueSettings:
        """Return a queue's settings, shared with other queues if equal, since there may be many."""
        settings = resolve_settings(definition, policy.definition)
        if settings != self._latest:
            self._latest = settings
        return self._latest
