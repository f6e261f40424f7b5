"""Queries of RabbitMQ's public Overview dashboard (Grafana's number 10991) to Prometheus.

Two generations of it are in use: the older one reads counters of channels, the newer one the global
counters. Only the expressions are here; how they are drawn is the dashboard's business.
"""

from __future__ import annotations

import itertools

WHOSE = (
    "rabbitmq_identity_info"
    '{rabbitmq_cluster="$rabbitmq_cluster", namespace="$namespace",rabbitmq_endpoint="$endpoint"}'
)
JOIN = f" * on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node) {WHOSE}"
OLD_WHOSE = 'rabbitmq_identity_info{rabbitmq_cluster="$rabbitmq_cluster", namespace="$namespace"}'
OLD_JOIN = f" * on(instance) group_left(rabbitmq_cluster) {OLD_WHOSE}"


def _sum(metric: str, join: str = JOIN) -> str:
    return f"sum({metric}{join})"


def _rate(metric: str) -> str:
    return f"sum(rate({metric}[60s]){JOIN}) by(rabbitmq_node)"


def _sized(bound: str) -> str:
    return _sum(f'increase(rabbitmq_message_size_bytes_bucket{{le="{bound}"}}[$__range])')


BOUNDS = (
    *("100", "1000", "10000", "100000", "1000000"),
    *("10000000", "50000000", "100000000", "+Inf"),
)
SINGLE = (
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_global_publishers",
    "rabbitmq_global_consumers",
    "rabbitmq_connections",
    "rabbitmq_queues",
    "rabbitmq_channels",
)
RATES = (
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_channels_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_connections_closed_total",
)
OLD_RATES = (
    "rabbitmq_channel_messages_published_total",
    "rabbitmq_channel_messages_confirmed_total",
    "rabbitmq_channel_messages_redelivered_total",
    "rabbitmq_channel_messages_delivered_total",
    "rabbitmq_channel_messages_delivered_ack_total",
    "rabbitmq_channel_messages_unroutable_dropped_total",
    "rabbitmq_channel_messages_unroutable_returned_total",
    "rabbitmq_channel_messages_acked_total",
    "rabbitmq_channel_get_total",
    "rabbitmq_channel_get_ack_total",
    "rabbitmq_channel_get_empty_total",
)

EXPRESSIONS = (
    # At a glance.
    *map(_sum, SINGLE),
    _sum("irate(rabbitmq_global_messages_received_total[$__rate_interval])"),
    _sum("irate(rabbitmq_global_messages_delivered_total[$__rate_interval])"),
    f"count({WHOSE})",
    # Nodes.
    (
        "rabbitmq_erlang_uptime_seconds *on(instance,job) "
        f"group_left(rabbitmq_version, erlang_version) rabbitmq_build_info{JOIN}"
    ),
    (
        f"(rabbitmq_resident_memory_limit_bytes{JOIN}) -"
        f"\n(rabbitmq_process_resident_memory_bytes{JOIN})"
    ),
    f"rabbitmq_disk_space_available_bytes{JOIN}",
    f"(rabbitmq_process_max_fds{JOIN}) -\n(rabbitmq_process_open_fds{JOIN})",
    # Queued, coming and going.
    f"sum(rabbitmq_queue_messages_ready{JOIN}) by(rabbitmq_node)",
    f"sum(rabbitmq_queue_messages_unacked{JOIN}) by(rabbitmq_node)",
    *map(_rate, RATES),
    (
        "sum(rate(rabbitmq_global_messages_received_confirm_total[60s])"
        f"{JOIN} - \nrate(rabbitmq_global_messages_confirmed_total[60s]){JOIN}\n) by(rabbitmq_node)"
    ),
    (
        "sum(\n  (rate(rabbitmq_global_messages_delivered_consume_auto_ack_total[60s])"
        f"{JOIN}) +\n  (rate(rabbitmq_global_messages_delivered_consume_manual_ack_total[60s])"
        f"{JOIN})\n) by(rabbitmq_node)"
    ),
    (
        "sum (increase(rabbitmq_message_size_bytes_sum[$__range])"
        f"{JOIN}) / sum (increase(rabbitmq_message_size_bytes_count[$__range]){JOIN})"
    ),
    f"{_sized('100')} / {_sized('+Inf')}",
    *(
        f"({_sized(upper)} - {_sized(lower)}) / {_sized('+Inf')}"
        for lower, upper in itertools.pairwise(BOUNDS)
    ),
    # What exists.
    f"rabbitmq_queues{JOIN}",
    f"rabbitmq_channels{JOIN}",
    f"rabbitmq_connections{JOIN}",
    # The generation before.
    *(_sum(f"rate({metric}[60s])", OLD_JOIN) for metric in OLD_RATES),
    f"{_sum('rabbitmq_channels', OLD_JOIN)} - {_sum('rabbitmq_channel_consumers', OLD_JOIN)}",
    _sum("rabbitmq_consumers", OLD_JOIN),
    _sum("rabbitmq_build_info", OLD_JOIN),
    "rabbitmq_build_info * on(instance) group_left(rabbitmq_cluster, rabbitmq_node) " + OLD_WHOSE,
)
# How the dashboard finds what may be chosen above it.
VARIABLES = (
    "rabbitmq_identity_info",
    'rabbitmq_identity_info{namespace="$namespace"}',
    (
        'rabbitmq_identity_info{namespace="$namespace", rabbitmq_cluster="$rabbitmq_cluster", '
        'rabbitmq_endpoint!="memory-breakdown"}'
    ),
)
