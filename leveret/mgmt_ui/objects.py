"""Objects of a node for lists, and their numbers; looked at in slices."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leveret.core.clients import ChannelFacts, Client, ConsumerFacts
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.vhost import Vhost

    OpenChannel: TypeAlias = tuple[Client, ChannelFacts]
    OpenConsumer: TypeAlias = tuple[Client, ChannelFacts, ConsumerFacts]

__all__ = ["message_counts", "object_counts", "open_channels", "open_consumers", "queues_of"]


def queues_of(hosts: Iterable[Vhost]) -> list[QueueLike]:
    """Return all queues of some virtual hosts; fast even for a hundred thousand queues."""
    return list(chain.from_iterable(host.queues.values() for host in hosts))


async def open_channels(clients: Iterable[Client]) -> list[OpenChannel]:
    """Return all channels of some connections."""
    return [
        (client, channel)
        async for part in in_yielding_chunks(clients)
        for client in part
        for channel in client.channel_facts()
    ]


async def open_consumers(clients: Iterable[Client]) -> list[OpenConsumer]:
    """Return all consumers of some connections."""
    return [
        (client, channel, consumer)
        async for part in in_yielding_chunks(clients)
        for client in part
        for channel in client.channel_facts()
        for consumer in channel.consumers
    ]


async def message_counts(hosts: Iterable[Vhost]) -> dict[str, int]:
    """Return the summed message counts of the queues of some virtual hosts."""
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    async for part in in_yielding_chunks(queues_of(hosts)):
        for queue in part:
            for name, count in views.queue_counts(queue).items():
                totals[name] += count
    return totals


async def object_counts(hosts: Sequence[Vhost], clients: Sequence[Client]) -> dict[str, int]:
    """Return the numbers of objects in some virtual hosts, and of the connections given."""
    channels = consumers = 0
    async for some in in_yielding_chunks(clients):
        channels += sum(client.channel_count for client in some)
    async for queues in in_yielding_chunks(queues_of(hosts)):
        consumers += sum(queue.consumer_count for queue in queues)
    return {
        "channels": channels,
        "connections": len(clients),
        "consumers": consumers,
        "exchanges": sum(len(host.exchanges) for host in hosts),
        "queues": sum(len(host.queues) for host in hosts),
    }
