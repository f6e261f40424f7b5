"""Settings of policies: a table of all settings, and merging with operator policies.

The effect of a setting is up to `queue_settings`; settings that only other brokers
support are accepted, since imported definitions have them, and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.core.settings.arguments import (
    EXPIRY_MS_MAX,
    RATE_MAX,
    STREAM_SEGMENT_BYTES_MAX,
    TERM_MS_MAX,
    group_names,
    is_window,
    retention_time,
)
from leveret.core.settings.replication import ACKS, IN_SYNC_MIN, REPLICAS, Acks
from leveret.core.settings.retry_policy import RETRY_ARGUMENTS
from leveret.core.settings.stream_offsets import duration_ms
from leveret.ports.fields import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.definitions import Json

__all__ = ["SETTINGS", "Setting", "bounded", "contradiction", "foreign_to", "merged"]

Accepts: TypeAlias = Callable[["Json"], bool]
Merge: TypeAlias = Callable[["Json", "Json"], "Json"]

MAX_AGE: Final = re.compile(r"[0-9]{1,18}[YMDhms]\Z", re.ASCII)


def operator_wins(_own: Json, operator: Json) -> Json:
    """Return the operator policy's value."""
    return operator


def lower_limit(own: int, operator: int) -> int:
    """Return the smaller limit; the non-negative one if the other means no limit."""
    return max(own, operator) if own < 0 or operator < 0 else min(own, operator)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. If `operator` policies may have it too, both values are merged."""

    description: str  # as in "5 is not a valid message TTL"
    accepts: Accepts
    operator: bool = False
    merge: Merge = operator_wins
    maximum: int | None = None  # of numbers

    def bounded(self, value: Json) -> Json:
        """Limit a stored number: earlier releases accepted larger ones."""
        return min(value, self.maximum) if self.maximum is not None and integer(value) else value


def integer(value: Json) -> bool:
    """Whether the value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def between(minimum: int, maximum: int) -> Accepts:
    """Return a check for an integer from `minimum` to `maximum`."""
    return lambda value: integer(value) and minimum <= value <= maximum


def text(value: Json) -> bool:
    """Whether the value is a string."""
    return isinstance(value, str)


def one_of(*allowed: Json) -> Accepts:
    """Return a check for one of a few values (`True` is not 1 here)."""
    return lambda value: any(type(value) is type(one) and value == one for one in allowed)


def max_age(value: Json) -> bool:
    """Whether the value is a number with a unit, such as `7D`."""
    return isinstance(value, str) and MAX_AGE.match(value) is not None


def duration(value: Json) -> bool:
    """Whether the value is a duration: milliseconds, or a text such as `14d`."""
    return retention_time(value, {}) is None


def shorter(own: Json, operator: Json) -> Json:
    """Return the shorter duration."""
    return min(own, operator, key=lambda value: duration_ms(value) or 0)


def consumer_groups(value: Json) -> bool:
    """Whether the value is a list of names of consumer groups."""
    return group_names(value, {}) is None


def filter_size(value: Json) -> bool:
    """Whether the value is a size of a stream's filter in bytes."""
    return integer(value) and 16 <= value <= 255


def acks(value: Json) -> bool:
    """Whether the value is what a confirm waits for: a word, or a number of replicas."""
    return (integer(value) and 0 < value <= INT64_MAX) or (text(value) and value in set(Acks))


def contradiction(definition: Mapping[str, Json]) -> str | None:
    """Return what is wrong with settings of one policy that are valid by themselves, or None."""
    replicas = definition.get(REPLICAS, INT64_MAX)
    for key in (ACKS, IN_SYNC_MIN):
        value = definition.get(key)
        if integer(value) and value > replicas:
            return f"{key} is {value}, of {replicas} replicas"
    return None


def _finds(problem_of: Callable[[Any], str | None]) -> Accepts:
    """Return a check for values without a problem."""
    return lambda value: problem_of(value) is None


def anything(_value: Json) -> bool:
    """Accept any value: the setting has no effect."""
    return True


def _number(description: str, minimum: int = 0, maximum: int = INT64_MAX) -> Setting:
    """Return a number setting with the bounds of the corresponding queue argument."""
    return Setting(description, between(minimum, maximum), maximum=maximum)


def _bounded(description: str, minimum: int = 0, maximum: int = INT64_MAX) -> Setting:
    """Return a number setting of which the smaller of both policies' values counts."""
    return replace(_number(description, minimum, maximum), operator=True, merge=min)


# Settings for queue placement, mirroring, and plugins.
_WITHOUT_EFFECT: Final = (
    "federation-upstream",
    "federation-upstream-pattern",
    "federation-upstream-set",
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-batch-size",
    "ha-sync-mode",
    "queue-master-locator",
    "routing-key",
    "shards-per-node",
)

SETTINGS: Final[dict[str, Setting]] = {
    ACKS: Setting("number of acks, or none, leader or all", acks),
    "alternate-exchange": Setting("alternate exchange name", text),
    "celery-eta": Setting("Celery ETA switch", one_of(True, False)),
    # Not for operators: they may limit what queues keep, but this changes what a stream means.
    "compact": Setting("compaction switch", one_of(True, False)),
    "compact-delete-retention": Setting("time for which compaction keeps tombstones", duration),
    "consume-burst": _bounded("consume burst", 1, RATE_MAX),
    "consume-rate": _bounded("consume rate", 1, RATE_MAX),
    "consumer-disconnected-timeout": _number(
        "consumer disconnected timeout", maximum=EXPIRY_MS_MAX
    ),
    "consumer-timeout": _number("consumer timeout", maximum=EXPIRY_MS_MAX),
    "dead-letter-exchange": Setting("dead letter exchange name", text),
    "dead-letter-routing-key": Setting("dead letter routing key", text),
    "dead-letter-strategy": Setting(
        "dead letter strategy", one_of("at-most-once", "at-least-once")
    ),
    "dead-letter-topic": Setting("dead letter topic", one_of(True, False)),
    "dedup-window": Setting("de-duplication window", is_window),
    "delayed-retry-max": _bounded("delayed retry maximum", maximum=EXPIRY_MS_MAX),
    "delayed-retry-min": _bounded("delayed retry minimum", maximum=EXPIRY_MS_MAX),
    "delayed-retry-type": Setting(
        "delayed retry type", one_of("disabled", "all", "failed", "returned"), operator=True
    ),
    "delivery-limit": Setting(
        "delivery limit",
        between(INT64_MIN, INT64_MAX),
        operator=True,
        merge=lower_limit,
        maximum=INT64_MAX,
    ),
    "expires": _bounded("queue expiry", 1, EXPIRY_MS_MAX),
    "group-ordering": Setting("group ordering", one_of(True, False)),
    "initial-cluster-size": _number("cluster size"),
    "max-age": Setting("max age", max_age),
    "max-in-memory-bytes": _bounded("maximum memory in bytes"),
    "max-in-memory-length": _bounded("maximum memory in bytes"),  # RabbitMQ's words for both
    "max-length": _bounded("maximum length"),
    "max-length-bytes": _bounded("maximum length in bytes"),
    "member-placement-tag": Setting("member placement tag", text),
    "message-ttl": _bounded("message TTL", maximum=EXPIRY_MS_MAX),
    IN_SYNC_MIN: _number("least number of replicas in sync", 1),
    "overflow": Setting(
        "overflow value",
        one_of("drop-head", "reject-publish", "reject-publish-dlx"),
        operator=True,
    ),
    "publish-burst": _bounded("publish burst", 1, RATE_MAX),
    "publish-rate": _bounded("publish rate", 1, RATE_MAX),
    "queue-leader-locator": Setting(
        "queue leader locator value",
        one_of("client-local", "balanced", "random", "least-leaders"),
    ),
    "queue-mode": Setting("queue-mode value", one_of("default", "lazy")),
    "queue-version": Setting("queue-version value", one_of(1, 2), operator=True),
    "redeclare-mismatch": Setting("redeclare mismatch", one_of("refuse", "warn")),
    REPLICAS: _bounded("number of replicas", 1),
    "retention": Setting("retention", duration, operator=True, merge=shorter),
    "retention-bytes": _bounded("retention in bytes", 1),
    "retention-messages": _bounded("retention in messages", 1),
    "retention-waits-for": Setting("list of consumer groups", consumer_groups),
    "retention-waits-max": Setting("time for which retention waits", duration),
    "stream-filter-size-bytes": Setting("filter size. Valid range is 16-255", filter_size),
    "stream-max-segment-size-bytes": _number("segment size", maximum=STREAM_SEGMENT_BYTES_MAX),
    "target-group-size": _bounded("target group size", 1),
    "visibility-timeout": _number("visibility timeout", 1, TERM_MS_MAX),
    **{
        key: Setting(key.replace("-", " "), _finds(problem))
        for key, problem in RETRY_ARGUMENTS.items()
    },
    **{key: Setting(key, anything, operator=key.startswith("ha-")) for key in _WITHOUT_EFFECT},
}

_STREAMS: Final = {
    "compact",
    "compact-delete-retention",
    "initial-cluster-size",
    "max-age",
    "stream-filter-size-bytes",
    "stream-max-segment-size-bytes",
}
_MIRRORED: Final = {
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-mode",
    "queue-master-locator",
    "queue-mode",
}
# A policy with a setting that a queue's type cannot have does not apply to the queue at all.
_FOREIGN: Final[dict[str, frozenset[str]]] = {
    "classic": frozenset(
        {*_STREAMS, "dead-letter-strategy", "delivery-limit", "target-group-size"}
    ),
    "quorum": frozenset(_STREAMS | _MIRRORED),
    "stream": frozenset(
        {
            *_MIRRORED,
            "dead-letter-exchange",
            "dead-letter-routing-key",
            "dead-letter-strategy",
            "dead-letter-topic",
            "delivery-limit",
            "expires",
            "group-ordering",
            *RETRY_ARGUMENTS,
            "max-in-memory-bytes",
            "max-in-memory-length",
            "max-length",
            "message-ttl",
            "overflow",
            "target-group-size",
            "visibility-timeout",
        }
    ),
}


# RabbitMQ's classic queues have no delivery limit, so a policy for all queues that has one is meant
# for others; one that names classic queues is not.
_NOT_FOREIGN_WHERE_NAMED: Final = {"classic_queues": frozenset({"delivery-limit"})}


def foreign_to(queue_type: str, apply_to: str) -> frozenset[str]:
    """Return the settings that keep a policy for `apply_to` from applying to a queue type."""
    return _FOREIGN[queue_type] - _NOT_FOREIGN_WHERE_NAMED.get(apply_to, frozenset())


def bounded(definition: Mapping[str, Json]) -> dict[str, Json]:
    """Limit the numbers of a stored definition to what settings accept today."""
    return {
        key: SETTINGS[key].bounded(value) if key in SETTINGS else value
        for key, value in definition.items()
    }


def merged(own: Mapping[str, Json], operator: Mapping[str, Json]) -> dict[str, Json]:
    """Return the combined settings of a policy and an operator policy."""
    both = {
        key: SETTINGS[key].merge(own[key], operator[key]) for key in own.keys() & operator.keys()
    }
    return {**own, **operator, **both}
