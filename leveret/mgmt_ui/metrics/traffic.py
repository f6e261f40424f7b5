"""Traffic and churn of a node, under RabbitMQ's names.

Sums are the node's own counters, which include deleted objects: a sum over existing ones would fall
when something is deleted, and every rate over it would be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.metrics.exposition import MetricFamily, MetricType
from leveret.mgmt_ui.metrics.groups import HistogramFamily, MetricGroup, counter, gauge
from leveret.mgmt_ui.metrics.labels import (
    PROTOCOL,
    client_labels,
    delivery_labels,
    exchange_labels,
    publish_labels,
    queue_labels,
    queue_type_labels,
)
from leveret.ports.counters import (
    ACK,
    CONFIRM,
    DELIVER,
    DELIVER_NO_ACK,
    DROP_UNROUTABLE,
    GET,
    GET_EMPTY,
    GET_NO_ACK,
    PUBLISH,
    PUBLISH_IN,
    PUBLISH_OUT,
    RECEIVED_CONFIRM,
    RECV_CNT,
    RECV_OCT,
    REDELIVER,
    RETURN_UNROUTABLE,
    SEND_CNT,
    SEND_OCT,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.mgmt_ui.metrics.groups import MetricColumn
    from leveret.mgmt_ui.metrics.reading import ChannelTraffic, Reading
    from leveret.ports.counters import Counters

__all__ = ["GROUPS", "HISTOGRAMS"]


def _node(*numbers: int) -> Callable[[Reading], int]:
    return lambda reading: sum(map(reading.counters.value, numbers))


def _own(*numbers: int) -> Callable[[Any], int]:
    """Return a function that sums some counters of an object."""
    return lambda counted: sum(map(counted.counters.value, numbers))


def _of_type(*numbers: int) -> Callable[[tuple[str, Counters]], int]:
    return lambda of_type: sum(map(of_type[1].value, numbers))


def _of_flow(*numbers: int) -> Callable[[ChannelTraffic], int]:
    return lambda flow: sum(ways.value(number) for ways in flow.counters for number in numbers)


def _churn(name: str, explanation: str, counted: str) -> MetricColumn[Reading]:
    return counter(name, explanation, lambda reading: reading.churn[counted])


_CHURN = (
    _churn("connections_opened", "Total number of connections opened", "connection_created"),
    _churn(
        "connections_closed",
        "Total number of connections closed or terminated",
        "connection_closed",
    ),
    _churn("channels_opened", "Total number of channels opened", "channel_created"),
    _churn("channels_closed", "Total number of channels closed", "channel_closed"),
    _churn("queues_declared", "Total number of queues declared", "queue_declared"),
    _churn("queues_created", "Total number of queues created", "queue_created"),
    _churn("queues_deleted", "Total number of queues deleted", "queue_deleted"),
)

RETURNED = (
    "Total number of messages published as mandatory into an exchange and returned to the "
    "publisher as unroutable"
)
DROPPED = (
    "Total number of messages published as non-mandatory into an exchange and dropped as unroutable"
)

# Counters of publishers, by protocol, of which there is one.
_RECEIVED: tuple[MetricColumn[Reading], ...] = (
    counter(
        "messages_received",
        "Total number of messages received from publishers",
        _node(PUBLISH),
    ),
    counter(
        "messages_received_confirm",
        "Total number of messages received from publishers expecting confirmations",
        _node(RECEIVED_CONFIRM),
    ),
    counter(
        "messages_routed",
        "Total number of messages routed to queues or streams",
        _node(PUBLISH_OUT),
    ),
    counter(
        "messages_confirmed", "Total number of messages confirmed to publishers", _node(CONFIRM)
    ),
    counter("messages_unroutable_dropped", DROPPED, _node(DROP_UNROUTABLE)),
    counter("messages_unroutable_returned", RETURNED, _node(RETURN_UNROUTABLE)),
    gauge("publishers", "Publishers currently connected", lambda r: r.publisher_count),
    gauge("consumers", "Consumers currently connected", lambda r: r.consumer_count),
)

DELIVERED = "Total number of messages delivered to consumers"
BY_CONSUME, BY_GET = f"{DELIVERED} using basic.consume with", f"{DELIVERED} using basic.get with"
AUTOMATIC, MANUAL = "automatic acknowledgment", "manual acknowledgment"

# Counters of consumers, by queue type.
_HANDED_OUT: tuple[MetricColumn[tuple[str, Counters]], ...] = (
    counter("messages_delivered", DELIVERED, _of_type(DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK)),
    counter(
        "messages_delivered_consume_auto_ack",
        f"{BY_CONSUME} {AUTOMATIC}",
        _of_type(DELIVER_NO_ACK),
    ),
    counter("messages_delivered_consume_manual_ack", f"{BY_CONSUME} {MANUAL}", _of_type(DELIVER)),
    counter("messages_delivered_get_auto_ack", f"{BY_GET} {AUTOMATIC}", _of_type(GET_NO_ACK)),
    counter("messages_delivered_get_manual_ack", f"{BY_GET} {MANUAL}", _of_type(GET)),
    counter(
        "messages_get_empty",
        "Total number of times basic.get operations fetched no message",
        _of_type(GET_EMPTY),
    ),
    counter(
        "messages_redelivered",
        "Total number of messages redelivered to consumers",
        _of_type(REDELIVER),
    ),
    counter(
        "messages_acknowledged",
        "Total number of messages acknowledged by consumers",
        _of_type(ACK),
    ),
)

PUBLISHED = "Total number of messages published into an exchange on a channel"
_CHANNEL_EXCHANGE: tuple[MetricColumn[Reading], ...] = (
    counter("channel_messages_published", PUBLISHED, _node(PUBLISH)),
    counter(
        "channel_messages_confirmed",
        "Total number of messages published into an exchange and confirmed on the channel",
        _node(CONFIRM),
    ),
    counter("channel_messages_unroutable_returned", RETURNED, _node(RETURN_UNROUTABLE)),
    counter("channel_messages_unroutable_dropped", DROPPED, _node(DROP_UNROUTABLE)),
)

# A range of confirmed messages does not say to which exchanges they were published.
_PUBLISHES: tuple[MetricColumn[ChannelTraffic], ...] = (
    counter("channel_messages_published", PUBLISHED, _of_flow(PUBLISH)),
    counter("channel_messages_unroutable_returned", RETURNED, _of_flow(RETURN_UNROUTABLE)),
    counter("channel_messages_unroutable_dropped", DROPPED, _of_flow(DROP_UNROUTABLE)),
)

# By prefix and reader: RabbitMQ has the same metrics for channels and for queues.
_FETCHED = "Total number of messages fetched with basic.get in"
_SENT = "Total number of messages delivered to consumers in"
_DELIVERIES = (
    ("get_ack", f"{_FETCHED} manual acknowledgement mode", GET),
    ("get", f"{_FETCHED} automatic acknowledgement mode", GET_NO_ACK),
    ("messages_delivered_ack", f"{_SENT} manual acknowledgement mode", DELIVER),
    ("messages_delivered", f"{_SENT} automatic acknowledgement mode", DELIVER_NO_ACK),
    ("messages_redelivered", "Total number of messages redelivered to consumers", REDELIVER),
    ("messages_acked", "Total number of messages acknowledged by consumers", ACK),
    (
        "get_empty",
        "Total number of times basic.get operations fetched no message",
        GET_EMPTY,
    ),
)


def _delivery_columns(
    of: str, read: Callable[[int], Callable[[Any], int]]
) -> tuple[MetricColumn[Any], ...]:
    return tuple(
        counter(f"{of}_{name}", explanation, read(number))
        for name, explanation, number in _DELIVERIES
    )


def _exchanges(
    returned: Callable[[Any], int], dropped: Callable[[Any], int], published: Callable[[Any], int]
) -> tuple[MetricColumn[Any], ...]:
    return (
        counter(
            "exchange_messages_published",
            "Total number of messages published into an exchange",
            published,
        ),
        counter("exchange_messages_unroutable_returned", RETURNED, returned),
        counter("exchange_messages_unroutable_dropped", DROPPED, dropped),
    )


def _connections(read: Callable[[int], Callable[[Any], int]]) -> tuple[MetricColumn[Any], ...]:
    return (
        counter(
            "connection_incoming_bytes",
            "Total number of bytes received on a connection",
            read(RECV_OCT),
        ),
        counter(
            "connection_outgoing_bytes",
            "Total number of bytes sent on a connection",
            read(SEND_OCT),
        ),
    )


_PACKETS: tuple[MetricColumn[Any], ...] = (
    counter(
        "connection_incoming_packets",
        "Total number of packets received on a connection",
        _own(RECV_CNT),
    ),
    counter(
        "connection_outgoing_packets",
        "Total number of packets sent on a connection",
        _own(SEND_CNT),
    ),
    gauge("connection_channels", "Channels on a connection", lambda client: client.channel_count),
)
_CHANNELS: tuple[MetricColumn[Reading], ...] = (
    gauge("connection_channels", "Channels on a connection", lambda r: r.channel_count),
)

GROUPS: tuple[MetricGroup[Any], ...] = (
    MetricGroup("connection_churn_metrics", lambda r: [r], _CHURN),
    MetricGroup(
        "global_protocol",
        lambda r: [r],
        _RECEIVED,
        lambda _: {"protocol": PROTOCOL},
        always_labelled=True,
        prefix="rabbitmq_global_",
    ),
    MetricGroup(
        "global_queue_type",
        lambda r: r.node.broker.statistics.by_queue_type.items(),
        _HANDED_OUT,
        queue_type_labels,
        always_labelled=True,
        prefix="rabbitmq_global_",
    ),
    # Channels have sums only, unless the family is named: each is a new series.
    MetricGroup(
        "channel_exchange_metrics",
        lambda r: r.publish_statistics_by_exchange(),
        _PUBLISHES,
        publish_labels,
        totals=_CHANNEL_EXCHANGE,
        only_named=True,
    ),
    MetricGroup(
        "channel_queue_metrics",
        lambda r: r.delivery_statistics_by_queue(),
        _delivery_columns("channel", _of_flow),
        delivery_labels,
        totals=_delivery_columns("channel", _node),
        only_named=True,
    ),
    MetricGroup(
        "channel_metrics",
        lambda _: (),
        (),
        totals=(gauge("channel_consumers", "Consumers on a channel", lambda r: r.consumer_count),),
    ),
    MetricGroup(
        "queue_delivery_metrics",
        lambda r: r.queues(),
        _delivery_columns("queue", _own),
        queue_labels,
        totals=_delivery_columns("queue", _node),
    ),
    MetricGroup(
        "exchange_metrics",
        lambda r: r.exchanges(),
        _exchanges(_own(RETURN_UNROUTABLE), _own(DROP_UNROUTABLE), _own(PUBLISH_IN)),
        exchange_labels,
        totals=_exchanges(_node(RETURN_UNROUTABLE), _node(DROP_UNROUTABLE), _node(PUBLISH)),
    ),
    MetricGroup(
        "connection_coarse_metrics",
        lambda r: r.clients(),
        _connections(_own),
        client_labels,
        totals=_connections(_node),
    ),
    MetricGroup(
        "connection_metrics", lambda r: r.clients(), _PACKETS, client_labels, totals=_CHANNELS
    ),
)

HISTOGRAMS: tuple[HistogramFamily, ...] = (
    HistogramFamily(
        MetricFamily(
            "rabbitmq_message_size_bytes",
            MetricType.HISTOGRAM,
            "Size of messages received from publishers",
        ),
        lambda reading: reading.node.broker.statistics.message_sizes,
        labels={"protocol": PROTOCOL},
    ),
    HistogramFamily(
        MetricFamily(
            "leveret_delivery_latency_seconds",
            MetricType.HISTOGRAM,
            "Time from when a message was taken in to its first delivery, streams left out",
        ),
        lambda reading: reading.node.broker.statistics.latency,
        units=1000,
    ),
)
