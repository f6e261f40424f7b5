"""Redrive: selection, rate and progress of moving dead letters back.

The headers of a dead letter say where it died, why, and how it had been published (see
leveret.features.dead_letter.rules). A message moved back starts afresh: its headers keep nothing of
that, nor the count of attempts. Functions and values; leveret.features.dead_letter.redrive does the
work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, Final

from leveret.features.dead_letter import rules as deaths
from leveret.features.retry import rules as retry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "RATE_MAX",
    "DeadLetter",
    "DeadLetterFilter",
    "Pace",
    "RedriveProgress",
    "RedriveState",
    "dead_letter",
    "revived_headers",
    "shown",
]

RATE_MAX = 1_000_000  # messages per second: more than a queue can move
# Burst after a slow step, in seconds of the configured rate.
BURST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message of a dead-letter queue. Unknown fields are None."""

    offset: int
    message_id: str | None
    headers: Mapping[str, Any]
    reason: str | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_keys: tuple[str, ...] = ()
    died_at: int | None = None  # seconds since 1970

    @property
    def last_failure(self) -> str | None:
        """Reason of the last failure, if its queue retried it."""
        reason = self.headers.get(retry.REASON)
        return reason if isinstance(reason, str) else None

    @property
    def attempts(self) -> int | None:
        """Number of deliveries, if its queue retried it."""
        count = self.headers.get(retry.COUNT)
        return count + 1 if isinstance(count, int) and self.last_failure else None


def dead_letter(
    offset: int, message_id: str | None, headers: Mapping[str, Any], *, is_dead_letter: bool
) -> DeadLetter:
    """Parse a message's latest death. An x-death published by a client is ignored."""
    entries = headers.get(deaths.DEATHS)
    if not (is_dead_letter and isinstance(entries, list) and entries):
        return DeadLetter(offset, message_id, headers)
    latest = entries[0] if isinstance(entries[0], dict) else {}
    keys = latest.get("routing-keys")
    died_at = latest.get("time")
    return DeadLetter(
        offset,
        message_id,
        headers,
        reason=_text(latest.get("reason")),
        queue=_text(latest.get("queue")),
        exchange=_text(latest.get("exchange")),
        routing_keys=tuple(map(str, keys)) if isinstance(keys, list) else (),
        died_at=int(died_at) if isinstance(died_at, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Filter for dead letters; empty or None fields match all, and all stated fields must match.

    `reason` matches that of the death or of the last failure; times are seconds since 1970.
    """

    offsets: frozenset[int] = frozenset()
    message_ids: frozenset[str] = frozenset()  # several messages may have the same
    reason: str | None = None
    queue: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    since: int | None = None
    until: int | None = None

    def has(self, letter: DeadLetter) -> bool:
        """Whether a dead letter matches."""
        if self.offsets and letter.offset not in self.offsets:
            return False
        if self.message_ids and letter.message_id not in self.message_ids:
            return False
        if self.reason is not None and self.reason not in {letter.reason, letter.last_failure}:
            return False
        if self.queue is not None and self.queue != letter.queue:
            return False
        if not self._has_time(letter.died_at):
            return False
        return all(
            name in letter.headers and shown(letter.headers[name]) == value
            for name, value in self.headers
        )

    def _has_time(self, died_at: int | None) -> bool:
        if self.since is None and self.until is None:
            return True
        if died_at is None:
            return False
        return (self.since is None or died_at >= self.since) and (
            self.until is None or died_at < self.until
        )


def shown(value: object) -> str:
    """Return a header's value as people type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def revived_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dead letter's headers without its history and attempts, for moving it back."""
    told = (deaths.FIRST, deaths.LAST)
    return {
        name: value
        for name, value in retry.without_attempts(headers).items()
        if name != deaths.DEATHS and not name.startswith(told)
    }


class Pace:
    """Rate limit for moving messages, spread evenly; None: unlimited."""

    def __init__(self, per_second: float | None, now_ms: int) -> None:
        self._per_ms = inf if per_second is None else per_second / 1000
        self._burst = inf if per_second is None else max(1.0, per_second * BURST_SECONDS)
        self._saved = min(1.0, self._burst)
        self._now_ms = now_ms

    def allowance(self, now_ms: int, wanted: int) -> int:
        """Return how many of `wanted` messages may move now, and count them as moved."""
        if self._per_ms is inf:
            return wanted
        passed = max(0, now_ms - self._now_ms)
        self._saved = min(self._burst, self._saved + passed * self._per_ms)
        self._now_ms = now_ms
        taken = min(wanted, int(self._saved))
        self._saved -= taken
        return taken

    def give_back(self, count: int) -> None:
        """Return unused allowance for `count` messages that did not move after all."""
        if self._per_ms is not inf:
            self._saved = min(self._burst, self._saved + count)

    @property
    def wait_ms(self) -> int:
        """Time until the next message may move, in ms."""
        if self._per_ms is inf or self._saved >= 1:
            return 0
        return max(1, round((1 - self._saved) / self._per_ms))


class RedriveState(StrEnum):
    """State of a redrive."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"  # the queue was deleted, or cannot be read

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return not NEXT[self]

    def may_become(self, phase: RedriveState) -> bool:
        """Whether a transition to `phase` is allowed."""
        return phase in NEXT[self]


NEXT: Final = {
    RedriveState.RUNNING: {
        RedriveState.PAUSED,
        RedriveState.CANCELLED,
        RedriveState.DONE,
        RedriveState.FAILED,
    },
    RedriveState.PAUSED: {RedriveState.RUNNING, RedriveState.CANCELLED, RedriveState.FAILED},
    RedriveState.CANCELLED: set(),
    RedriveState.DONE: set(),
    RedriveState.FAILED: set(),
}


@dataclass(slots=True)
class RedriveProgress:
    """Progress of a redrive. `total` is the number of messages in the queue when it began."""

    total: int = 0
    looked_at: int = 0
    moved: int = 0
    unroutable: int = 0  # selected, but no queue is bound to take it: it stays
    refused: int = 0  # selected, but the target queue was full: it stays
    phase: RedriveState = field(default=RedriveState.RUNNING)
    explanation: str = ""  # of a failure
