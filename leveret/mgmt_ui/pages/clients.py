"""Connections, channels and consumers as rows of lists.

Connections belong to `leveret.amqp`, which this package must not import: what is read here of
channels is what every connection in `Broker.connections` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api import views

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leveret.core.statistics.statistics import Statistics
    from leveret.mgmt_ui.api.views import Row

__all__ = ["channel_row", "channels_of", "connection_row", "consumer_row", "consumers_of"]

# Client properties with a client's name, the most informative first.
NAMES_OF_CLIENTS = ("connection_name", "product")


def connection_row(client: Any, node_name: str, statistics: Statistics) -> Row:
    """Return a connection's row as in the API, with the client's name for itself and rates.

    Byte rates are those of its socket, message rates the sums over its channels.
    """
    row = views.connection_row(client, node_name)
    slots = [channel.slot for channel in channels_of([client])]
    row["receive_rate"] = statistics.rate(client, "recv_oct")
    row["send_rate"] = statistics.rate(client, "send_oct")
    row["publish_rate"] = sum(statistics.rate(slot, "publish") for slot in slots)
    row["deliver_rate"] = sum(statistics.rate(slot, "deliver_get") for slot in slots)
    properties = row["client_properties"]
    found = (properties.get(name) for name in NAMES_OF_CLIENTS)
    row["client"] = next((str(name) for name in found if name), "")
    return row


def channels_of(clients: Iterable[Any]) -> Iterator[Any]:
    """Yield the open channels of connections."""
    for client in clients:
        yield from client.channels.by_number.values()


def channel_row(channel: Any, statistics: Statistics) -> Row:
    """Return a channel's row with its rates per second."""
    connection = channel.connection
    mode = "confirm" if channel.confirms_publishes else ""
    return {
        "name": channel.name,
        "connection": str(connection.describe().endpoints),
        "number": channel.number,
        "vhost": connection.vhost.name,
        "user": connection.user,
        "mode": "transactional" if channel.is_transactional else mode,
        "consumers": len(channel.consumers),
        "prefetch": channel.consumer_prefetch,
        "global_prefetch": channel.prefetch,
        "unacknowledged": channel.unacked.count,
        "state": connection.describe().state,
        "publish_rate": statistics.rate(channel.slot, "publish"),
        "deliver_rate": statistics.rate(channel.slot, "deliver_get"),
        "ack_rate": statistics.rate(channel.slot, "ack"),
    }


def consumers_of(channels: Iterable[Any]) -> Iterator[Any]:
    """Yield the consumers of channels."""
    for channel in channels:
        yield from channel.consumers.values()


def consumer_row(consumer: Any) -> Row:
    """Return a consumer's row; a full prefetch means that the queue waits for the consumer."""
    prefetch = consumer.prefetch
    return {
        "tag": consumer.tag,
        "queue": consumer.queue.definition.name,
        "vhost": consumer.queue.definition.vhost,
        "channel": consumer.channel.name,
        "number": consumer.channel.number,
        "connection": str(consumer.channel.connection.describe().endpoints),
        "acknowledges": not consumer.no_ack,
        "prefetch": prefetch,
        "in_flight": consumer.in_flight,
        "used": consumer.in_flight / prefetch if prefetch and not consumer.no_ack else None,
        "priority": consumer.priority,
        "arguments": views.plain(consumer.arguments),
    }
