"""Values read from a node for one scrape: the process, some counts, and the objects."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.mgmt_ui.process import read_process
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from leveret.core.clients import Client
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.exchange import Exchange
    from leveret.core.vhost import Vhost
    from leveret.features.groups.groups import ConsumerGroup
    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.mgmt_ui.process import ProcessFigures
    from leveret.ports.cluster import MemberFacts
    from leveret.ports.counters import Counters

__all__ = ["EVERYTHING", "ChannelTraffic", "Reading", "Scope", "take_reading"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Virtual hosts and queues to report; None: all. Exact names: see decision 0031."""

    vhosts: frozenset[str] | None = None
    queues: frozenset[str] | None = None


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class ChannelTraffic:
    """Counters between a channel and an exchange or queue, both by name."""

    channel: str
    vhost: str
    name: str
    counters: Sequence[Counters]


@dataclass(frozen=True, slots=True)
class Reading:
    """Snapshot of a node for one scrape. Objects are read when their lines are made."""

    node: ManagedNode
    process: ProcessFigures
    memory_bytes_max: int  # above which publishers are held
    channel_count: int
    publisher_count: int
    consumer_count: int
    counters: Counters  # of the whole node
    churn: Mapping[str, int]
    scope: Scope
    members: Sequence[MemberFacts] = ()  # of the node's cluster

    def vhosts(self) -> Iterator[Vhost]:
        """Yield the virtual hosts within the scope."""
        for vhost in list(self.node.broker.vhosts.values()):
            if self.scope.vhosts is None or vhost.name in self.scope.vhosts:
                yield vhost

    def queues(self) -> Iterator[QueueLike]:
        """Yield the queues within the scope."""
        wanted = self.scope.queues
        for vhost in self.vhosts():
            queues = vhost.queues
            if wanted is None:
                yield from list(queues.values())
            else:
                yield from [queues[name] for name in sorted(wanted) if name in queues]

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        """Yield the consumer groups of the queues within the scope."""
        vhosts, queues = self.scope.vhosts, self.scope.queues
        for group in self.node.broker.groups.all():
            is_wanted = vhosts is None or group.group.vhost in vhosts
            if is_wanted and (queues is None or group.name in queues):
                yield group

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the exchanges of the virtual hosts within the scope."""
        for vhost in self.vhosts():
            yield from list(vhost.exchanges.values())

    def clients(self) -> list[Client]:
        """Return the connections to the virtual hosts within the scope."""
        wanted = self.scope.vhosts
        return [
            client
            for client in self.node.broker.connections
            if wanted is None or client.vhost.name in wanted
        ]

    def publish_statistics_by_exchange(self) -> Iterator[ChannelTraffic]:
        """Yield the counters of publishes by channel and exchange."""
        for client in self.clients():
            for flows in client.channel_flows():
                channel = f"{client.describe().endpoints} ({flows.number})"
                for name, counters in flows.published.items():
                    if name in client.vhost.exchanges:
                        yield ChannelTraffic(channel, client.vhost.name, name, (counters,))

    def delivery_statistics_by_queue(self) -> Iterator[ChannelTraffic]:
        """Yield the counters of deliveries by channel and queue within the scope."""
        wanted = self.scope.queues
        for client in self.clients():
            for flows in client.channel_flows():
                channel = f"{client.describe().endpoints} ({flows.number})"
                for name, ways in flows.handed_out.items():
                    if wanted is None or name in wanted:
                        yield ChannelTraffic(channel, client.vhost.name, name, ways)

    @property
    def queue_count(self) -> int:
        """Number of queues on the node."""
        return sum(len(vhost.queues) for vhost in self.node.broker.vhosts.values())


async def take_reading(node: ManagedNode, scope: Scope = EVERYTHING) -> Reading:
    """Read a node's values. Takes a pass over its queues and connections, in slices."""
    configuration, broker = node.configuration, node.broker
    channels = publishers = consumers = 0
    async for clients in in_yielding_chunks(list(broker.connections)):
        channels += sum(client.channel_count for client in clients)
        publishers += sum(client.publisher_count for client in clients)
    for vhost in list(broker.vhosts.values()):
        async for queues in in_yielding_chunks(list(vhost.queues.values())):
            consumers += sum(queue.consumer_count for queue in queues)
    figures = await asyncio.to_thread(read_process, configuration.data_dir)
    return Reading(
        node,
        figures,
        int(configuration.memory_fraction_max * figures.memory_bytes_total),
        channels,
        publishers,
        consumers,
        broker.statistics.node(),
        broker.statistics.churn.totals(),
        scope,
        () if node.context.cluster is None else await node.context.cluster.members(),
    )
