"""Message statistics by channel and exchange, and by channel and queue.

RabbitMQ's `publishes`, `deliveries` and `incoming`, shown with one channel, queue or exchange. It
has them where `rates_mode` is `detailed`, and then also the number of messages from each exchange
to each queue. That is not counted here, as it would have to be done for each message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.views import HANDED_OUT, added
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leveret.core.clients import ChannelFlows, Client
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.views import Row, Shown
    from leveret.ports.counters import Counters

__all__ = ["flows_of_channel", "flows_of_exchange", "flows_of_queue"]

# RabbitMQ's but for `confirm`: a range of confirmed tags does not say where they were published.
PUBLISHED = ("publish", "return_unroutable", "drop_unroutable")


@dataclass(frozen=True, slots=True)
class CounterHolder:
    """Object with counters."""

    counters: Counters


def flows_of_channel(client: Client, number: int, shown: Shown) -> Row:
    """Return statistics of one channel by exchange published to and by queue delivered from."""
    vhost = client.vhost
    publishes, deliveries = [], []
    for flows in client.channel_flows():
        if flows.number != number:
            continue
        for name, counters in flows.published.items():
            if name in vhost.exchanges and counters.counted():
                exchange = {"name": name, "vhost": vhost.name}
                publishes.append({"exchange": exchange, "stats": _published(counters, shown)})
        for name, ways in flows.handed_out.items():
            if _has_counted(ways):
                queue = {"name": name, "vhost": vhost.name}
                deliveries.append({"queue": queue, "stats": _handed_out(ways, shown)})
    return {"publishes": publishes, "deliveries": deliveries}


async def flows_of_queue(
    clients: Iterable[Client], vhost: Vhost, name: str, shown: Shown, node_name: str
) -> Row:
    """Return statistics of a queue by channel delivered to. Scans all connections."""
    found = []
    for client, flows in await _flows(clients, vhost):
        ways = flows.handed_out.get(name, ())
        if _has_counted(ways):
            channel = views.channel_details(client, flows.number, node_name)
            found.append({"channel_details": channel, "stats": _handed_out(ways, shown)})
    return {"deliveries": found}


async def flows_of_exchange(
    clients: Iterable[Client], vhost: Vhost, name: str, shown: Shown, node_name: str
) -> Row:
    """Return statistics of an exchange by publishing channel. Scans all connections."""
    found = []
    for client, flows in await _flows(clients, vhost):
        counters = flows.published.get(name)
        if counters is not None and counters.counted():
            channel = views.channel_details(client, flows.number, node_name)
            found.append({"channel_details": channel, "stats": _published(counters, shown)})
    return {"incoming": found}


async def _flows(clients: Iterable[Client], vhost: Vhost) -> list[tuple[Client, ChannelFlows]]:
    found: list[tuple[Client, ChannelFlows]] = []
    async for part in in_yielding_chunks([client for client in clients if client.vhost is vhost]):
        found += [(client, flows) for client in part for flows in client.channel_flows()]
    return found


def _has_counted(ways: Sequence[Counters]) -> bool:
    return any(counters.counted() for counters in ways)


def _published(counters: Counters, shown: Shown) -> Row:
    return shown.messages(CounterHolder(counters), PUBLISHED)


def _handed_out(ways: Sequence[Counters], shown: Shown) -> Row:
    stats: Row = added([shown.messages(CounterHolder(counters), HANDED_OUT) for counters in ways])
    return stats
