"""Machine of a circuit breaker: whether a peer may be tried now, and when again.

CLOSED ──── `failures_max` failures in a row, or trip() ──► OPEN
OPEN ────── its time is over ─────────────────────────────► HALF_OPEN, for one attempt
HALF_OPEN ─ succeeded() ─► CLOSED
HALF_OPEN ─ failed() ────► OPEN, for twice as long
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.links.settings import LinkSettings

__all__ = ["BreakerState", "CircuitBreaker"]


class BreakerState(Enum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class CircuitBreaker:
    """Circuit breaker of one peer. `random` returns a number from 0 to 1, times are in ms.

    Nodes that have lost the same peer would otherwise all come back to it at the same moment.
    """

    def __init__(self, settings: LinkSettings, random: Callable[[], float]) -> None:
        self.state = BreakerState.CLOSED
        self.retry_at_ms = 0  # no attempt before
        self._settings = settings
        self._random = random
        self._failures = 0
        self._waits = 0  # waits in a row, each of them longer
        self._closed_since_ms: int | None = None  # by a success

    def may_try(self, now_ms: int) -> bool:
        """Return whether an attempt may be made now; its end must be told."""
        if now_ms < self.retry_at_ms or self.state is BreakerState.HALF_OPEN:
            return False
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN
        return True

    def succeeded(self, now_ms: int) -> None:
        """Note that an attempt succeeded."""
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._closed_since_ms = now_ms

    def failed(self, now_ms: int) -> None:
        """Note that an attempt failed, or that a connection was lost."""
        self._end_series(now_ms)
        self._failures += 1
        if self.state is not BreakerState.CLOSED or self._failures >= self._settings.failures_max:
            self.state = BreakerState.OPEN
        self._wait(now_ms)

    def trip(self, now_ms: int) -> None:
        """Open at once: the peer is connected, and does not answer."""
        self._end_series(now_ms)
        self.state = BreakerState.OPEN
        self._wait(now_ms)

    def reset(self) -> None:
        """Close: the peer has another address, of which nothing bad is known."""
        self.state = BreakerState.CLOSED
        self._failures = self._waits = self.retry_at_ms = 0
        self._closed_since_ms = None

    def _end_series(self, now_ms: int) -> None:
        since, self._closed_since_ms = self._closed_since_ms, None
        if since is not None and now_ms - since >= self._settings.steady_ms:
            self._waits = 0

    def _wait(self, now_ms: int) -> None:
        longest = min(self._settings.retry_ms_min << min(self._waits, 30),
                      self._settings.retry_ms_max)  # fmt: skip
        self._waits += 1
        self.retry_at_ms = now_ms + round(longest * (1 + self._random()) / 2)
