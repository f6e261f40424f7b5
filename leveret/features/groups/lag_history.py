"""History of a consumer group's lag, in samples like those of the node's statistics.

Unlike a queue's, it begins anew with each start of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.statistics.series import BASIC, Series

if TYPE_CHECKING:
    from leveret.features.groups.groups import ConsumerGroup

__all__ = ["sample_lag"]


def sample_lag(group: ConsumerGroup, time_ms: int) -> None:
    """Take a sample of a group, if anything has changed since the last."""
    values = {"lag": group.lag, "unacked": group.unacked}
    series: Series | None = group.counters.series
    if series is None:
        series = group.counters.series = Series(BASIC)
    if series.last != values:
        series.add(time_ms, values)
