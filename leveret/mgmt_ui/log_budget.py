"""Rate limits of log lines, so that no client can fill the disk.

Each category has a budget of lines, and each address that a line is about a fifth of it: a client
that floods the log leaves room for lines about others. Suppressed lines are counted and reported.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LineBudget"]

BURST_SECONDS: Final = 20.0  # worth of lines that may come at once: a fleet that reconnects
SOURCE_SHARE: Final = 0.2
TOLD_EVERY_SECONDS: Final = 10.0
SOURCES_MAX: Final = 10_000  # that are remembered, some hundred bytes each


@dataclass(slots=True)
class _Bucket:
    """Lines that may still be written, as of a moment."""

    lines: float
    at_seconds: float


class LineBudget:
    """Line budgets of a node's log. `clock` gives seconds from some fixed moment."""

    def __init__(self, lines_per_second: float, clock: Callable[[], float]) -> None:
        self._rate = lines_per_second
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._sources: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._left_out: Counter[str] = Counter()
        self._told_at = clock()

    def take(self, category: str, source: str = "") -> bool:
        """Return whether a line may be written; `source` is the address it is about, if any."""
        now = self._clock()
        bucket = self._buckets.setdefault(category, self._full(self._rate, now))
        self._fill(bucket, self._rate, now)
        if bucket.lines < 1 or not self._take_of_source(category, source, now):
            self._left_out[category] += 1
            return False
        bucket.lines -= 1
        return True

    def left_out(self) -> list[tuple[str, int]]:
        """Return categories and their numbers of suppressed lines, every ten seconds at most."""
        now = self._clock()
        if not self._left_out or now - self._told_at < TOLD_EVERY_SECONDS:
            return []
        self._told_at = now
        told, self._left_out = list(self._left_out.items()), Counter()
        return told

    def _take_of_source(self, category: str, source: str, now: float) -> bool:
        if not source:
            return True
        rate = self._rate * SOURCE_SHARE
        bucket = self._sources.setdefault((category, source), self._full(rate, now))
        self._sources.move_to_end((category, source))
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)
        self._fill(bucket, rate, now)
        if bucket.lines < 1:
            return False
        bucket.lines -= 1
        return True

    @staticmethod
    def _full(rate: float, now: float) -> _Bucket:
        return _Bucket(max(rate * BURST_SECONDS, 1), now)

    @staticmethod
    def _fill(bucket: _Bucket, rate: float, now: float) -> None:
        lines = bucket.lines + (now - bucket.at_seconds) * rate
        bucket.lines = min(lines, max(rate * BURST_SECONDS, 1))
        bucket.at_seconds = now
