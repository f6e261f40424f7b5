"""Labels of the broker's objects in Prometheus, as RabbitMQ's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.clients import Client
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.exchange import Exchange
    from leveret.core.vhost import Vhost
    from leveret.features.groups.groups import ConsumerGroup
    from leveret.mgmt_ui.metrics.reading import ChannelTraffic

__all__ = [
    "PROTOCOL",
    "client_labels",
    "consumer_group_labels",
    "delivery_labels",
    "exchange_labels",
    "exchange_type_labels",
    "publish_labels",
    "queue_labels",
    "queue_type_labels",
    "type_label",
    "vhost_labels",
]

PROTOCOL = "amqp091"


def queue_labels(queue: QueueLike) -> Mapping[str, str]:
    """Return the labels of a queue."""
    return {"vhost": queue.definition.vhost, "queue": queue.definition.name}


def consumer_group_labels(group: ConsumerGroup) -> Mapping[str, str]:
    """Return the labels of a consumer group."""
    return {"vhost": group.group.vhost, "queue": group.name, "group": group.group.name}


def client_labels(client: Client) -> Mapping[str, str]:
    """Return the labels of a connection; in RabbitMQ this is an Erlang process."""
    return {"connection": str(client.describe().endpoints)}


def exchange_labels(exchange: Exchange) -> Mapping[str, str]:
    """Return the labels of an exchange."""
    return {"vhost": exchange.definition.vhost, "exchange": exchange.name}


def publish_labels(flow: ChannelTraffic) -> Mapping[str, str]:
    """Return the labels of a channel's publishes to an exchange."""
    return {"channel": flow.channel, "vhost": flow.vhost, "exchange": flow.name}


def delivery_labels(flow: ChannelTraffic) -> Mapping[str, str]:
    """Return the labels of deliveries from a queue to a channel."""
    return {"channel": flow.channel, "vhost": flow.vhost, "queue": flow.name}


def exchange_type_labels(exchange: Exchange) -> Mapping[str, str]:
    """Return the labels of an exchange, with its type."""
    return {**exchange_labels(exchange), "type": exchange.definition.type}


def vhost_labels(vhost: Vhost) -> Mapping[str, str]:
    """Return the labels of a virtual host."""
    return {"vhost": vhost.name}


def type_label(queue_type: str) -> str:
    """Return the label of a queue type: the name of RabbitMQ's module for it."""
    return f"rabbit_{queue_type}_queue"


def queue_type_labels(of_type: tuple[str, object]) -> Mapping[str, str]:
    """Return the labels of a queue type's counters."""
    return {"protocol": PROTOCOL, "queue_type": type_label(of_type[0])}
