"""Settings of policies: a table of all settings, and merging with operator policies.

The effect of a setting is up to `queue_settings`; settings that only other brokers
support are accepted, since imported definitions have them, and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.core.erlang_terms import json_term
from leveret.core.settings.arguments import (
    COPIES_MAX,
    EXPIRY_MS_MAX,
    RATE_MAX,
    STREAM_SEGMENT_BYTES_MAX,
    TERM_MS_MAX,
    dedup_window,
    group_names,
    retention_time,
    switch,
)
from leveret.core.settings.retry_policy import RETRY_ARGUMENTS, whole
from leveret.core.settings.stream_offsets import duration_ms
from leveret.ports.fields import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.settings.arguments import Check
    from leveret.ports.definitions import Json

__all__ = ["SETTINGS", "Setting", "bounded", "foreign_to", "merged"]

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
    """One setting. If `operator` policies may have it too, both values are merged.

    Those that RabbitMQ does not have say what is `expected`, as queue arguments do.
    """

    description: str  # as in "5 is not a valid message TTL"
    accepts: Accepts
    operator: bool = False
    merge: Merge = operator_wins
    maximum: int | None = None  # of numbers
    expected: Callable[[Json], str | None] | None = None

    def problem(self, value: Json) -> str | None:
        """Return what is wrong with a value, in RabbitMQ's words, or None."""
        if self.accepts(value):
            return None
        hint = None if self.expected is None else self.expected(value)
        told = "" if hint is None else ": " + hint.strip('"')
        return f"{json_term(value)} is not a valid {self.description}{told}"

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


def shorter(own: Json, operator: Json) -> Json:
    """Return the shorter duration."""
    return min(own, operator, key=lambda value: duration_ms(value) or 0)


def filter_size(value: Json) -> bool:
    """Whether the value is a size of a stream's filter in bytes."""
    return integer(value) and 16 <= value <= 255


def anything(_value: Json) -> bool:
    """Accept any value: the setting has no effect."""
    return True


def _number(description: str, minimum: int = 0, maximum: int = INT64_MAX) -> Setting:
    """Return a number setting with the bounds of the corresponding queue argument."""
    return Setting(description, between(minimum, maximum), maximum=maximum)


def _bounded(description: str, minimum: int = 0, maximum: int = INT64_MAX) -> Setting:
    """Return a number setting of which the smaller of both policies' values counts."""
    return replace(_number(description, minimum, maximum), operator=True, merge=min)


def _own(description: str, problem_of: Callable[[Any], str | None], **options: Any) -> Setting:
    """Return a setting that RabbitMQ does not have: values without a problem are accepted."""
    return Setting(
        description, lambda value: problem_of(value) is None, expected=problem_of, **options
    )


def _like(check: Check) -> Callable[[Any], str | None]:
    """Return the check of an argument for a setting, whose validity depends on no other."""
    return lambda value: check(value, {})


def _own_limit(description: str, maximum: int) -> Setting:
    """Return a number of one or more of which the smaller of both policies' values counts."""
    problem_of = whole(1, maximum)
    return _own(description, problem_of, operator=True, merge=min, maximum=maximum)


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
    "acks": Setting("acks value", one_of("all", "leader")),
    "alternate-exchange": Setting("alternate exchange name", text),
    "celery-eta": _own("Celery ETA switch", _like(switch)),
    # Not for operators: they may limit what queues keep, but this changes what a stream means.
    "compact": _own("compaction switch", _like(switch)),
    "compact-delete-retention": _own(
        "time for which compaction keeps tombstones", _like(retention_time)
    ),
    "consume-burst": _own_limit("consume burst", RATE_MAX),
    "consume-rate": _own_limit("consume rate", RATE_MAX),
    "consumer-disconnected-timeout": _number(
        "consumer disconnected timeout", maximum=EXPIRY_MS_MAX
    ),
    "consumer-timeout": _number("consumer timeout", maximum=EXPIRY_MS_MAX),
    "dead-letter-exchange": Setting("dead letter exchange name", text),
    "dead-letter-routing-key": Setting("dead letter routing key", text),
    "dead-letter-strategy": Setting(
        "dead letter strategy", one_of("at-most-once", "at-least-once")
    ),
    "dead-letter-topic": _own("dead letter topic", _like(switch)),
    "dedup-window": _own("de-duplication window", _like(dedup_window)),
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
    "group-delivery-limit": _own(
        "delivery limit of consumer groups",
        whole(INT64_MIN, INT64_MAX),
        operator=True,
        merge=lower_limit,
        maximum=INT64_MAX,
    ),
    "group-ordering": _own("group ordering", _like(switch)),
    "initial-cluster-size": _number("cluster size"),
    "max-age": Setting("max age", max_age),
    "max-in-memory-bytes": _bounded("maximum memory in bytes"),
    "max-in-memory-length": _bounded("maximum memory in bytes"),  # RabbitMQ's words for both
    "max-length": _bounded("maximum length"),
    "max-length-bytes": _bounded("maximum length in bytes"),
    "member-placement-tag": Setting("member placement tag", text),
    "message-ttl": _bounded("message TTL", maximum=EXPIRY_MS_MAX),
    "min-isr": _own("minimum of in-sync nodes", whole(1, COPIES_MAX), operator=True, merge=max),
    "overflow": Setting(
        "overflow value",
        one_of("drop-head", "reject-publish", "reject-publish-dlx"),
        operator=True,
    ),
    "publish-burst": _own_limit("publish burst", RATE_MAX),
    "publish-rate": _own_limit("publish rate", RATE_MAX),
    "queue-leader-locator": Setting(
        "queue leader locator value",
        one_of("client-local", "balanced", "random", "least-leaders"),
    ),
    "queue-mode": Setting("queue-mode value", one_of("default", "lazy")),
    "queue-version": Setting("queue-version value", one_of(1, 2), operator=True),
    "redeclare-mismatch": Setting(
        "redeclare mismatch: expected refuse or warn", one_of("refuse", "warn")
    ),
    "retention": _own("retention", _like(retention_time), operator=True, merge=shorter),
    "retention-bytes": _own_limit("retention in bytes", INT64_MAX),
    "retention-messages": _own_limit("retention in messages", INT64_MAX),
    "retention-settles": _own("list of consumer groups", _like(group_names)),
    "retention-waits-for": _own("list of consumer groups", _like(group_names)),
    "retention-waits-max": _own("time for which retention waits", _like(retention_time)),
    "stream-filter-size-bytes": Setting("filter size. Valid range is 16-255", filter_size),
    "stream-max-segment-size-bytes": _number("segment size", maximum=STREAM_SEGMENT_BYTES_MAX),
    "target-group-size": _bounded("target group size", 1),
    "visibility-timeout": _own(
        "visibility timeout", whole(1, TERM_MS_MAX, "milliseconds"), maximum=TERM_MS_MAX
    ),
    **{key: _own(key.replace("-", " "), problem_of) for key, problem_of in RETRY_ARGUMENTS.items()},
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
