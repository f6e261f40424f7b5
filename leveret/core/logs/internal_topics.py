"""Topics that only the broker writes to, such as delayed messages and de-duplication logs.

They are as durable as queues, one log each, stored beside those of the virtual host's queues and
deleted with it. Their names cannot collide with queues, whose incarnations are different.

A topic that belongs to a partition of a queue has that queue's incarnation. In a cluster it has the
partition's replicas and leader (see `PlacedLogs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from leveret.ports import Durability, TopicLog, TopicStore

__all__ = ["INCARNATION", "InternalTopics", "PartitionName", "PlacedLogs"]

INCARNATION = "internal"


class PartitionName(NamedTuple):
    """A partition of a queue, in its virtual host."""

    incarnation: str
    number: int


class PlacedLogs(Protocol):
    """Logs that belong to the partitions of a cluster's queues."""

    def has_replicas(self, incarnation: str, number: int) -> bool:
        """Whether a partition has replicas, and so what belongs to it."""
        ...

    def has_side_log(self, incarnation: str, number: int, topic: str) -> bool:
        """Whether such a partition has a log of this name."""
        ...

    def open_side_log(self, incarnation: str, number: int, topic: str) -> TopicLog:
        """Return the log, created on demand, if this node leads it. Raises StorageError."""
        ...


class InternalTopics:
    """Opens the internal topics of all virtual hosts; a cluster has `placed` logs of queues."""

    def __init__(
        self, topics: TopicStore, durability: Durability, placed: PlacedLogs | None = None
    ) -> None:
        self._topics = topics
        self._durability = durability
        self._placed = placed

    def open(self, vhost: str, topic: str) -> TopicLog:
        """Create or recover a topic, which the caller closes or deletes. Raises StorageError."""
        return self._topics.open(vhost, topic, INCARNATION, 0, self._durability)

    def exists(self, vhost: str, topic: str) -> bool:
        """Whether a topic was left by an earlier run, or is open."""
        return self._topics.exists(vhost, topic, INCARNATION, 0)

    # -- of partitions

    def has_replicas(self, partition: PartitionName) -> bool:
        """Whether what belongs to a partition has replicas: another node may have led it before."""
        return self._placed is not None and self._placed.has_replicas(*partition)

    def open_of(self, partition: PartitionName, vhost: str, topic: str) -> TopicLog:
        """Create or recover a topic of a partition, whose name is in its own. Raises StorageError.

        The caller deletes it, and closes it unless it has replicas.
        """
        if self._placed is not None and self.has_replicas(partition):
            return self._placed.open_side_log(*partition, topic)
        return self._topics.open(vhost, topic, partition.incarnation, 0, self._durability)

    def exists_of(self, partition: PartitionName, vhost: str, topic: str) -> bool:
        """Whether a partition has such a topic, opened or not."""
        if self._placed is not None and self.has_replicas(partition):
            return self._placed.has_side_log(*partition, topic)
        return self._topics.exists(vhost, topic, partition.incarnation, 0)

    # -- of consumer groups

    def open_settlements(
        self, vhost: str, topic: str, incarnation: str, partition: int
    ) -> TopicLog:
        """Create or recover a log of what is settled of a partition. May raise StorageError."""
        return self._topics.open(
            vhost, topic, incarnation, partition, self._durability, has_records=False
        )

    def exists_at(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether the log of a partition was left by an earlier run, or is open."""
        return self._topics.exists(vhost, topic, incarnation, partition)
