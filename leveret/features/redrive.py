"""Redriving: which dead letters go back, how fast, and how far that has come.

A dead letter tells in its headers where it died, of what, and what it had been published with (see
leveret.features.deaths). What goes back begins anew: nothing of that, and no count of its attempts,
stays in its headers. Functions and values; leveret.core.dead_letters.redrive does the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, Final

from leveret.features import deaths, retry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "RATE_MAX",
    "DeadLetter",
    "Pace",
    "Phase",
    "Progress",
    "Selection",
    "dead_letter",
    "revived_headers",
    "shown",
]

RATE_MAX = 1_000_000  # messages in a second: more than a queue can move, whatever is asked for
# What a slow pace may catch up with at once, after a step that took its time.
BURST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message of a dead-letter queue. What is not known of it is None."""

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
        """How its consumers failed it, where its queue retried."""
        reason = self.headers.get(retry.REASON)
        return reason if isinstance(reason, str) else None

    @property
    def attempts(self) -> int | None:
        """How often it was delivered, where its queue retried."""
        count = self.headers.get(retry.COUNT)
        return count + 1 if isinstance(count, int) and self.last_failure else None


def dead_letter(
    offset: int, message_id: str | None, headers: Mapping[str, Any], *, is_dead_letter: bool
) -> DeadLetter:
    """Read a message's latest death. An x-death that a client has published is no history."""
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
class Selection:
    """Which dead letters are meant; empty or None: whatever it is. All that is stated must fit.

    A `reason` is that of a death or of the last failure; times are seconds since 1970.
    """

    offsets: frozenset[int] = frozenset()
    message_ids: frozenset[str] = frozenset()  # several messages may have the same
    reason: str | None = None
    queue: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    since: int | None = None
    until: int | None = None

    def has(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is one of them."""
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
    """A header's value as people type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def revived_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of a dead letter's headers (by name, values as they lie) when it goes back."""
    told = (deaths.FIRST, deaths.LAST)
    return {
        name: value
        for name, value in retry.without_attempts(headers).items()
        if name != deaths.DEATHS and not name.startswith(told)
    }


class Pace:
    """So many messages in a second, evenly; None: as many as there are."""

    def __init__(self, per_second: float | None, now_ms: int) -> None:
        self._per_ms = inf if per_second is None else per_second / 1000
        self._burst = inf if per_second is None else max(1.0, per_second * BURST_SECONDS)
        self._saved = min(1.0, self._burst)
        self._now_ms = now_ms

    def allowance(self, now_ms: int, wanted: int) -> int:
        """How many of `wanted` may go now; they count as gone."""
        if self._per_ms is inf:
            return wanted
        passed = max(0, now_ms - self._now_ms)
        self._saved = min(self._burst, self._saved + passed * self._per_ms)
        self._now_ms = now_ms
        taken = min(wanted, int(self._saved))
        self._saved -= taken
        return taken

    def give_back(self, count: int) -> None:
        """So many did not go after all."""
        if self._per_ms is not inf:
            self._saved = min(self._burst, self._saved + count)

    @property
    def wait_ms(self) -> int:
        """How long until the next may go."""
        if self._per_ms is inf or self._saved >= 1:
            return 0
        return max(1, round((1 - self._saved) / self._per_ms))


class Phase(StrEnum):
    """Where a redrive stands."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"  # the queue is gone, or cannot be read

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows."""
        return not NEXT[self]

    def may_become(self, phase: Phase) -> bool:
        """Whether that can follow."""
        return phase in NEXT[self]


NEXT: Final = {
    Phase.RUNNING: {Phase.PAUSED, Phase.CANCELLED, Phase.DONE, Phase.FAILED},
    Phase.PAUSED: {Phase.RUNNING, Phase.CANCELLED, Phase.FAILED},
    Phase.CANCELLED: set(),
    Phase.DONE: set(),
    Phase.FAILED: set(),
}


@dataclass(slots=True)
class Progress:
    """How far a redrive has come. `total` was in the queue when it began."""

    total: int = 0
    looked_at: int = 0
    moved: int = 0
    unroutable: int = 0  # selected, but nobody is there to take it: it stays
    refused: int = 0  # selected, but who should take it had no room: it stays
    phase: Phase = field(default=Phase.RUNNING)
    explanation: str = ""  # of a failure
