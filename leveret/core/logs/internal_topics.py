"""Topics that only the broker writes to, such as delayed messages and de-duplication logs.

They are as durable as queues, one log each, stored beside those of the virtual host's queues and
deleted with it. One that belongs to a queue has that queue's incarnation, others have their virtual
host's: no log is ever stored under the name of one that was deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports import LogName
from leveret.ports.definitions import INTERNAL

if TYPE_CHECKING:
    from leveret.ports import Durability, TopicLog, TopicStore


def state_name(vhost: str, incarnation: str) -> bytes:
    """Return the name of a virtual host for entries of the state store about internal topics.

    `internal` adds nothing to it, so that entries of releases before are found.
    """
    return vhost.encode() if incarnation == INTERNAL else f"{vhost}\0{incarnation}".encode()


class InternalTopics:
    """Opens the internal topics of all virtual hosts."""

    def __init__(self, topics: TopicStore, durability: Durability) -> None:
        self._topics = topics
        self._durability = durability

    def name(self, vhost: str, topic: str, incarnation: str) -> LogName:
        """Return the name of a topic's log, by which the store recovers it."""
        return LogName(vhost, topic, incarnation, 0, self._durability)

    def settlements_name(self, vhost: str, topic: str, incarnation: str, partition: int) -> LogName:
        """Return the name of a log of what is settled of a partition."""
        return LogName(vhost, topic, incarnation, partition, self._durability, has_records=False)

    def open(self, vhost: str, topic: str, incarnation: str) -> TopicLog:
        """Open a topic, new or recovered; the caller closes or deletes it. Raises StorageError."""
        return self._topics.open(vhost, topic, incarnation, 0, self._durability)

    def open_settlements(
        self, vhost: str, topic: str, incarnation: str, partition: int
    ) -> TopicLog:
        """Open a log of what is settled of a partition, new or recovered. Raises StorageError."""
        return self._topics.open(
            vhost, topic, incarnation, partition, self._durability, has_records=False
        )

    def exists(self, vhost: str, topic: str, incarnation: str) -> bool:
        """Whether a topic was left by an earlier run, or is open."""
        return self.exists_at(vhost, topic, incarnation, 0)

    def exists_at(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether the log of a partition was left by an earlier run, or is open."""
        return self._topics.exists(vhost, topic, incarnation, partition)

    async def delete(self, vhost: str, topic: str, incarnation: str, partition: int = 0) -> None:
        """Delete a log that an earlier run has left and nobody has opened. Raises StorageError."""
        await self._topics.delete(vhost, topic, incarnation, partition)
