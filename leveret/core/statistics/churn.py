"""What comes and goes on a node: connections, channels and queues, counted since its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Churn"]

# RabbitMQ's counters by the events that they count (core.events).
COUNTED = {
    "connection.created": "connection_created",
    "connection.closed": "connection_closed",
    "channel.created": "channel_created",
    "channel.closed": "channel_closed",
    "queue.declared": "queue_declared",  # each time, also where it was there; no event tells it
    "queue.created": "queue_created",
    "queue.deleted": "queue_deleted",
}


class Churn:
    """Counts of events; events that nobody counts are ignored."""

    def __init__(self) -> None:
        self.counters = Counters()  # for the series that the sampler makes of it
        self._counts = dict.fromkeys(COUNTED.values(), 0)

    def happened(self, event: str) -> None:
        """An event was told, or would be if somebody listened."""
        name = COUNTED.get(event)
        if name is not None:
            self._counts[name] += 1

    def totals(self) -> Mapping[str, int]:
        """All counts by their names."""
        return dict(self._counts)
