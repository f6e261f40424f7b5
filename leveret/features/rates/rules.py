"""Rate limits: how many messages may pass per second, and how many at once.

Pure arithmetic in whole numbers; time is an argument. `leveret.features.rates.rates` keeps the
buckets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from leveret.core.settings.queue_settings import Rate

__all__ = [
    "NO_RATES",
    "ConnectionRates",
    "TokenBucket",
    "retry_after_seconds",
]

MILLI = 1000  # tokens are counted in thousandths: at 1 per second one comes each millisecond


class ConnectionRates(NamedTuple):
    """Rate limits of every single connection of the node. None: unlimited."""

    publish: Rate | None = None
    consume: Rate | None = None


NO_RATES = ConnectionRates()


class TokenBucket:
    """Token bucket: each message takes one token, and tokens come back at the rate.

    More tokens may be taken than there are; the bucket then stays empty accordingly longer. Times
    are in milliseconds; if the clock is set back, refilling continues from the new time.
    """

    __slots__ = ("_at_ms", "_milli", "_wakes_ms", "rate")

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        self._at_ms = now_ms
        self._milli = rate.burst * MILLI
        self._wakes_ms = now_ms

    def change(self, rate: Rate, now_ms: int) -> None:
        """Change the rate from now on. A deficit of tokens remains."""
        self._refill(now_ms)
        self.rate = rate
        self._milli = min(self._milli, rate.burst * MILLI)

    def available(self, now_ms: int) -> int:
        """Return the number of messages that may pass now."""
        self._refill(now_ms)
        return max(self._milli // MILLI, 0)

    def take(self, count: int, now_ms: int) -> None:
        """Take `count` tokens, even if fewer are available."""
        self._refill(now_ms)
        self._milli -= count * MILLI

    def wait_ms(self, count: int, now_ms: int) -> int | None:
        """Return the time in ms until `count` messages, or a full burst, may pass; None: never."""
        self._refill(now_ms)
        missing = min(count, self.rate.burst) * MILLI - self._milli
        if missing <= 0:
            return 0 if self.rate.per_second else None
        if not self.rate.per_second:
            return None
        return -(-missing // self.rate.per_second)

    def wake_ms(self, count: int, now_ms: int) -> int | None:
        """Return the time at which those waiting for `count` messages check again; None: never.

        All get the same time, so that they are served in turn: when the first of them may pass.
        """
        wait_ms = self.wait_ms(count, now_ms)
        if wait_ms is None:
            return None
        if not now_ms < self._wakes_ms <= now_ms + wait_ms:
            self._wakes_ms = now_ms + max(wait_ms, 1)
        return self._wakes_ms

    def _refill(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._at_ms
        self._at_ms = now_ms
        if elapsed_ms > 0:
            gained = self._milli + elapsed_ms * self.rate.per_second
            self._milli = min(gained, self.rate.burst * MILLI)
        if not self.rate.per_second:
            self._milli = min(self._milli, 0)  # none at all, at once neither


def retry_after_seconds(wait_ms: int) -> int:
    """Return the value of the HTTP header Retry-After: whole seconds, at least one."""
    return max(-(-wait_ms // 1000), 1)
