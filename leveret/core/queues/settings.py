"""What a queue does beyond holding messages, resolved from its arguments and its policy.

Made when a queue is opened and again whenever a policy changes (`Queue.reconfigure`). Values were
checked before they came here: arguments when the queue was declared, policies when they were set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from leveret.core.queues.arguments import EXPIRY_MS_MAX, QUEUE_TYPE
from leveret.core.queues.stream_offsets import interval_ms
from leveret.features import deaths
from leveret.features.dedup import window_ms
from leveret.features.rates import Rate, rate_of
from leveret.features.retry import ARGUMENTS as RETRY_KEYS
from leveret.features.retry import RetryPolicy, retry_policy_of
from leveret.ports import Retention
from leveret.ports.definitions import Paused
from leveret.ports.fields import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.ports.definitions import Arguments, QueueDefinition

NO_POLICY: Mapping[str, Any] = {}

# A message that came back this often makes its consumers fail: quorum queues give it up then.
DELIVERY_LIMIT = 20
# The highest priority that a quorum queue tells apart, and what a message without one has there.
QUORUM_PRIORITY_MAX = 31
QUORUM_PRIORITY = 4
# What a stream keeps that says nothing of it: long enough for a holiday, short enough for a disk.
STREAM_AGE_MS_MAX = 14 * 86_400_000


# Keys of policies that let a queue give messages up which its consumers fail.
GIVES_UP = frozenset({*RETRY_KEYS, "dead-letter-topic", "delivery-limit"})


class Overflow(StrEnum):
    """What a full queue does."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class DeadLetterStrategy(StrEnum):
    """Whether a dead letter leaves its queue before its targets have it for certain."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"


# Which dead letters are kept in a topic: the same objects for all queues, as a set takes 216 bytes.
ALL_DEATHS = frozenset(deaths.REASONS)
UNHELPED_DEATHS = frozenset({deaths.REJECTED, deaths.DELIVERY_LIMIT})
LIMITED_DEATHS = frozenset({deaths.DELIVERY_LIMIT})
NO_DEATHS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """How long messages that came back wait before they are ready again.

    Either kind may be delayed: those that `failed`, as their consumer could not cope with them, and
    those that it just `returned`.
    """

    failed: bool
    returned: bool
    min_ms: int
    max_ms: int = EXPIRY_MS_MAX

    def applies(self, *, failed: bool) -> bool:
        """Whether messages wait that came back in this way."""
        return self.failed if failed else self.returned

    def after(self, count: int) -> int:
        """Milliseconds to wait for who came back so often (0: in a way that is not counted)."""
        return min(self.min_ms * max(count, 1), self.max_ms)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One queue's behaviour. None: without that limit, or without that feature."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None  # of the queue itself, while nobody uses it
    max_length: int | None = None  # ready messages
    max_length_bytes: int | None = None  # of the bodies of ready messages
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None  # "" is the default exchange
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: DeadLetterStrategy = DeadLetterStrategy.AT_MOST_ONCE
    # Why messages die that go to the queue's dead-letter topic; only without an exchange.
    dead_letter_topic: frozenset[str] = frozenset()
    max_priority: int | None = None  # of messages: higher ones count as this one
    default_priority: int = 0  # of a message that states none
    returns_first: bool = False  # before all others, in the order in which they came back
    group_ordering: bool = False  # one message of a group at a time, whatever their priorities
    single_active: bool = False
    single_active_by_priority: bool = False  # a consumer of higher priority takes over
    delivery_limit: int | None = None  # how often a message may come back
    retry_delay: RetryDelay | None = None  # of messages that came back
    retry: RetryPolicy | None = None  # of messages that failed
    counts_deliveries: bool = False  # consumers are told how often a message came back
    consumer_timeout_ms: int | None = None  # None: the node's
    visibility_timeout_ms: int | None = None  # what is not settled by then comes back
    celery_eta: bool = False  # whether tasks are held until the time in their header
    dedup_window_ms: int | None = None  # within which no message is stored twice
    publish_rate: Rate | None = None  # at which messages come in
    consume_rate: Rate | None = None  # at which they are delivered, to all consumers together
    retention: Retention | None = None  # of a stream; all other queues settle what was consumed
    is_paused: bool = False  # whether nobody is handed anything

    @property
    def is_limited(self) -> bool:
        """Whether the queue can be full."""
        return self.max_length is not None or self.max_length_bytes is not None

    def retries(self, reason: str) -> bool:
        """Whether what fails for `reason` is tried again."""
        return self.retry is not None and reason in self.retry.on

    def keeps(self, reason: str) -> bool:
        """Whether what is given up for `reason` goes anywhere."""
        return self.retries(reason) or self.dead_letters(reason)

    def dead_letters(self, reason: str) -> bool:
        """Whether what dies of `reason` goes anywhere."""
        return self.dead_letter_exchange is not None or reason in self.dead_letter_topic

    @property
    def rejects(self) -> bool:
        """Whether a full queue refuses what is published to it."""
        return self.is_limited and self.overflow is not Overflow.DROP_HEAD


def resolve_settings(
    definition: QueueDefinition, policy: Mapping[str, Any] = NO_POLICY
) -> QueueSettings:
    """Read the settings of a queue; `policy` has the keys of policies, without `x-`.

    The queue's own arguments win over its policy; of times and lengths the smaller one counts.
    """
    if definition.name.endswith(deaths.TOPIC_SUFFIX):
        # A policy for all queues must not give dead letters up once more, to topics of topics.
        policy = {key: value for key, value in policy.items() if key not in GIVES_UP}
    settings = _resolve(definition, policy)
    if definition.paused is Paused.NOTHING:
        return settings
    settings = replace(settings, is_paused=True)
    if definition.paused is Paused.DELIVERIES:
        return settings
    # Whoever publishes to a queue that takes nothing hears what one of a full queue does.
    return replace(settings, max_length=0, max_length_bytes=None, overflow=Overflow.REJECT_PUBLISH)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a queue's arguments and its policy say, by the keys of policies; None: nothing."""

    arguments: Arguments
    policy: Mapping[str, Any]

    def __call__(self, key: str) -> Any:
        """What counts of the two: the queue's own word."""
        return _of_64_bits(self.arguments.get(f"x-{key}", self.policy.get(key)))

    def least(self, key: str, choose: Callable[[int, int], int] = min) -> int | None:
        """The smaller of two numbers; `choose` picks it where not every number is a limit."""
        own, given = self.arguments.get(f"x-{key}"), self.policy.get(key)
        if own is None or given is None:
            least = own if given is None else given
        else:
            least = choose(own, given)
        return None if least is None else _of_64_bits(least)

    def rate(self, what: str) -> Rate | None:
        """The smaller rate, and the smaller burst."""
        values = {}
        for key in (f"{what}-rate", f"{what}-burst"):
            number = self.least(key)
            values[key] = -1 if number is None else number
        return rate_of(values, what)


def _of_64_bits(value: Any) -> Any:
    """Cut down a number that was stored when larger ones were accepted."""
    return min(value, INT64_MAX) if isinstance(value, int) else value


def _resolve(definition: QueueDefinition, policy: Mapping[str, Any]) -> QueueSettings:
    stated = Stated(definition.arguments, policy)
    kind = definition.arguments.get(QUEUE_TYPE)
    if kind == "stream":
        return _of_stream(stated)
    if kind == "quorum":
        is_topic = definition.name.endswith(deaths.TOPIC_SUFFIX)
        return _of_quorum_queue(stated, None if is_topic else DELIVERY_LIMIT)
    return _of_classic_queue(stated)


def _of_stream(stated: Stated) -> QueueSettings:
    return QueueSettings(
        retention=_retention(stated),
        dedup_window_ms=window_ms(stated("dedup-window")),
        publish_rate=stated.rate("publish"),
        consume_rate=stated.rate("consume"),
    )


def _of_classic_queue(stated: Stated) -> QueueSettings:
    limit = stated.least("delivery-limit", _looser)
    settings = replace(
        _of_any_queue(stated),
        overflow=Overflow(stated("overflow") or Overflow.DROP_HEAD),
        max_priority=stated.arguments.get("x-max-priority") or None,
        delivery_limit=_delivery_limit(limit, None),
        counts_deliveries=limit is not None,
    )
    return _with_dead_letters(settings, stated, limited=limit is not None)


def _of_quorum_queue(stated: Stated, default_limit: int | None) -> QueueSettings:
    settings = _of_any_queue(stated)
    settings = replace(
        settings,
        overflow=_quorum_overflow(stated("overflow")),
        max_priority=QUORUM_PRIORITY_MAX,
        default_priority=QUORUM_PRIORITY,
        returns_first=True,
        single_active_by_priority=settings.single_active,
        delivery_limit=_delivery_limit(stated.least("delivery-limit", _looser), default_limit),
        retry_delay=_retry_delay(stated),
        counts_deliveries=True,
    )
    settings = _with_dead_letters(settings, stated, limited=False)
    # A queue that drops its head cannot promise that nothing is lost.
    if settings.dead_letter_exchange is None or settings.overflow is not Overflow.REJECT_PUBLISH:
        return settings
    strategy = stated("dead-letter-strategy") or DeadLetterStrategy.AT_MOST_ONCE
    return replace(settings, dead_letter_strategy=DeadLetterStrategy(strategy))


def _of_any_queue(stated: Stated) -> QueueSettings:
    """What classic and quorum queues have in common."""
    return QueueSettings(
        message_ttl_ms=stated.least("message-ttl"),
        expires_ms=stated.least("expires"),
        max_length=stated.least("max-length"),
        max_length_bytes=stated.least("max-length-bytes"),
        group_ordering=bool(stated("group-ordering"))
        and not stated.arguments.get("x-max-priority"),
        single_active=bool(stated.arguments.get("x-single-active-consumer")),
        retry=retry_policy_of(stated),
        consumer_timeout_ms=stated("consumer-timeout"),
        visibility_timeout_ms=stated("visibility-timeout"),
        celery_eta=bool(stated("celery-eta")),
        dedup_window_ms=window_ms(stated("dedup-window")),
        publish_rate=stated.rate("publish"),
        consume_rate=stated.rate("consume"),
    )


def _with_dead_letters(settings: QueueSettings, stated: Stated, *, limited: bool) -> QueueSettings:
    """Where dead letters go: to an exchange, or else to the queue's topic, which loses none."""
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


def _retention(stated: Stated) -> Retention:
    """How much a stream keeps: unlike elsewhere its policy wins, as in RabbitMQ."""

    def won(key: str) -> Any:
        return stated.policy.get(key, stated.arguments.get(f"x-{key}"))

    bytes_max, age = won("max-length-bytes"), won("max-age")
    age_ms_max = interval_ms(age) if age is not None else None
    if bytes_max is None and age_ms_max is None:
        age_ms_max = STREAM_AGE_MS_MAX
    return Retention(bytes_max, age_ms_max, won("stream-max-segment-size-bytes"))


def _quorum_overflow(stated: str | None) -> Overflow:
    """A policy may ask a quorum queue for what it cannot do: then it drops, as by default."""
    overflow = Overflow(stated or Overflow.DROP_HEAD)
    return Overflow.DROP_HEAD if overflow is Overflow.REJECT_PUBLISH_DLX else overflow


def _looser(own: int, given: int) -> int:
    """The smaller limit, unless one of them means that there is none."""
    return max(own, given) if own < 0 or given < 0 else min(own, given)


def _retry_delay(stated: Stated) -> RetryDelay | None:
    """Without a shortest delay there is none, whatever else is stated."""
    kind = stated("delayed-retry-type")
    min_ms, max_ms = stated.least("delayed-retry-min"), stated.least("delayed-retry-max")
    failed, returned = kind in {"all", "failed"}, kind in {"all", "returned"}
    if not (failed or returned) or not min_ms or max_ms == 0:
        return None
    return RetryDelay(failed, returned, min_ms, min(max_ms or EXPIRY_MS_MAX, EXPIRY_MS_MAX))


def _delivery_limit(stated: int | None, default: int | None) -> int | None:
    """The number of returns; a negative one stands for no limit."""
    if stated is None:
        return default
    return stated if stated >= 0 else None


def _dead_letter_topic(*, asked: bool, retries: bool, limited: bool) -> frozenset[str]:
    """The reasons for which a queue without an exchange keeps its dead letters.

    Whoever retries messages wants to see those that nothing helped; a classic queue has a limit of
    deliveries because somebody wants to see what exceeds it.
    """
    if asked:
        return ALL_DEATHS
    if retries:
        return UNHELPED_DEATHS
    return LIMITED_DEATHS if limited else NO_DEATHS
