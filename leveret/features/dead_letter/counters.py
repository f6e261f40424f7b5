"""Counters of discarded and retried messages of a node's queues, since it started.

Counted by range, when its queue is done with it; read by the metrics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.settings.arguments import type_of
from leveret.core.settings.queue_settings import DeadLetterStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.queue import Queue
    from leveret.core.settings.discard_reasons import Reason

__all__ = ["DISABLED", "DeadLetterCounters", "DeathLabels"]

DISABLED = "disabled"  # strategy label of queues without dead-lettering


class DeathLabels(NamedTuple):
    """Labels of a counter; `strategy` is DISABLED for messages that were dropped."""

    queue_type: str
    strategy: str
    reason: str


class DeadLetterCounters:
    """Dead-letter and retry counters of one node."""

    def __init__(self) -> None:
        self.deaths: Counter[DeathLabels] = Counter()
        self.retries: Counter[str] = Counter()  # by the failure before the retry

    def died(self, queue: Queue, reason: Reason, ranges: Iterable[tuple[int, int]]) -> None:
        """Count messages that a queue has discarded."""
        strategy = DISABLED
        if queue.settings.dead_letters(reason):
            is_safe = queue.settings.dead_letter_strategy is DeadLetterStrategy.AT_LEAST_ONCE
            strategy = "at_least_once" if is_safe else "at_most_once"
        death = DeathLabels(type_of(queue.definition.arguments), strategy, reason.value)
        count = _count(ranges)
        self.deaths[death] += count
        queue.died_count += count

    def retried(self, reason: Reason, ranges: Iterable[tuple[int, int]]) -> None:
        """Count messages that wait for a retry."""
        self.retries[reason.value] += _count(ranges)


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)
