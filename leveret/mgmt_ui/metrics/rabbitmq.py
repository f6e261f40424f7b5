"""RabbitMQ's metrics, under its names and with its help texts; each group is one `family=`.

Metrics without a meaning in Leveret (Erlang's processes, Raft, paged-out messages) are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret import __version__
from leveret.core.alarms import Resource
from leveret.core.queues.head_timestamp import head_timestamp
from leveret.core.settings.discard_reasons import DEATHS, Reason
from leveret.features.dead_letter.counters import DISABLED, DeathLabels
from leveret.mgmt_ui.api.views import consumer_capacity
from leveret.mgmt_ui.metrics.exposition import MetricFamily, MetricType
from leveret.mgmt_ui.metrics.groups import (
    MetricColumn,
    MetricGroup,
    counter,
    gauge,
    moment,
    untyped,
)
from leveret.mgmt_ui.metrics.labels import (
    exchange_labels,
    exchange_type_labels,
    queue_labels,
    type_label,
    vhost_labels,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.metrics.reading import Reading

__all__ = ["CLUSTER", "GROUPS", "build_info", "identity_info"]


def _itself(reading: Reading) -> list[Reading]:
    return [reading]


def _low(resource: Resource) -> Callable[[Reading], int]:
    return lambda reading: int(resource in reading.node.broker.alarms.low)


def build_info(reading: Reading) -> MetricGroup[Mapping[str, str]]:
    """Return the group with the node's product and versions."""
    configuration = reading.node.configuration
    labels = {
        "rabbitmq_version": configuration.version,
        "product_name": configuration.product,
        "product_version": configuration.version,
        "leveret_version": __version__,
    }
    return _told("build_info", "Version info of the product", labels)


def identity_info(reading: Reading, endpoint: str) -> MetricGroup[Mapping[str, str]]:
    """Return the group that identifies the node; dashboards join it to all others."""
    labels = {
        "rabbitmq_node": reading.node.name,
        "rabbitmq_cluster": reading.node.cluster_name,
        "rabbitmq_endpoint": endpoint,
    }
    return _told("identity_info", "RabbitMQ node & cluster identity info", labels)


def _told(name: str, explanation: str, labels: Mapping[str, str]) -> MetricGroup[Mapping[str, str]]:
    return MetricGroup(
        name, lambda _: [labels], (untyped(name, explanation),), dict, always_labelled=True
    )


_TOTALS: tuple[MetricColumn[Reading], ...] = (
    gauge("connections", "Connections currently open", lambda r: len(r.node.broker.connections)),
    gauge("channels", "Channels currently open", lambda r: r.channel_count),
    gauge("consumers", "Consumers currently connected", lambda r: r.consumer_count),
    gauge("queues", "Queues available", lambda r: r.queue_count),
    gauge(
        "unreachable_cluster_peers_count",
        "Number of peers in the cluster the current node cannot reach.",
        lambda _: 0,  # a single node has none
    ),
)

_NODE_COARSE: tuple[MetricColumn[Reading], ...] = (
    gauge("process_open_fds", "Open file descriptors", lambda r: r.process.open_files),
    gauge(
        "process_resident_memory_bytes",
        "Memory used in bytes",
        lambda r: r.process.resident_bytes,
    ),
    gauge(
        "disk_space_available_bytes",
        "Disk space available in bytes",
        lambda r: r.process.disk_free_bytes,
    ),
)

_NODE: tuple[MetricColumn[Reading], ...] = (
    gauge("process_max_fds", "Open file descriptors limit", lambda r: r.process.open_files_max),
    gauge(
        "resident_memory_limit_bytes",
        "Memory high watermark in bytes",
        lambda r: r.memory_bytes_max,
    ),
    gauge(
        "disk_space_available_limit_bytes",
        "Free disk space low watermark in bytes",
        lambda r: r.node.configuration.disk_free_bytes_min,
    ),
    gauge("erlang_uptime_seconds", "Node uptime", lambda r: r.process.uptime_seconds),
)

_LOGINS: tuple[MetricColumn[Reading], ...] = (
    counter(
        "auth_attempts",
        "Total number of authorization attempts",
        lambda r: (
            r.node.broker.feature_counters.logins_accepted
            + r.node.broker.feature_counters.logins_refused
        ),
    ),
    counter(
        "auth_attempts_succeeded",
        "Total number of successful authentication attempts",
        lambda r: r.node.broker.feature_counters.logins_accepted,
    ),
    counter(
        "auth_attempts_failed",
        "Total number of failed authentication attempts",
        lambda r: r.node.broker.feature_counters.logins_refused,
    ),
)

_ALARMS: tuple[MetricColumn[Reading], ...] = (
    gauge(
        "alarms_free_disk_space_watermark",
        "is 1 if free disk space watermark alarm is in effect",
        _low(Resource.DISK),
    ),
    gauge(
        "alarms_memory_used_watermark",
        "is 1 if VM memory watermark alarm is in effect",
        _low(Resource.MEMORY),
    ),
)

_QUEUE_COARSE: tuple[MetricColumn[QueueLike], ...] = (
    gauge(
        "queue_messages_ready",
        "Messages ready to be delivered to consumers",
        lambda queue: queue.message_count,
    ),
    gauge(
        "queue_messages_unacked",
        "Messages delivered to consumers but not yet acknowledged",
        lambda queue: queue.leased_count,
    ),
    gauge(
        "queue_messages",
        "Sum of ready and unacknowledged messages - total queue depth",
        lambda queue: queue.message_count + queue.leased_count,
    ),
)

_QUEUE: tuple[MetricColumn[QueueLike], ...] = (
    gauge("queue_consumers", "Consumers on a queue", lambda queue: queue.consumer_count),
)

_QUEUE_MORE: tuple[MetricColumn[QueueLike], ...] = (
    MetricColumn(
        MetricFamily("queue_consumer_capacity", MetricType.GAUGE, "Consumer capacity"),
        consumer_capacity,
        is_summed=False,
    ),
    MetricColumn(
        MetricFamily("queue_consumer_utilisation", MetricType.GAUGE, "Same as consumer capacity"),
        consumer_capacity,
        is_summed=False,
    ),
    gauge("queue_process_memory_bytes", "Memory in bytes used by a queue", lambda q: q.held_bytes),
    moment(
        "queue_head_message_timestamp",
        "Timestamp of the first message in the queue, if any",
        head_timestamp,
    ),
)


def _dead_lettered(reason: str, explanation: str) -> MetricGroup[Any]:
    return MetricGroup(
        f"dead_lettered_{reason}",
        lambda reading: [
            (death, reading.node.broker.dead_letter_counters.deaths[death])
            for death in _DEATHS
            if death.reason == reason
        ],
        (
            counter(
                f"messages_dead_lettered_{reason}",
                f"Total number of messages dead-lettered due to {explanation}",
                lambda counted: counted[1],
            ),
        ),
        lambda counted: {
            "queue_type": type_label(counted[0].queue_type),
            "dead_letter_strategy": counted[0].strategy,
        },
        always_labelled=True,
        prefix="rabbitmq_global_",
    )


# All combinations, so that each is 0 before the first of its kind. Streams have no dead letters.
_DEATHS = [
    DeathLabels(queue_type, strategy, reason)
    for queue_type in ("classic", "quorum")
    for strategy in (DISABLED, "at_most_once", "at_least_once")
    for reason in DEATHS
]

GROUPS: tuple[MetricGroup[Any], ...] = (
    MetricGroup("totals", _itself, _TOTALS),
    MetricGroup("node_coarse_metrics", _itself, _NODE_COARSE),
    MetricGroup("node_metrics", _itself, _NODE),
    MetricGroup("auth_attempt_metrics", _itself, _LOGINS),
    MetricGroup("alarms", _itself, _ALARMS),
    MetricGroup("queue_coarse_metrics", lambda r: r.queues(), _QUEUE_COARSE, queue_labels),
    MetricGroup("queue_metrics", lambda r: r.queues(), (*_QUEUE, *_QUEUE_MORE), queue_labels),
    _dead_lettered(Reason.MAX_LENGTH, "overflow drop-head or reject-publish-dlx"),
    _dead_lettered(Reason.EXPIRED, "message TTL exceeded"),
    _dead_lettered(Reason.DELIVERY_LIMIT, "delivery-limit exceeded"),
    _dead_lettered(Reason.REJECTED, "basic.reject or basic.nack"),
)

# Only if named: values of the cluster, not to be summed over its nodes.
CLUSTER: tuple[MetricGroup[Any], ...] = (
    MetricGroup("queue_consumer_count", lambda r: r.queues(), _QUEUE, queue_labels),
    MetricGroup(
        "vhost_status",
        lambda r: r.vhosts(),
        (gauge("vhost_status", "Whether a given vhost is running", lambda _: 1),),
        vhost_labels,
        prefix="rabbitmq_cluster_",
    ),
    MetricGroup(
        "exchange_names",
        lambda r: r.exchanges(),
        (gauge("exchange_name", "Enumerates exchanges without any additional info", lambda _: 1),),
        exchange_labels,
        prefix="rabbitmq_cluster_",
    ),
    MetricGroup(
        "exchange_bindings",
        lambda r: r.exchanges(),
        (
            gauge(
                "exchange_bindings",
                "Number of bindings for an exchange",
                lambda exchange: len(exchange.outgoing),
            ),
        ),
        exchange_type_labels,
        prefix="rabbitmq_cluster_",
    ),
)
