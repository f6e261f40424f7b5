"""Topics that only the broker writes to: what waits for its time, what was seen before.

They are kept as durably as queues are, one log each, beside those of the virtual host's queues, and
go with the virtual host. No queue's log is met by theirs, as a queue's incarnation is unlike any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.ports import Durability, TopicLog, TopicStore

INCARNATION = "internal"


class InternalTopics:
    """Opens the internal topics of all virtual hosts."""

    def __init__(self, topics: TopicStore, durability: Durability) -> None:
        self._topics = topics
        self._durability = durability

    def open(self, vhost: str, topic: str, incarnation: str = INCARNATION) -> TopicLog:
        """Create or recover a topic; whoever opens it closes or deletes it. May raise StorageError.

        A topic that belongs to one queue carries that queue's incarnation.
        """
        return self._topics.open(vhost, topic, incarnation, 0, self._durability)

    def exists(self, vhost: str, topic: str, incarnation: str = INCARNATION) -> bool:
        """Whether an earlier run has left such a topic, or it is open."""
        return self._topics.exists(vhost, topic, incarnation, 0)
