"""Settings of a queue, resolved from its arguments and its policy.

Resolved when a queue is opened and again whenever a policy changes (`Queue.reconfigure`). Values
are valid: arguments were checked at declaration, policies when they were set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from leveret.core.settings.arguments import EXPIRY_MS_MAX, QUEUE_TYPE, RATE_MAX, window_ms
from leveret.core.settings.discard_reasons import DEATHS, Reason
from leveret.core.settings.partitioning import BY_KEY, MESSAGE_GROUP, Partitioning, partitioning_of
from leveret.core.settings.retry_policy import RETRY_ARGUMENTS, RetryPolicy, retry_policy_of
from leveret.core.settings.stream_offsets import duration_ms, interval_ms
from leveret.ports import Compaction, Retention
from leveret.ports.definitions import Paused
from leveret.ports.fields import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.ports.definitions import Arguments, QueueDefinition

# A queue with this suffix is, or may become, the dead-letter topic of the queue named before it.
TOPIC_SUFFIX = ".dlq"
NO_POLICY: Mapping[str, Any] = {}

# Default delivery limit of quorum queues: such a message makes its consumers fail.
DELIVERY_LIMIT = 20
# Highest priority that a quorum queue distinguishes, and its default.
QUORUM_PRIORITY_MAX = 31
QUORUM_PRIORITY = 4
QUORUM_COPIES_MIN = 2  # what is confirmed survives a machine
# Default retention of streams: long enough for a holiday, short enough for a disk.
STREAM_AGE_MS_MAX = 14 * 86_400_000
# How long a compacted stream keeps tombstones: as in Kafka, a day for readers to catch up.
TOMBSTONES_MS = 24 * 3_600_000


BURST_PARTS_MAX = 20  # the smallest burst is this fraction of the messages of a second

# Policy keys that make a queue discard messages after failures.
GIVES_UP = frozenset(
    {*RETRY_ARGUMENTS, "dead-letter-topic", "delivery-limit", "group-delivery-limit"}
)


class Overflow(StrEnum):
    """Overflow policy of a full queue."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class DeadLetterStrategy(StrEnum):
    """Whether a dead letter is settled before or after its targets have committed it."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"


# Reasons for the dead-letter topic; shared by all queues, as a set takes 216 bytes.
ALL_DEATHS = frozenset(DEATHS)
UNHELPED_DEATHS = frozenset({Reason.REJECTED, Reason.DELIVERY_LIMIT})
LIMITED_DEATHS = frozenset({Reason.DELIVERY_LIMIT})
NO_DEATHS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """Delay before returned messages are ready again.

    It may apply to messages that `failed`, i.e. that their consumer failed to process, and to those
    merely `returned`.
    """

    failed: bool
    returned: bool
    min_ms: int
    max_ms: int = EXPIRY_MS_MAX

    def applies(self, *, failed: bool) -> bool:
        """Whether the delay applies to this kind of return."""
        return self.failed if failed else self.returned

    def after(self, count: int) -> int:
        """Return the delay in ms after `count` returns (0: not counted)."""
        return min(self.min_ms * max(count, 1), self.max_ms)


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` messages, 0 for none at all; after a quiet period `burst` of them at once."""

    per_second: int
    burst: int


def rate_of(values: Mapping[str, int], what: str) -> Rate | None:
    """Return the rate given by `WHAT-rate` and `WHAT-burst`; None without a rate.

    A negative number counts as absent. The default burst is the messages of one second, at least
    one. It is never less than those of 50 ms: shorter pauses would block and notify a limited
    client hundreds of times a second. Values are capped at RATE_MAX.
    """
    per_second = min(values.get(f"{what}-rate", -1), RATE_MAX)
    if per_second < 0:
        return None
    burst = min(values.get(f"{what}-burst", -1), RATE_MAX)
    least = max(per_second // BURST_PARTS_MAX, 1)
    return Rate(per_second, max(burst if burst > 0 else per_second, least))


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of one queue. None: without that limit or feature."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None  # of the queue itself, while it is unused
    max_length: int | None = None  # ready messages
    max_length_bytes: int | None = None  # of the bodies of ready messages
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None  # "" is the default exchange
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: DeadLetterStrategy = DeadLetterStrategy.AT_MOST_ONCE
    # Reasons for which messages go to the queue's dead-letter topic; only without an exchange.
    dead_letter_topic: frozenset[str] = frozenset()
    max_priority: int | None = None  # higher priorities count as this one
    default_priority: int = 0  # of a message without a priority
    returns_first: bool = False  # requeued messages before all others, in order of return
    group_ordering: bool = False  # at most one message of a group is leased
    single_active: bool = False
    single_active_by_priority: bool = False  # a consumer of higher priority takes over
    delivery_limit: int | None = None  # maximum number of returns of a message
    group_delivery_limit: int | None = None  # of returns by the members of a consumer group
    retry_delay: RetryDelay | None = None  # of requeued messages
    retry: RetryPolicy | None = None  # of messages that failed
    counts_deliveries: bool = False  # deliveries carry the number of returns
    consumer_timeout_ms: int | None = None  # None: the node's
    visibility_timeout_ms: int | None = None  # unsettled messages are requeued after this
    celery_eta: bool = False  # whether messages are delayed until the ETA in their headers
    dedup_window_ms: int | None = None  # within which no message is stored twice
    publish_rate: Rate | None = None  # of publishes
    consume_rate: Rate | None = None  # of deliveries, to all consumers together
    copies_min: int = 1  # nodes that must be in sync, as far as there are so many
    waits_for_copies: bool = True  # whether a confirm waits for them, or for this node's disk only
    is_stream: bool = False  # records stay for any number of readers
    retention: Retention | None = None  # None: settled messages are not kept
    retention_waits_for: tuple[str, ...] = ()  # groups that must have read what is deleted
    # Groups: what all of them have settled counts as settled in the queue, if it has a retention.
    retention_settles: tuple[str, ...] = ()
    is_paused: bool = False  # whether deliveries are paused
    partitioning: Partitioning | None = None  # None: the queue has one log

    def of_partition(self) -> QueueSettings:
        """Return the settings of one of the queue's partitions: without those of the whole."""
        return replace(
            self, expires_ms=None, publish_rate=None, consume_rate=None, partitioning=None
        )

    @property
    def is_limited(self) -> bool:
        """Whether the queue has a length limit."""
        return self.max_length is not None or self.max_length_bytes is not None

    def retries(self, reason: str) -> bool:
        """Whether messages that fail for `reason` are retried."""
        return self.retry is not None and reason in self.retry.on

    def keeps(self, reason: str) -> bool:
        """Whether messages discarded for `reason` are retried or dead-lettered."""
        return self.retries(reason) or self.dead_letters(reason)

    def dead_letters(self, reason: str) -> bool:
        """Whether messages that die for `reason` are dead-lettered."""
        return self.dead_letter_exchange is not None or reason in self.dead_letter_topic

    @property
    def rejects(self) -> bool:
        """Whether the queue refuses publishes when full."""
        return self.is_limited and self.overflow is not Overflow.DROP_HEAD


def resolve_settings(
    definition: QueueDefinition, policy: Mapping[str, Any] = NO_POLICY
) -> QueueSettings:
    """Resolve the settings of a queue; `policy` has the keys of policies, without `x-`.

    The queue's own arguments override its policy; for times and lengths the smaller one counts.
    """
    if definition.name.endswith(TOPIC_SUFFIX):
        # A policy for all queues must not dead-letter dead letters again, to topics of topics.
        policy = {key: value for key, value in policy.items() if key not in GIVES_UP}
    settings = _resolve(definition, policy)
    if settings.retention is not None and not definition.durable:
        settings = replace(settings, retention=None)  # by a policy; its log is not kept
    if definition.paused is Paused.NOTHING:
        return settings
    settings = replace(settings, is_paused=True)
    if definition.paused is Paused.DELIVERIES:
        return settings
    # Publishers to a queue paused for publishes are answered as if it were full.
    return replace(settings, max_length=0, max_length_bytes=None, overflow=Overflow.REJECT_PUBLISH)


@dataclass(frozen=True, slots=True)
class Stated:
    """Stated arguments and policy of a queue, looked up by policy key; None if absent."""

    arguments: Arguments
    policy: Mapping[str, Any]

    def __call__(self, key: str) -> Any:
        """Return the value of a key: the queue's argument, else its policy."""
        return _of_64_bits(self.arguments.get(f"x-{key}", self.policy.get(key)))

    def least(self, key: str, choose: Callable[[int, int], int] = min) -> int | None:
        """Return the smaller of both values; `choose` replaces min where special values exist."""
        own, given = self.arguments.get(f"x-{key}"), self.policy.get(key)
        if own is None or given is None:
            least = own if given is None else given
        else:
            least = choose(own, given)
        return None if least is None else _of_64_bits(least)

    def rate(self, what: str) -> Rate | None:
        """Return the smaller rate and the smaller burst."""
        values = {}
        for key in (f"{what}-rate", f"{what}-burst"):
            number = self.least(key)
            values[key] = -1 if number is None else number
        return rate_of(values, what)


def _of_64_bits(value: Any) -> Any:
    """Limit a stored number to 64 bits: earlier releases accepted larger ones."""
    return min(value, INT64_MAX) if isinstance(value, int) else value


def _resolve(definition: QueueDefinition, policy: Mapping[str, Any]) -> QueueSettings:
    settings = _of_kind(definition, Stated(definition.arguments, policy))
    return settings if definition.durable else replace(settings, copies_min=1)


def _of_kind(definition: QueueDefinition, stated: Stated) -> QueueSettings:
    kind = definition.arguments.get(QUEUE_TYPE)
    if kind == "stream":
        return _of_stream(stated)
    if kind == "quorum":
        is_topic = definition.name.endswith(TOPIC_SUFFIX)
        return _of_quorum_queue(stated, None if is_topic else DELIVERY_LIMIT)
    return _of_classic_queue(stated)


def _of_stream(stated: Stated) -> QueueSettings:
    return QueueSettings(
        is_stream=True,
        copies_min=_copies_min(stated, 1),
        waits_for_copies=_waits_for_copies(stated),
        group_delivery_limit=_group_delivery_limit(stated, None),
        retention=_stream_retention(stated),
        retention_waits_for=tuple(stated("retention-waits-for") or ()),
        partitioning=partitioning_of(stated.arguments),
        dedup_window_ms=_dedup_window_ms(stated),
        publish_rate=stated.rate("publish"),
        consume_rate=stated.rate("consume"),
    )


def _of_classic_queue(stated: Stated) -> QueueSettings:
    limit = stated.least("delivery-limit", _looser)
    own_limit = _delivery_limit(limit, None)
    group_limit = _group_delivery_limit(stated, own_limit)
    settings = replace(
        _of_any_queue(stated),
        overflow=Overflow(stated("overflow") or Overflow.DROP_HEAD),
        max_priority=stated.arguments.get("x-max-priority") or None,
        delivery_limit=own_limit,
        group_delivery_limit=group_limit,
        counts_deliveries=limit is not None,
        copies_min=_copies_min(stated, 1),
        waits_for_copies=_waits_for_copies(stated),
    )
    is_limited = limit is not None or group_limit is not None
    return _with_dead_letters(settings, stated, limited=is_limited)


def _of_quorum_queue(stated: Stated, default_limit: int | None) -> QueueSettings:
    settings = _of_any_queue(stated)
    limit = _delivery_limit(stated.least("delivery-limit", _looser), default_limit)
    settings = replace(
        settings,
        overflow=_quorum_overflow(stated("overflow")),
        max_priority=QUORUM_PRIORITY_MAX,
        default_priority=QUORUM_PRIORITY,
        returns_first=True,
        single_active_by_priority=settings.single_active,
        delivery_limit=limit,
        group_delivery_limit=_group_delivery_limit(stated, limit),
        retry_delay=_retry_delay(stated),
        counts_deliveries=True,
        copies_min=_copies_min(stated, QUORUM_COPIES_MIN),
        waits_for_copies=_waits_for_copies(stated),
    )
    settings = _with_dead_letters(settings, stated, limited=False)
    # A queue that drops its head cannot promise that nothing is lost.
    if settings.dead_letter_exchange is None or settings.overflow is not Overflow.REJECT_PUBLISH:
        return settings
    strategy = stated("dead-letter-strategy") or DeadLetterStrategy.AT_MOST_ONCE
    return replace(settings, dead_letter_strategy=DeadLetterStrategy(strategy))


def _of_any_queue(stated: Stated) -> QueueSettings:
    """Return the settings common to classic and quorum queues."""
    return QueueSettings(
        message_ttl_ms=stated.least("message-ttl"),
        expires_ms=stated.least("expires"),
        max_length=stated.least("max-length"),
        max_length_bytes=stated.least("max-length-bytes"),
        group_ordering=_orders_groups(stated),
        single_active=bool(stated.arguments.get("x-single-active-consumer")),
        retry=retry_policy_of(stated),
        consumer_timeout_ms=stated("consumer-timeout"),
        visibility_timeout_ms=stated("visibility-timeout"),
        celery_eta=bool(stated("celery-eta")) and partitioning_of(stated.arguments) is None,
        dedup_window_ms=_dedup_window_ms(stated),
        publish_rate=stated.rate("publish"),
        consume_rate=stated.rate("consume"),
        retention=_settled_retention(stated),
        retention_waits_for=tuple(stated("retention-waits-for") or ()),
        retention_settles=tuple(stated("retention-settles") or ()),
        partitioning=partitioning_of(stated.arguments),
    )


def _orders_groups(stated: Stated) -> bool:
    """Whether messages of a group keep their order: by a policy only where they may.

    Groups have no order among priorities, nor where a group's messages lie in several partitions.
    """
    placed = partitioning_of(stated.arguments)
    together = placed is None or placed.by == MESSAGE_GROUP
    return (
        bool(stated("group-ordering")) and together and not stated.arguments.get("x-max-priority")
    )


def _dedup_window_ms(stated: Stated) -> int | None:
    """Return the de-duplication window: by a policy only where duplicates share a partition."""
    placed = partitioning_of(stated.arguments)
    if placed is not None and not placed.by_key:
        return None
    return window_ms(stated("dedup-window"))


def _with_dead_letters(settings: QueueSettings, stated: Stated, *, limited: bool) -> QueueSettings:
    """Set the dead-letter target: an exchange, else the queue's topic, at-least-once."""
    key = stated("dead-letter-routing-key")
    exchange = stated("dead-letter-exchange")
    if exchange is not None:
        return replace(settings, dead_letter_exchange=exchange, dead_letter_routing_key=key)
    topic = _dead_letter_topic(
        asked=bool(stated("dead-letter-topic")),
        retries=settings.retry is not None,
        limited=limited,
    )
    strategy = DeadLetterStrategy.AT_LEAST_ONCE if topic else DeadLetterStrategy.AT_MOST_ONCE
    return replace(
        settings,
        dead_letter_routing_key=key,
        dead_letter_strategy=strategy,
        dead_letter_topic=topic,
    )


def _stream_retention(stated: Stated) -> Retention:
    """Return a stream's retention; here the policy overrides the arguments, as in RabbitMQ."""

    def won(key: str) -> Any:
        return stated.policy.get(key, stated.arguments.get(f"x-{key}"))

    bytes_max, age = won("max-length-bytes"), won("max-age")
    limits = Retention(
        bytes_max=won("retention-bytes") if bytes_max is None else bytes_max,
        age_ms_max=duration_ms(won("retention")) if age is None else interval_ms(age),
        records_max=won("retention-messages"),
        segment_bytes_max=won("stream-max-segment-size-bytes"),
        waits_ms_max=duration_ms(won("retention-waits-max")),
        compaction=_compaction(stated),
    )
    if limits.compaction is not None:
        return limits  # what no later message supersedes stays
    if limits.bytes_max is None and limits.age_ms_max is None and limits.records_max is None:
        return replace(limits, age_ms_max=STREAM_AGE_MS_MAX)
    return limits


def _compaction(stated: Stated) -> Compaction | None:
    """Return how a stream is compacted: by a policy only where equal keys share a partition."""
    placed = partitioning_of(stated.arguments)
    if not stated("compact") or (placed is not None and placed.by != BY_KEY):
        return None
    return Compaction(duration_ms(stated("compact-delete-retention")) or TOMBSTONES_MS)


def _settled_retention(stated: Stated) -> Retention | None:
    """Return the retention of settled messages of a classic or quorum queue, if any."""
    limits = Retention(
        bytes_max=stated("retention-bytes"),
        age_ms_max=duration_ms(stated("retention")),
        records_max=stated("retention-messages"),
        keeps_settled=True,
        waits_ms_max=duration_ms(stated("retention-waits-max")),
    )
    if limits.bytes_max is None and limits.age_ms_max is None and limits.records_max is None:
        return None
    return limits


def _quorum_overflow(stated: str | None) -> Overflow:
    """Return the overflow policy; reject-publish-dlx from a policy means drop-head."""
    overflow = Overflow(stated or Overflow.DROP_HEAD)
    return Overflow.DROP_HEAD if overflow is Overflow.REJECT_PUBLISH_DLX else overflow


def _looser(own: int, given: int) -> int:
    """Return the smaller limit; the non-negative one if the other means no limit."""
    return max(own, given) if own < 0 or given < 0 else min(own, given)


def _retry_delay(stated: Stated) -> RetryDelay | None:
    """Return the requeue delay; None without a minimum delay."""
    kind = stated("delayed-retry-type")
    min_ms, max_ms = stated.least("delayed-retry-min"), stated.least("delayed-retry-max")
    failed, returned = kind in {"all", "failed"}, kind in {"all", "returned"}
    if not (failed or returned) or not min_ms or max_ms == 0:
        return None
    return RetryDelay(failed, returned, min_ms, min(max_ms or EXPIRY_MS_MAX, EXPIRY_MS_MAX))


def _delivery_limit(stated: int | None, default: int | None) -> int | None:
    """Return the delivery limit; None if the stated one is negative."""
    if stated is None:
        return default
    return stated if stated >= 0 else None


def _copies_min(stated: Stated, default: int) -> int:
    """Return how many nodes must be in sync: the larger number of both, as it is the safer one."""
    found = stated.least("min-isr", max)
    return default if found is None else found


def _waits_for_copies(stated: Stated) -> bool:
    return bool(stated("acks") != "leader")


def _group_delivery_limit(stated: Stated, of_queue: int | None) -> int | None:
    """Return the delivery limit of consumer groups: that of the queue unless stated."""
    return _delivery_limit(stated.least("group-delivery-limit", _looser), of_queue)


def _dead_letter_topic(*, asked: bool, retries: bool, limited: bool) -> frozenset[str]:
    """Return the reasons for which a queue without an exchange keeps dead letters.

    A queue with retries keeps those that failed to the end; a classic queue with a delivery limit
    keeps what exceeds it.
    """
    if asked:
        return ALL_DEATHS
    if retries:
        return UNHELPED_DEATHS
    return LIMITED_DEATHS if limited else NO_DEATHS
