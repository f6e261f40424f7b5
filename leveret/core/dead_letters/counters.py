"""How many messages the queues of a node have given up or tried again, since it started.

Counted by stretch, when its queue is done with it; read by the metrics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.queues.arguments import type_of
from leveret.core.queues.settings import DeadLetterStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.dead_letters.worker import Reason
    from leveret.core.queues.queue import Queue

__all__ = ["DISABLED", "DeadLetterCounters", "Death"]

DISABLED = "disabled"  # the strategy of a queue that nothing is kept of


class Death(NamedTuple):
    """Messages that are counted together; `strategy` is where they went: DISABLED is nowhere."""

    queue_type: str
    strategy: str
    reason: str


class DeadLetterCounters:
    """Counts of one node."""

    def __init__(self) -> None:
        self.deaths: Counter[Death] = Counter()
        self.retries: Counter[str] = Counter()  # by what the attempt before them failed of

    def died(self, queue: Queue, reason: Reason, ranges: Iterable[tuple[int, int]]) -> None:
        """A queue is done with these offsets."""
        strategy = DISABLED
        if queue.settings.dead_letters(reason):
            is_safe = queue.settings.dead_letter_strategy is DeadLetterStrategy.AT_LEAST_ONCE
            strategy = "at_least_once" if is_safe else "at_most_once"
        death = Death(type_of(queue.definition.arguments), strategy, reason.value)
        count = _count(ranges)
        self.deaths[death] += count
        queue.died_count += count

    def retried(self, reason: Reason, ranges: Iterable[tuple[int, int]]) -> None:
        """These offsets wait for another attempt."""
        self.retries[reason.value] += _count(ranges)


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)
