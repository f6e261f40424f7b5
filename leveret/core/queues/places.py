"""Questions that are asked of a queue's partitions, whichever nodes lead them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.logs.log_writer import present_place

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue

__all__ = ["purge_place", "purge_places"]


async def purge_places(queue: DeclaredQueue) -> int:
    """Purge all partitions of a queue; return the number of messages.

    Raises ChannelError 404 for a partition without a leader.
    """
    return sum([await purge_place(place) for place in queue.places])


async def purge_place(place: Any) -> int:
    """Purge one partition, as `purge_places`."""
    place = present_place(place)
    count: int = place.purge() if place.is_led_here else await place.purge()
    return count
