"""Rates: how many messages may pass in a second, and how many at once.

Pure arithmetic in whole numbers; time is an argument. `leveret.core.access.rates` keeps the
buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RATE_MAX", "Bucket", "Rate", "rate_of", "retry_after_seconds"]

RATE_MAX = 1_000_000_000  # messages a second: more than any node takes, and no overflow anywhere
BURST_PARTS_MAX = 20  # the smallest burst is this part of what a second brings
MILLI = 1000  # tokens are counted in thousandths: so many come in a millisecond at 1 a second


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` messages, 0 for none at all; after a quiet time `burst` of them at once."""

    per_second: int
    burst: int


def rate_of(values: Mapping[str, int], what: str) -> Rate | None:
    """What `WHAT-rate` and `WHAT-burst` say, in which a negative number counts as absent.

    Without a burst it is what a second brings, and one message at least. It is never less than what
    50 ms bring: whoever is slowed down would be stopped and told so hundreds of times a second.
    More than RATE_MAX counts as that.
    """
    per_second = min(values.get(f"{what}-rate", -1), RATE_MAX)
    if per_second < 0:
        return None
    burst = min(values.get(f"{what}-burst", -1), RATE_MAX)
    least = max(per_second // BURST_PARTS_MAX, 1)
    return Rate(per_second, max(burst if burst > 0 else per_second, least))


class Bucket:
    """A leaky bucket of tokens: one for each message, as many come back as the rate says.

    More may be taken than there are: then so much longer nothing is available. Times are in
    milliseconds; a clock that is set back stops the bucket for no time at all.
    """

    __slots__ = ("_at_ms", "_milli", "_wakes_ms", "rate")

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        self._at_ms = now_ms
        self._milli = rate.burst * MILLI
        self._wakes_ms = now_ms

    def change(self, rate: Rate, now_ms: int) -> None:
        """Go by another rate from now on. What was taken too much stays taken."""
        self._refill(now_ms)
        self.rate = rate
        self._milli = min(self._milli, rate.burst * MILLI)

    def available(self, now_ms: int) -> int:
        """How many messages may pass now."""
        self._refill(now_ms)
        return max(self._milli // MILLI, 0)

    def take(self, count: int, now_ms: int) -> None:
        """So many have passed."""
        self._refill(now_ms)
        self._milli -= count * MILLI

    def wait_ms(self, count: int, now_ms: int) -> int | None:
        """Milliseconds until `count` may pass, or as many as ever may at once; None: never."""
        self._refill(now_ms)
        missing = min(count, self.rate.burst) * MILLI - self._milli
        if missing <= 0:
            return 0 if self.rate.per_second else None
        if not self.rate.per_second:
            return None
        return -(-missing // self.rate.per_second)

    def wake_ms(self, count: int, now_ms: int) -> int | None:
        """When who waits for `count` shall look again: all at one moment, to be served in turn.

        That is whenever `count` may pass for the first of them. None: never.
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
    """What the HTTP header Retry-After says: whole seconds, one at least."""
    return max(-(-wait_ms // 1000), 1)
