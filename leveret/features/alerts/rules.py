"""Alert rules: the watched condition, and how long it must hold before an alert fires.

A rule is a JSON object, kept as a parameter of the component `alert`:

    {"condition": "backlog", "above": 10000, "queues": "^orders", "for_seconds": 60,
     "severity": "critical", "summary": "Orders are not worked off", "webhook": "https://…",
     "secret": "…", "enabled": true}

`Watch` is the state machine of one rule and one subject: quiet, pending while the condition has not
held for long enough, firing until it no longer holds. The caller passes values and the time.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from leveret.core.patterns import PATTERN_CHARACTERS_MAX, Pattern, PatternError
from leveret.ports.declared import undeclared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "COMPONENT",
    "NODE_CONDITIONS",
    "Alert",
    "AlertCondition",
    "AlertRule",
    "AlertSeverity",
    "InvalidRuleError",
    "LastMinute",
    "Watch",
]

COMPONENT: Final = "alert"  # component of the parameters that hold rules
TEXT_CHARACTERS_MAX: Final = 1000
HOLD_SECONDS_MAX: Final = 86_400
MINUTE_MS: Final = 60_000
# A part of an IPv4 address: hexadecimal, octal or decimal.
NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
HOLD_SECONDS: Final = 60  # default hold time: long enough for a restart of consumers


class InvalidRuleError(ValueError):
    """Raised for an invalid alert rule; the text says what is wrong."""


class AlertCondition(StrEnum):
    """Quantity compared with a rule's threshold."""

    BACKLOG = "backlog"  # ready messages
    UNACKNOWLEDGED = "unacknowledged"  # delivered but not settled
    AGE = "age_seconds"  # of the oldest unsettled message
    NO_CONSUMERS = "no_consumers"  # messages are ready and there is no consumer
    PUBLISH_RATE = "publish_rate"  # messages a second
    DELIVER_RATE = "deliver_rate"
    DEAD_LETTERS = "dead_letters"  # dead-lettered or dropped within the last minute
    GROUP_LAG = "group_lag"  # messages that a consumer group has not acknowledged
    DISK_FREE = "disk_free_bytes"
    MEMORY = "memory_bytes"
    CONNECTIONS = "connections"

    @property
    def unit(self) -> str:
        """Unit of values and thresholds."""
        return UNITS.get(self, "messages")


UNITS: Final = {
    AlertCondition.AGE: "seconds",
    AlertCondition.PUBLISH_RATE: "messages per second",
    AlertCondition.DELIVER_RATE: "messages per second",
    AlertCondition.DEAD_LETTERS: "messages in the last minute",
    AlertCondition.DISK_FREE: "bytes",
    AlertCondition.MEMORY: "bytes",
    AlertCondition.CONNECTIONS: "connections",
}
NODE_CONDITIONS: Final = {
    AlertCondition.DISK_FREE,
    AlertCondition.MEMORY,
    AlertCondition.CONNECTIONS,
}
# Conditions of which a single message matters, so that a hold time would hide it.
AT_ONCE: Final = {AlertCondition.DEAD_LETTERS}


class AlertSeverity(StrEnum):
    """Severity of an alert."""

    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One validated alert rule. `from_below` means that values under the threshold exceed it."""

    vhost: str
    name: str
    condition: AlertCondition
    threshold: float
    from_below: bool
    queues: Pattern | None
    groups: Pattern | None
    hold_ms: int
    severity: AlertSeverity
    summary: str
    webhook: str
    secret: str
    enabled: bool

    @classmethod
    def parse(cls, vhost: str, name: str, value: object) -> AlertRule:
        """Return the rule of a parameter value. Raises InvalidRuleError."""
        if not isinstance(value, dict):
            raise InvalidRuleError("an alert rule is an object")
        if problem := undeclared(value, CHECKS):
            raise InvalidRuleError(problem)
        given = {key: check(value.get(key)) for key, check in CHECKS.items()}
        condition = given["condition"]
        threshold, from_below = _threshold(condition, given["above"], given["below"])
        if condition in NODE_CONDITIONS and given["queues"] is not None:
            raise InvalidRuleError(f"queues: {condition} is of the node, not of its queues")
        if condition is not AlertCondition.GROUP_LAG and given["groups"] is not None:
            raise InvalidRuleError(f"groups: {condition} is not of consumer groups")
        hold_seconds = given["for_seconds"]
        if hold_seconds is None:
            hold_seconds = 0 if condition in AT_ONCE else HOLD_SECONDS
        return cls(
            vhost,
            name,
            condition,
            threshold,
            from_below,
            given["queues"],
            given["groups"],
            int(hold_seconds * 1000),
            given["severity"],
            given["summary"],
            given["webhook"],
            given["secret"],
            given["enabled"],
        )

    def concerns(self, queue: str) -> bool:
        """Whether the rule watches this queue of its virtual host."""
        return self.queues is None or self.queues.is_in(queue)

    def concerns_group(self, group: str) -> bool:
        """Whether the rule watches this consumer group of a queue that it watches."""
        return self.groups is None or self.groups.is_in(group)

    def is_exceeded(self, value: float) -> bool:
        """Whether a value is beyond the threshold."""
        return value < self.threshold if self.from_below else value > self.threshold


def _threshold(
    condition: AlertCondition, above: float | None, below: float | None
) -> tuple[float, bool]:
    if condition is AlertCondition.NO_CONSUMERS:
        if above is not None or below is not None:
            raise InvalidRuleError("no_consumers has no threshold: leave out above and below")
        return 0, False
    if (above is None) == (below is None):
        raise InvalidRuleError(f"{condition} needs either above or below, a number")
    return (above, False) if above is not None else (below or 0, True)


# -- the fields


def _condition(value: object) -> AlertCondition:
    if isinstance(value, str) and value in {*AlertCondition}:
        return AlertCondition(value)
    raise InvalidRuleError(f"condition is one of {', '.join(AlertCondition)}")


def _severity(value: object) -> AlertSeverity:
    if value is None:
        return AlertSeverity.WARNING
    if isinstance(value, str) and value in {*AlertSeverity}:
        return AlertSeverity(value)
    raise InvalidRuleError(f"severity is one of {', '.join(AlertSeverity)}")


def _number(field: str, maximum: float = math.inf) -> Callable[[object], float | None]:
    def check(value: object) -> float | None:
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= maximum or not math.isfinite(value):  # type: ignore[operator, arg-type]  # a number
            limit = "" if maximum == math.inf else f" up to {maximum:g}"
            raise InvalidRuleError(f"{field} is a number from 0{limit}")
        return float(value)  # type: ignore[arg-type]  # a number

    return check


def _pattern(field: str) -> Callable[[object], Pattern | None]:
    def check(value: object) -> Pattern | None:
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > PATTERN_CHARACTERS_MAX:
            raise InvalidRuleError(
                f"{field} is a regular expression of at most {PATTERN_CHARACTERS_MAX} characters"
            )
        try:
            return Pattern(value)
        except PatternError as error:
            raise InvalidRuleError(f"{field} is no regular expression: {error}") from None

    return check


def _text(field: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > TEXT_CHARACTERS_MAX:
            raise InvalidRuleError(f"{field} is text of at most {TEXT_CHARACTERS_MAX} characters")
        return value

    return check


def _webhook(value: object) -> str:
    url = _text("webhook")(value)
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise InvalidRuleError("webhook is an address that begins with http:// or https://")
    _check_host(str(parts.hostname).removesuffix("."), has_user=parts.username is not None)
    return url


def _check_host(host: str, *, has_user: bool) -> None:
    """Refuse webhook hosts that cannot receive alerts or must not be reachable through the node.

    Host names are not resolved: they may resolve to another address when the alert is sent.
    """
    address = _literal(host)
    if address is not None and address.is_unspecified:
        raise InvalidRuleError(
            f"webhook: {host} is no machine's address; perhaps 127.0.0.1 is meant"
        )
    if address is not None and address.is_link_local:
        raise InvalidRuleError(
            f"webhook: {host} is a link-local address (169.254.0.0/16, fe80::/10), where clouds "
            "keep the secrets of their machines: nothing is posted there"
        )
    is_local = host == "localhost" or host.endswith(".localhost")
    if has_user and (is_local or (address is not None and address.is_loopback)):
        raise InvalidRuleError(
            f"webhook: {host} is the node's own machine, where no user and password are sent; "
            "leave them out, and sign with a secret"
        )


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that `host` denotes in any form resolvers accept; None for names."""
    parts = host.split(".")
    if len(parts) <= 4 and all(map(NUMBER.fullmatch, parts)):  # 127.1, 0x7f.0.0.1, 2130706433
        *high, low = (int(part, _base(part)) for part in parts)
        bits = 8 * (4 - len(high))
        if max(high, default=0) > 255 or low >= 1 << bits:
            return None
        return IPv4Address((int.from_bytes(bytes(high)) << bits) | low)
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _base(number: str) -> int:
    if number.startswith(("0x", "0X")):
        return 16
    return 8 if number.startswith("0") else 10


def _enabled(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, bool):
        raise InvalidRuleError("enabled is true or false")
    return value


CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "condition": _condition,
    "above": _number("above"),
    "below": _number("below"),
    "queues": _pattern("queues"),
    "groups": _pattern("groups"),
    "for_seconds": _number("for_seconds", HOLD_SECONDS_MAX),
    "severity": _severity,
    "summary": _text("summary"),
    "webhook": _webhook,
    "secret": _text("secret"),
    "enabled": _enabled,
}


# -- the machine


@dataclass(frozen=True, slots=True)
class Alert:
    """State change of an alert. `subject` is a queue's name, empty for the node.

    `group` is the name of its consumer group where the rule is about that, else empty.
    """

    rule: AlertRule
    subject: str
    value: float
    since_ms: int  # time since when the condition has held
    is_firing: bool  # False: the alert is resolved
    group: str = ""


class LastMinute:
    """Growth of an ever-growing counter within the last minute, as far as it was observed."""

    __slots__ = ("_changes",)

    def __init__(self, at_ms: int, total: int) -> None:
        self._changes = deque([(at_ms, total)])  # (first seen at, total), oldest first

    def grown(self, at_ms: int, total: int) -> int:
        """Record a total and return its growth over the last minute. Clocks may be set back."""
        changes = self._changes
        if changes[-1][0] > at_ms:
            last = changes[-1][1]
            changes.clear()
            changes.append((at_ms, last))
        if changes[-1][1] != total:
            changes.append((at_ms, total))
        while len(changes) > 1 and changes[1][0] <= at_ms - MINUTE_MS:
            changes.popleft()
        return max(total - changes[0][1], 0)


class Watch:
    """Alert state of one rule and one subject, or one consumer group of it."""

    __slots__ = ("_group", "_since_ms", "_subject", "_value", "is_firing", "rule")

    def __init__(self, rule: AlertRule, subject: str, group: str = "") -> None:
        self.rule = rule
        self._subject = subject
        self._group = group
        self._since_ms: int | None = None
        self._value = 0.0
        self.is_firing = False

    def observe(self, value: float, now_ms: int) -> Alert | None:
        """Evaluate a value. Returns the alert if it starts firing or ends.

        Clocks may be set back.
        """
        self._value = value
        if not self.rule.is_exceeded(value):
            return self.end()
        if self._since_ms is None or self._since_ms > now_ms:
            self._since_ms = now_ms
        if not self.is_firing and now_ms - self._since_ms >= self.rule.hold_ms:
            self.is_firing = True
            return self.alert
        return None

    def end(self) -> Alert | None:
        """Reset the state because the condition no longer holds.

        Returns the alert if it was firing.
        """
        alert = None
        if self.is_firing:
            self.is_firing = False
            alert = self.alert
        self._since_ms = None
        return alert

    @property
    def is_quiet(self) -> bool:
        """Whether the condition does not hold, so that no state needs to be kept."""
        return self._since_ms is None

    @property
    def alert(self) -> Alert:
        """Current state as an Alert."""
        return Alert(
            self.rule,
            self._subject,
            self._value,
            self._since_ms or 0,
            is_firing=self.is_firing,
            group=self._group,
        )
