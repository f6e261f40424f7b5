"""Runs of records that are sent to a consumer and need not lie together.

Used by queues whose next offsets lie apart, as with priorities, and by those of whose consumers
some have filters.
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
    """`QueueConsumer.send_runs` of whoever takes one run at a time, by its `send`."""
    reached = runs[0][0]
    for first, stop in runs:
        reached = send(batches, first, stop, redelivered=redelivered)
        if reached < stop:
            break
    return reached


def cut(runs: Runs, stop: int) -> Runs:
    """What of these runs lies below `stop`."""
    if runs[-1][1] <= stop:
        return runs
    return [(low, min(high, stop)) for low, high in runs if low < stop]


def count(runs: Runs) -> int:
    """How many records these runs have."""
    return sum(stop - first for first, stop in runs)
