"""Metrics of Leveret's own: waiting messages, de-duplication, logs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leveret.core.settings.retry_policy import FAILURES
from leveret.features.dedup.extension import windows_of
from leveret.mgmt_ui.api.views import retries_pending, tasks_pending
from leveret.mgmt_ui.metrics.exposition import MetricFamily, MetricType
from leveret.mgmt_ui.metrics.groups import HistogramFamily, MetricGroup, counter, gauge
from leveret.mgmt_ui.metrics.labels import queue_labels, vhost_labels
from leveret.ports.counters import (
    DELIVER,
    DELIVER_NO_ACK,
    GET,
    GET_NO_ACK,
    PUBLISH,
    RECV_OCT,
    SEND_OCT,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.metrics.groups import MetricColumn
    from leveret.mgmt_ui.metrics.reading import Reading
    from leveret.ports.cluster import MemberFacts
    from leveret.ports.counters import Histogram
    from leveret.storage.log import PartitionLog
    from leveret.storage.store import FileTopicStore

__all__ = ["GROUPS", "HISTOGRAMS", "MEMBERS", "MEMORY", "PREFIX"]

PREFIX = "leveret_"


def _delayed(vhost: Vhost, reading: Reading) -> int:
    return reading.node.broker.schedules.pending_count(vhost.name)


def _delayed_of(reading: Reading) -> list[tuple[str, int]]:
    return [(vhost.name, _delayed(vhost, reading)) for vhost in reading.vhosts()]


def _duplicates(queue: DeclaredQueue) -> int:
    return sum(window.duplicates for window in windows_of(queue))


def _dedup_keys(queue: DeclaredQueue) -> int:
    return sum(window.key_count for window in windows_of(queue))


def _leads(node: MemberFacts) -> int:
    return int(node.role == "leader" and node.is_live)


def _known(number: int | None) -> float:
    """Return a number, NaN if it is not known: of a node without a link."""
    return math.nan if number is None else number


def _waiting(reading: Reading) -> int:
    return sum(room.pending_count for room in reading.node.broker.delayed_stores.opened)


_DELAYED: tuple[MetricColumn[tuple[str, int]], ...] = (
    gauge(
        "delayed_messages",
        "Delayed messages, schedules included",
        lambda told: told[1],
    ),
)

_ROOMS: tuple[MetricColumn[Reading], ...] = (
    gauge(
        "delayed_stores",
        "Open delayed-message stores: delayed messages, retries, Celery ETAs",
        lambda r: len(r.node.broker.delayed_stores.opened),
    ),
    gauge("waiting_messages", "Messages in all delayed-message stores", _waiting),
)

_QUEUE: tuple[MetricColumn[Any], ...] = (
    gauge(
        "queue_retries_pending",
        "Failed messages that wait for a retry",
        retries_pending,
    ),
    gauge("queue_eta_pending", "Celery tasks that a queue holds until their ETA", tasks_pending),
    gauge(
        "queue_messages_returned_delayed",
        "Messages requeued with a delay and not ready yet",
        lambda queue: queue.delayed_count,
    ),
    gauge("queue_dedup_keys", "Keys in a queue's de-duplication window", _dedup_keys),
)

_QUEUE_COUNTERS: tuple[MetricColumn[Any], ...] = (
    counter(
        "queue_messages_written",
        "Messages written to a queue since the node started",
        lambda queue: queue.total_usage().messages_in,
    ),
    counter(
        "queue_bytes_written",
        "Bytes of the messages written to a queue, as they are stored",
        lambda queue: queue.total_usage().bytes_in,
    ),
    counter(
        "queue_bytes_delivered",
        "Bytes of the messages delivered from a queue, as they are stored",
        lambda queue: queue.total_usage().bytes_out,
    ),
    counter(
        "queue_duplicates", "Duplicates dropped by a queue's de-duplication window", _duplicates
    ),
)


_FEATURES: tuple[MetricColumn[Reading], ...] = (
    counter(
        "handshakes_refused",
        "Connections closed because too many handshakes were pending",
        lambda r: r.node.broker.feature_counters.handshakes_refused,
    ),
    counter(
        "duplicates",
        "Duplicates dropped by de-duplication windows and producer sequence numbers",
        lambda r: r.node.broker.feature_counters.duplicates,
    ),
    counter(
        "filter_looks",
        "Records evaluated by consumer filters, streams excluded",
        lambda r: r.node.broker.feature_counters.filter_looks,
    ),
    counter(
        "filter_finds",
        "Records that matched a consumer filter, streams excluded",
        lambda r: r.node.broker.feature_counters.filter_finds,
    ),
)


def _of_vhost(*numbers: int) -> Callable[[Vhost], int]:
    return lambda vhost: sum(map(vhost.counters.value, numbers))


_VHOST: tuple[MetricColumn[Vhost], ...] = (
    counter("vhost_messages_published", "Messages published in a virtual host", _of_vhost(PUBLISH)),
    counter(
        "vhost_messages_delivered",
        "Messages delivered in a virtual host, redeliveries included",
        _of_vhost(DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK),
    ),
    counter(
        "vhost_incoming_bytes",
        "Bytes received on a virtual host's connections",
        _of_vhost(RECV_OCT),
    ),
    counter(
        "vhost_outgoing_bytes", "Bytes sent on a virtual host's connections", _of_vhost(SEND_OCT)
    ),
)


def _vhost_labels(told: tuple[str, int]) -> Mapping[str, str]:
    return {"vhost": told[0]}


def _flushes(reading: Reading) -> Histogram | None:
    instruments = reading.node.instruments
    return None if instruments is None else instruments.topics.flushes.durations


def _lag(reading: Reading) -> Histogram | None:
    instruments = reading.node.instruments
    return None if instruments is None else instruments.loop_lag


HISTOGRAMS: tuple[HistogramFamily, ...] = (
    HistogramFamily(
        MetricFamily(
            "leveret_flush_seconds",
            MetricType.HISTOGRAM,
            "Duration of log flushes to disk; many confirms share one",
        ),
        _flushes,
        units=1_000_000,
    ),
    HistogramFamily(
        MetricFamily(
            "leveret_event_loop_lag_seconds",
            MetricType.HISTOGRAM,
            "Lag of the event loop behind its timers, sampled 4 times a second",
        ),
        _lag,
        units=1_000_000,
    ),
)


def _topics(reading: Reading) -> list[FileTopicStore]:
    instruments = reading.node.instruments
    return [] if instruments is None else [instruments.topics]


def _logs(reading: Reading) -> list[PartitionLog]:
    return [log for topics in _topics(reading) for log in topics.logs()]


_STORAGE: tuple[MetricColumn[FileTopicStore], ...] = (
    counter(
        "flushed_batches",
        "Batches flushed; divided by flushes, the size of group commits",
        lambda topics: topics.flushes.batches,
    ),
    counter(
        "compaction_passes",
        "Passes of compaction over a stream that have ended well",
        lambda topics: topics.compactor.figures.passes,
    ),
    counter(
        "compaction_failures",
        "Passes of compaction over a stream that have failed",
        lambda topics: topics.compactor.figures.failures,
    ),
    counter(
        "compaction_removed_messages",
        "Messages removed by compaction",
        lambda topics: topics.compactor.figures.removed,
    ),
    counter(
        "compaction_freed_bytes",
        "Bytes freed by compaction",
        lambda topics: topics.compactor.figures.freed_bytes,
    ),
    counter("flush_failures", "Flushes that failed", lambda topics: topics.flushes.failures),
    gauge(
        "lost_messages",
        "Messages lost and not acknowledged by an operator (`leveret loss list`)",
        lambda topics: topics.losses.message_count,
    ),
    gauge(
        "losses",
        "Unacknowledged data losses of any kind",
        lambda topics: len(topics.losses.unacknowledged),
    ),
    gauge(
        "tail_cache_bytes",
        "Bytes of recent batches in memory, for consumers that keep up",
        lambda topics: topics.tail_cache.bytes,
    ),
)

_LOGS: tuple[MetricColumn[PartitionLog], ...] = (
    gauge("logs", "Open logs: queues and delayed-message stores", lambda _: 1),
    gauge("log_segments", "Segment files of all logs", lambda log: len(log.segments)),
    gauge(
        "log_bytes",
        "Bytes of all segment files",
        lambda log: sum(segment.size for segment in log.segments),
    ),
)

_MEMBERS: tuple[MetricColumn[MemberFacts], ...] = (
    gauge("cluster_node_leads", "Whether a node of the cluster leads", _leads),
    gauge(
        "cluster_node_live", "Whether a node of the cluster is live", lambda node: int(node.is_live)
    ),
    gauge(
        "cluster_node_in_sync",
        "Whether a node of the cluster has every committed message on its disk; NaN without a copy",
        lambda node: math.nan if node.role == "none" else int(node.is_in_sync and node.is_live),
    ),
    gauge(
        "cluster_node_messages_behind",
        "Messages that a node of the cluster has not on its disk yet",
        lambda node: _known(node.messages_behind),
    ),
    gauge(
        "cluster_node_seconds_behind",
        "Seconds for which a node of the cluster has not had all on its disk",
        lambda node: _known(node.ms_behind) / 1000,
    ),
    gauge(
        "cluster_node_lease_seconds",
        "Seconds for which this node surely has its session with ZooKeeper",
        lambda node: _known(node.lease_ms) / 1000,
    ),
)

# Memory as the kernel reports it.
MEMORY: MetricGroup[Any] = MetricGroup(
    "memory_breakdown",
    lambda r: r.process.memory_bytes.items(),
    (
        gauge(
            "memory_resident_bytes",
            "Resident memory by kind: anonymous, of mapped files, shared",
            lambda kind: kind[1],
        ),
    ),
    lambda kind: {"kind": kind[0]},
    always_labelled=True,
    prefix=PREFIX,
)

MEMBERS: MetricGroup[MemberFacts] = MetricGroup(
    "leveret_cluster",
    lambda r: r.members,
    _MEMBERS,
    lambda node: {"member": str(node.node)},
    always_labelled=True,
    prefix=PREFIX,
)

GROUPS: tuple[MetricGroup[Any], ...] = (
    MetricGroup(
        "leveret_delayed",
        _delayed_of,
        _DELAYED,
        _vhost_labels,
        always_labelled=True,
        prefix=PREFIX,
    ),
    MetricGroup(
        "leveret_retries",
        lambda r: [
            (reason, r.node.broker.dead_letter_counters.retries[reason])
            for reason in FAILURES.values()
        ],
        (
            counter(
                "messages_retried",
                "Failed messages scheduled for a retry",
                lambda counted: counted[1],
            ),
        ),
        lambda counted: {"reason": counted[0]},
        always_labelled=True,
        prefix=PREFIX,
    ),
    MetricGroup("leveret_features", lambda r: [r], _FEATURES, prefix=PREFIX),
    MetricGroup(
        "leveret_vhost", lambda r: r.vhosts(), _VHOST, vhost_labels, totals=(), prefix=PREFIX
    ),
    MEMBERS,
    MetricGroup("leveret_storage", _topics, _STORAGE, prefix=PREFIX),
    MetricGroup("leveret_logs", _logs, _LOGS, prefix=PREFIX, only_summed=True),
    MetricGroup("leveret_waiting", lambda r: [r], _ROOMS, prefix=PREFIX),
    MetricGroup("leveret_queue", lambda r: r.queues(), _QUEUE, queue_labels, prefix=PREFIX),
    # Never summed: a deleted queue would take its share of the sum with it.
    MetricGroup(
        "leveret_queue_counters",
        lambda r: r.queues(),
        _QUEUE_COUNTERS,
        queue_labels,
        totals=(),
        prefix=PREFIX,
    ),
)
