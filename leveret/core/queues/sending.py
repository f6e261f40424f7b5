"""Runs of records sent to a consumer that need not be adjacent.

Used by queues whose next offsets are not adjacent, as with priorities, and by those with filtering
consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports.records import Batch

Runs: TypeAlias = list[tuple[int, int]]  # (first, stop) of each, in order


def send_each(
    send: Callable[..., int], batches: list[Batch], runs: Runs, *, redelivered: bool
) -> int:
    """Implement `QueueConsumer.send_runs` by calling `send` for each run."""
    reached = runs[0][0]
    for first, stop in runs:
        reached = send(batches, first, stop, redelivered=redelivered)
        if reached < stop:
            break
    return reached


def cut(runs: Runs, stop: int) -> Runs:
    """Return the part of the runs below `stop`."""
    if runs[-1][1] <= stop:
        return runs
    return [(low, min(high, stop)) for low, high in runs if low < stop]


def count(runs: Runs) -> int:
    """Return the number of records in the runs."""
    return sum(stop - first for first, stop in runs)
