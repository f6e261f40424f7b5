"""Rows of the HTTP API: objects of the broker as plain values under RabbitMQ's names.

Read-only and synchronous: one call takes some microseconds, whatever the object holds. Fields
without a meaning in Leveret are left out. Statistics are included where `shown` is given.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote_plus

from leveret.core.definitions.document import user_row
from leveret.core.json_fields import plain
from leveret.core.queues.head_timestamp import head_timestamp
from leveret.core.settings.partitioning import PARTITIONS, layout_of
from leveret.core.statistics.sampler import LENGTHS
from leveret.core.statistics.series import BASIC, DETAILED, GLOBAL
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.retry.retrying import RetryTopic
from leveret.mgmt_ui.api.problems import bad_request
from leveret.ports.counters import RECV_CNT, SEND_CNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leveret.core.clients import ChannelFacts, Client, ConsumerFacts, Endpoints
    from leveret.core.routing.bindings import Binding, QueueLike
    from leveret.core.routing.exchange import Exchange
    from leveret.core.statistics.series import SampleRetention
    from leveret.core.statistics.statistics import Counted, Statistics
    from leveret.core.vhost import Vhost
    from leveret.ports.definitions import (
        Arguments,
        PermissionDefinition,
        QueueDefinition,
        TopicPermissionDefinition,
    )

__all__ = [
    "HANDED_OUT",
    "PUBLISHED",
    "Ranges",
    "Row",
    "Shown",
    "added",
    "binding_row",
    "channel_details",
    "channel_row",
    "connection_row",
    "consumer_capacity",
    "consumer_row",
    "consumer_utilisation",
    "exchange_row",
    "permission_row",
    "plain",
    "queue_basics",
    "queue_counts",
    "queue_row",
    "retention_policies",
    "retries_pending",
    "tasks_pending",
    "topic_permission_row",
    "user_row",
    "vhost_row",
    "waiting_counts",
]

Row: TypeAlias = dict[str, Any]

REPLICATED = ("quorum", "stream")  # types that have members: here this node alone
ARGUMENTS_HASH_BYTES = 16  # enough for the few bindings of one key


def queue_basics(queue: QueueLike, node_name: str) -> Row:
    """Return a queue's properties without counts (`disable_stats=true`)."""
    definition = queue.definition
    row: Row = {
        "name": definition.name,
        "vhost": definition.vhost,
        "type": definition.arguments.get("x-queue-type", "classic"),
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "exclusive": definition.exclusive,
        "arguments": plain(definition.arguments),
        **_partitions(definition),
        "node": node_name,
        "state": "paused" if definition.paused else "running",
        "created_at": definition.created_ms or None,  # None: by a release that did not say
        "created_by": definition.created_by or None,
    }
    if row["type"] in REPLICATED:
        row |= {"leader": node_name, "members": [node_name], "online": [node_name]}
    if definition.paused:
        row["paused"] = str(definition.paused)
    if definition.aliases:
        row["aliases"] = list(definition.aliases)
    if queue.owner is not None:
        row["owner_pid_details"] = _owner(queue.owner)  # type: ignore[arg-type]  # a connection
    return row


def _partitions(definition: QueueDefinition) -> Row:
    """Return the partitions that a queue has now: its arguments are those it was declared with."""
    if PARTITIONS not in definition.arguments:
        return {}
    return {"partitions": list(layout_of(definition).present)}


def queue_counts(queue: QueueLike) -> Row:
    """Return a queue's message counts."""
    ready, leased = queue.message_count, queue.leased_count
    return {
        "messages": ready + leased + queue.delayed_count,
        "messages_ready": ready,
        "messages_unacknowledged": leased,
    }


def waiting_counts(queue: QueueLike) -> Row:
    """Return counts of a queue's messages that are not ready: delayed, retries, dead letters."""
    return {
        "messages_delayed": queue.delayed_count,  # given back for later; part of `messages`
        "messages_waiting_for_retry": retries_pending(queue),
        "messages_waiting_for_eta": tasks_pending(queue),
        "dead_letters_waiting": queue.dead_letters_waiting,  # part of the unacknowledged ones
    }


def retries_pending(queue: QueueLike) -> int:
    """Number of failed messages that wait for a retry to a queue."""
    topics = [part.extension(RetryTopic) for part in queue.partitions]
    return sum(topic.pending_count for topic in topics if topic is not None)


def tasks_pending(queue: QueueLike) -> int:
    """Number of Celery tasks that a queue holds until their ETA."""
    holds = [part.extension(EtaHold) for part in queue.partitions]
    return sum(hold.pending_count for hold in holds if hold is not None)


def queue_row(queue: QueueLike, node_name: str, shown: Shown | None = None) -> Row:
    """Return a queue's whole row."""
    counts = queue_counts(queue)
    return {
        **queue_basics(queue, node_name),
        **(counts if shown is None else _queue_statistics(queue, counts, shown)),
        **waiting_counts(queue),
        "consumers": queue.consumer_count,
        "policy": queue.policy.policy,
        "operator_policy": queue.policy.operator_policy,
        "effective_policy_definition": dict(queue.policy.definition),
    }


def _queue_statistics(queue: QueueLike, counts: Row, shown: Shown) -> Row:
    idle_since = shown.statistics.idle_since(queue)
    capacity = consumer_utilisation(queue, shown.statistics)
    heads = [head for part in queue.partitions if (head := head_timestamp(part)) is not None]
    made = min(heads, default=None)
    return {
        **shown.lengths(queue, counts),
        "memory": queue.held_bytes,
        **({} if made is None else {"head_message_timestamp": made}),
        "message_stats": shown.message_stats(queue, ("publish",), HANDED_OUT),
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        **({} if idle_since is None else {"idle_since": iso(idle_since)}),
    }


def consumer_utilisation(queue: QueueLike, statistics: Statistics) -> float:
    """Return the share of the last minute in which consumers had capacity, from 0 to 1."""
    if not queue.consumer_count:
        return 0.0
    share = statistics.consumer_utilisation(queue)
    return consumer_capacity(queue) if share is None else share


def consumer_capacity(queue: QueueLike) -> float:
    """Return 1 if consumers take messages as they come, 0 if some wait now.

    Scrapers average it over any time they like.
    """
    return float(queue.consumer_count > 0 and not queue.message_count)


def iso(time_ms: int) -> str:
    """Return a time as RabbitMQ formats it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _owner(client: Client) -> Row:
    ends = client.describe().endpoints
    return {"name": str(ends), "peer_host": ends.peer_host, "peer_port": ends.peer_port}


def exchange_row(exchange: Exchange, shown: Shown | None = None) -> Row:
    """Return an exchange's row."""
    definition = exchange.definition
    row = {
        "name": definition.name,
        "vhost": definition.vhost,
        "type": definition.type,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "internal": definition.internal,
        "arguments": plain(definition.arguments),
    }
    if shown is not None:
        row["message_stats"] = shown.message_stats(exchange, ("publish_in", "publish_out"))
    return row


def binding_row(binding: Binding) -> Row:
    """Return a binding's row; `properties_key` is unique among bindings between the same ends."""
    definition = binding.definition
    return {
        "source": definition.source,
        "vhost": definition.vhost,
        "destination": definition.destination,
        "destination_type": definition.destination_type,
        "routing_key": definition.routing_key,
        "arguments": plain(definition.arguments),
        "properties_key": properties_key(definition.routing_key, definition.arguments),
    }


def properties_key(routing_key: str, arguments: Arguments) -> str:
    """Return routing key, tilde and hash of the arguments; each only where needed."""
    quoted = quote_plus(routing_key, safe="").replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    text = json.dumps(plain(arguments), sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()[:ARGUMENTS_HASH_BYTES]
    return f"{quoted}~{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def connection_row(client: Client, node_name: str, shown: Shown | None = None) -> Row:
    """Return a connection's row."""
    facts = client.describe()
    return {
        **({} if shown is None else _socket_statistics(client, shown)),
        "name": str(facts.endpoints),
        "node": node_name,
        "vhost": client.vhost.name,
        "user": client.user,
        "user_who_performed_action": client.user,
        "state": facts.state,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": facts.mechanism,
        "ssl": facts.endpoints.is_secure,
        "connected_at": facts.connected_at_ms,
        "channels": facts.channel_count,
        "channel_max": facts.channel_max,
        "frame_max": facts.frame_bytes_max,
        "timeout": facts.heartbeat_seconds,
        "client_properties": plain(facts.client_properties),
        **_ends(facts.endpoints),
    }


def channel_row(
    client: Client, channel: ChannelFacts, node_name: str, shown: Shown | None = None
) -> Row:
    """Return a channel's row."""
    return {
        "name": f"{client.describe().endpoints} ({channel.number})",
        "number": channel.number,
        "node": node_name,
        "vhost": client.vhost.name,
        "user": client.user,
        "user_who_performed_action": client.user,
        "state": "running",
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": channel.unacknowledged,
        "messages_unconfirmed": channel.unconfirmed,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "confirm": channel.confirms,
        "transactional": channel.transactional,
        "connection_details": _owner(client),
        **(
            {}
            if shown is None
            else {"message_stats": shown.message_stats(channel, PUBLISHED, HANDED_OUT)}
        ),
    }


def consumer_row(
    client: Client, channel: ChannelFacts, consumer: ConsumerFacts, node_name: str
) -> Row:
    """Return a consumer's row."""
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": consumer.queue, "vhost": client.vhost.name},
        "channel_details": channel_details(client, channel.number, node_name),
        "ack_required": not consumer.no_ack,
        "prefetch_count": consumer.prefetch,
        "messages_unacknowledged": consumer.in_flight,
        "arguments": plain(consumer.arguments),
    }


def channel_details(client: Client, number: int, node_name: str) -> Row:
    """Return the fields that identify a channel in other rows."""
    connection = _owner(client)
    return {
        "name": f"{connection['name']} ({number})",
        "number": number,
        "node": node_name,
        "user": client.user,
        "connection_name": connection["name"],
        "peer_host": connection["peer_host"],
        "peer_port": connection["peer_port"],
    }


def _socket_statistics(client: Client, shown: Shown) -> Row:
    counters = client.counters
    return {
        **shown.octets(client),
        "recv_cnt": counters.value(RECV_CNT),
        "send_cnt": counters.value(SEND_CNT),
    }


def _ends(ends: Endpoints) -> Row:
    return {
        "peer_host": ends.peer_host,
        "peer_port": ends.peer_port,
        "host": ends.host,
        "port": ends.port,
    }


def vhost_row(vhost: Vhost, counts: Row, node_name: str, shown: Shown | None = None) -> Row:
    """Return a virtual host's row; `counts` are the sums of its queues."""
    definition = vhost.definition
    described = {
        "description": definition.description,
        "tags": list(definition.tags),
        "default_queue_type": definition.default_queue_type,
    }
    return {
        "name": definition.name,
        **described,
        "metadata": described,
        "creates_queues": definition.creates_queues,
        "tracing": vhost.traced,
        "cluster_state": {node_name: "running"},
        **(counts if shown is None else _vhost_statistics(vhost, counts, shown)),
    }


def _vhost_statistics(vhost: Vhost, counts: Row, shown: Shown) -> Row:
    return {
        **shown.lengths(vhost, counts),
        **shown.octets(vhost),
        "message_stats": shown.message_stats(vhost, PUBLISHED, HANDED_OUT),
    }


def permission_row(permission: PermissionDefinition) -> Row:
    """Return a permission's row."""
    return {
        "user": permission.user,
        "vhost": permission.vhost,
        "configure": permission.configure,
        "write": permission.write,
        "read": permission.read,
    }


def topic_permission_row(permission: TopicPermissionDefinition) -> Row:
    """Return a topic permission's row."""
    return {
        "user": permission.user,
        "vhost": permission.vhost,
        "exchange": permission.exchange,
        "write": permission.write,
        "read": permission.read,
    }


SAMPLES_MAX = 2_000  # of one counter in one answer: a week by five minutes
AGE_SECONDS_MAX = 7 * 24 * 3600

PUBLISHED = ("publish", "confirm", "return_unroutable", "drop_unroutable")
HANDED_OUT = (
    *("get", "get_no_ack", "deliver", "deliver_no_ack"),
    *("redeliver", "ack", "deliver_get", "get_empty"),
)
CHURN = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_declared", "queue_created", "queue_deleted"),
)


@dataclass(frozen=True, slots=True)
class Range:
    """Range of samples: from `age_s` seconds ago on, `incr_s` seconds apart."""

    age_s: int
    incr_s: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of samples that a query asks for; None: no samples."""

    msg_rates: Range | None = None
    lengths: Range | None = None
    data_rates: Range | None = None
    node_stats: Range | None = None

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Ranges:
        """Parse the ranges of a query string. Raises ApiError 400."""
        names = ("msg_rates", "lengths", "data_rates", "node_stats")
        return cls(*(_range(parameters, name) for name in names))


def _range(parameters: Mapping[str, str], name: str) -> Range | None:
    age, incr = parameters.get(f"{name}_age"), parameters.get(f"{name}_incr")
    if age is None or incr is None:
        return None
    if not all(text.isascii() and text.isdigit() and len(text) <= 9 for text in (age, incr)):
        raise bad_request(f"{name}_age and {name}_incr are numbers of seconds")
    age_s, incr_s = int(age), int(incr)
    if not 0 < incr_s <= age_s <= AGE_SECONDS_MAX or age_s // incr_s > SAMPLES_MAX:
        raise bad_request(
            f"{name}_age is at most {AGE_SECONDS_MAX} seconds, and {SAMPLES_MAX} times {name}_incr"
        )
    return Range(age_s, incr_s)


@dataclass(frozen=True, slots=True)
class Shown:
    """Statistics to show, and with which ranges of samples."""

    statistics: Statistics
    ranges: Ranges

    def messages(self, subject: Counted | None, names: Sequence[str]) -> dict[str, Any]:
        """Return message counters of a subject, or of the node (None)."""
        return self._rated(subject, names, self._counted(subject), self.ranges.msg_rates)

    def message_stats(self, subject: Counted, *groups: Sequence[str]) -> dict[str, Any]:
        """Return the groups of message counters that are not all zero, as RabbitMQ does."""
        counted = self._counted(subject)
        names = [
            name for group in groups if any(counted.get(name) for name in group) for name in group
        ]
        return self._rated(subject, names, counted, self.ranges.msg_rates)

    def octets(self, subject: Counted) -> dict[str, Any]:
        """Return bytes received and sent on sockets."""
        names = ("recv_oct", "send_oct")
        return self._rated(subject, names, self._counted(subject), self.ranges.data_rates)

    def lengths(self, subject: Counted | None, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return message counts of queues; `counts` are the current ones."""
        return self._rated(subject, LENGTHS, counts, self.ranges.lengths)

    def churn(self) -> dict[str, Any]:
        """Return the churn counters: connections, channels and queues created and closed."""
        churn = self.statistics.churn
        return self._rated(churn, CHURN, churn.totals(), self.ranges.msg_rates)

    def node(self, gauges: Mapping[str, int]) -> dict[str, Any]:
        """Return the node's resource usage, with `gauges` as current values, and its churn."""
        statistics, wanted = self.statistics, self.ranges.node_stats
        return {
            **self._rated(statistics.process, list(gauges), gauges, wanted),
            **self._rated(statistics.churn, CHURN, statistics.churn.totals(), wanted),
        }

    def _counted(self, subject: Counted | None) -> Mapping[str, int]:
        return self.statistics.totals() if subject is None else self.statistics.of(subject)

    def _rated(
        self,
        subject: Counted | None,
        names: Sequence[str],
        totals: Mapping[str, int],
        wanted: Range | None,
    ) -> dict[str, Any]:
        history: Sequence[tuple[int, tuple[int, ...]]] = ()
        if wanted is not None:
            history = self.statistics.history(subject, names, wanted.age_s, wanted.incr_s)
        row: dict[str, Any] = {}
        for i, name in enumerate(names):
            rate = self.statistics.rate(subject, name)
            samples = [(time_ms, values[i]) for time_ms, values in history]
            row[name] = totals.get(name, 0)
            row[f"{name}_details"] = {"rate": rate, **sampled(samples)}
        return row


def sampled(samples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return samples and their averages; empty without samples."""
    if not samples:
        return {}
    told: dict[str, Any] = {
        "samples": [{"sample": value, "timestamp": ms} for ms, value in reversed(samples)]
    }
    if len(samples) > 1:
        (first_ms, first), (last_ms, last) = samples[0], samples[-1]
        told["avg_rate"] = (last - first) * 1000 / (last_ms - first_ms)
        told["avg"] = sum(value for _, value in samples) / len(samples)
    return told


def added(rows: Sequence[Any]) -> Any:
    """Return the sum of rows of one form; shared timestamps are not added."""
    first, *others = rows
    if isinstance(first, dict):
        return {
            name: first[name] if name == "timestamp" else added([row[name] for row in rows])
            for name in first
        }
    if isinstance(first, list):
        return [added(each) for each in zip(first, *others, strict=True)]
    return first + sum(others)


def retention_policies() -> dict[str, list[int]]:
    """Return the sample retention times, in seconds."""
    policies = {"global": GLOBAL, "basic": BASIC, "detailed": DETAILED}
    return {name: _ages(retentions) for name, retentions in policies.items()}


def _ages(retentions: Iterable[SampleRetention]) -> list[int]:
    return [retention.age_ms // 1000 for retention in retentions]
