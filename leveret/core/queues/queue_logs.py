"""Logs of a node's queues in its store: recovered, opened and deleted by the queue's definition.

A durable queue without messages that does nothing by itself is left unopened until it is used: most
of a node's queues may be idle. Such a queue is a definition, its settings and its counters; it has
no log, no delivery state and no file in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports import Durability, LogName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import TopicLog, TopicStore
    from leveret.ports.definitions import QueueDefinition

__all__ = ["UNOPENED_BYTES", "QueueLogs", "may_stay_unopened"]

UNOPENED_BYTES = 2_300  # with its definition and its binding to the default exchange


class QueueLogs:
    """Logs of queues in `topics`. `durability` is that of durable queues."""

    def __init__(self, topics: TopicStore, durability: Durability) -> None:
        self._topics = topics
        self._durability = durability

    def name(self, definition: QueueDefinition, number: int) -> LogName:
        """Return the name of a partition's log."""
        durability = self._durability if definition.durable else Durability.NONE
        return LogName(
            definition.vhost, definition.topic, definition.incarnation, number, durability
        )

    def must_recover(self, queue: OpenQueue) -> bool:
        """Whether a queue's log must be recovered before it is opened."""
        return self._topics.must_recover(*self._name_of(queue)[:4])

    async def recover(self, queues: Iterable[OpenQueue]) -> None:
        """Recover the logs of queues. Raises StorageError."""
        await self._topics.recover(map(self._name_of, queues))

    def open(self, definition: QueueDefinition, settings: QueueSettings, number: int) -> TopicLog:
        """Open the log of a partition, new or recovered. Raises StorageError."""
        name = self.name(definition, number)
        return self._topics.open(*name[:5], retention=settings.retention)

    async def delete(self, queue: OpenQueue) -> None:
        """Delete the log of a queue that was never opened. Raises StorageError."""
        await self._topics.delete(*self._name_of(queue)[:4])

    def holds_nothing(
        self, definition: QueueDefinition, settings: QueueSettings, number: int
    ) -> bool:
        """Whether a log is known to hold nothing that anybody can read. Raises StorageError."""
        log = self.name(definition, number)[:4]
        if settings.retention is not None:  # what it keeps is to be deleted in time
            return not self._topics.exists(*log)
        return self._topics.leave_unopened(*log)

    def _name_of(self, queue: OpenQueue) -> LogName:
        return self.name(queue.definition, queue.number)


def may_stay_unopened(
    definition: QueueDefinition, settings: QueueSettings, services: QueueServices, number: int
) -> bool:
    """Whether a queue or partition without messages has nothing to do by itself."""
    return (
        definition.durable
        and not settings.is_stream
        and settings.expires_ms is None
        and settings.publish_rate is None
        and settings.consume_rate is None
        and not any(kind.acts_alone(definition, settings, number) for kind in services.extensions)
    )
