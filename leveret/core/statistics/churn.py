"""Churn: connections, channels and queues created and closed on a node since its start."""

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
    "queue.declared": "queue_declared",  # each declaration, even of an existing queue; not an event
    "queue.created": "queue_created",
    "queue.deleted": "queue_deleted",
}


class Churn:
    """Counters of events; events not in COUNTED are ignored."""

    def __init__(self) -> None:
        self.counters = Counters()  # holder of the sampler's series
        self._counts = dict.fromkeys(COUNTED.values(), 0)

    def happened(self, event: str) -> None:
        """Count an event, whether or not it is published."""
        name = COUNTED.get(event)
        if name is not None:
            self._counts[name] += 1

    def totals(self) -> Mapping[str, int]:
        """Return all counts by name."""
        return dict(self._counts)
