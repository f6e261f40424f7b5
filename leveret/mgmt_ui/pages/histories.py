"""Points of charts from statistics, past and current.

Samples are taken only where a counter has changed: between two that are further apart than their
step, everything stayed as it was, and the points say so. Pure functions of a node's `Statistics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from leveret.mgmt_ui.pages.charts import Chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.core.statistics.series import Samples
    from leveret.core.statistics.statistics import Counted, Statistics
    from leveret.mgmt_ui.pages.charts import Period

__all__ = [
    "DELIVERIES",
    "FLOW",
    "LENGTHS",
    "THROUGH",
    "chart_of_lags",
    "chart_of_lengths",
    "chart_of_rates",
    "latest_lags",
    "latest_lengths",
    "latest_rates",
    "quantile",
]

Point: TypeAlias = tuple[float, tuple[float, ...]]
Counters: TypeAlias = "Mapping[str, tuple[str, ...]]"

# The lines of charts, each with the counters that it sums.
DELIVERED = ("deliver", "deliver_no_ack", "get", "get_no_ack")
FLOW: Counters = {
    "Published": ("publish",),
    "Delivered": DELIVERED,
    "Acknowledged": ("ack",),
    "Redelivered": ("redeliver",),
    "Confirmed": ("confirm",),
    "Unroutable": ("return_unroutable", "drop_unroutable"),
}
DELIVERIES: Counters = {name: FLOW[name] for name in list(FLOW)[:4]}
THROUGH: Counters = {"Published to it": ("publish_in",), "Routed from it": ("publish_out",)}
LENGTHS: Counters = {
    "Ready": ("messages_ready",),
    "Unacknowledged": ("messages_unacknowledged",),
}

LAGS: Counters = {"Lag": ("lag",), "Unacknowledged": ("unacked",)}


def chart_of_rates(
    statistics: Statistics, subject: Counted | None, lines: Counters, period: Period
) -> Chart:
    """Return a chart of rates per second, of a subject or of the node (None)."""
    points: list[Point] = []
    samples = _samples(statistics, subject, period)
    if samples is not None:
        begin_ms = statistics.tick_ms - period.age_seconds * 1000
        points = _per_second(samples, lines, statistics.tick_ms, begin_ms)
    return Chart("rates", "Message rates", "rate", tuple(lines), points, period.age_seconds)


def chart_of_lengths(statistics: Statistics, subject: Counted | None, period: Period) -> Chart:
    """Return a chart of message counts, of a subject or of the node (None)."""
    points = _levels(statistics, subject, LENGTHS, period)
    return Chart("lengths", "Messages", "count", tuple(LENGTHS), points, period.age_seconds)


def chart_of_lags(statistics: Statistics, group: Counted, period: Period) -> Chart:
    """Return a chart of what a consumer group has not acknowledged."""
    points = _levels(statistics, group, LAGS, period)
    return Chart("lags", "Lag", "count", tuple(LAGS), points, period.age_seconds)


def _levels(
    statistics: Statistics, subject: Counted | None, lines: Counters, period: Period
) -> list[Point]:
    samples = _samples(statistics, subject, period)
    if samples is None:
        return []
    begin_ms = statistics.tick_ms - period.age_seconds * 1000
    return _as_they_were(samples, lines, statistics.tick_ms, begin_ms)


def latest_rates(
    statistics: Statistics, subject: Counted | None, lines: Counters
) -> list[float | None]:
    """Return the newest point of `chart_of_rates`, for `live`: time, and a value per line."""
    values = [sum(statistics.rate(subject, name) for name in names) for names in lines.values()]
    return [statistics.tick_ms / 1000, *values]


def latest_lengths(statistics: Statistics, counts: Mapping[str, int]) -> list[float | None]:
    """Return the newest point of `chart_of_lengths`, from current counts."""
    values = [float(sum(counts[name] for name in names)) for names in LENGTHS.values()]
    return [statistics.tick_ms / 1000, *values]


def latest_lags(statistics: Statistics, counts: Mapping[str, int]) -> list[float | None]:
    """Return the newest point of `chart_of_lags`, from current counts."""
    values = [float(sum(counts[name] for name in names)) for names in LAGS.values()]
    return [statistics.tick_ms / 1000, *values]


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """Return a quantile of bucket counts; None if nothing was counted.

    Values are taken to be spread evenly within a bucket; those above the last bound are taken to be
    at it.
    """
    wanted = sum(counts) * part
    if not wanted:
        return None
    below, seen = 0.0, 0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return below + (bound - below) * (wanted - seen) / count
        seen, below = seen + count, bound
    return float(bounds[-1])


def _samples(statistics: Statistics, subject: Counted | None, period: Period) -> Samples | None:
    series = statistics.series(subject)
    return None if series is None else series.finest(period.age_seconds * 1000)


def _per_second(samples: Samples, lines: Counters, now_ms: int, begin_ms: int) -> list[Point]:
    step_ms, nothing = samples.retention.step_ms, (0.0,) * len(lines)
    points: list[Point] = []
    before_ms, before = 0.0, nothing
    for time_ms, values in _sums(samples, lines):
        if before_ms and time_ms > begin_ms:
            passed_ms = time_ms - before_ms
            if passed_ms > 2 * step_ms:  # it changed in the last step only
                points += [(before_ms + step_ms, nothing), (time_ms - step_ms, nothing)]
                passed_ms = step_ms
            moved = zip(values, before, strict=True)
            rates = tuple(max(now - then, 0) * 1000 / passed_ms for now, then in moved)
            points.append((time_ms, rates))
        before_ms, before = time_ms, values
    if before_ms and now_ms > before_ms + step_ms:
        points += [(max(before_ms + step_ms, begin_ms), nothing), (now_ms, nothing)]
    return points


def _as_they_were(samples: Samples, lines: Counters, now_ms: int, begin_ms: int) -> list[Point]:
    step_ms = samples.retention.step_ms
    points: list[Point] = []
    for time_ms, values in _sums(samples, lines):
        if points and time_ms > points[-1][0] + 2 * step_ms:
            points.append((time_ms - step_ms, points[-1][1]))
        points.append((time_ms, values))
    older = [point for point in points if point[0] < begin_ms]
    points = points[len(older) :]
    if older and not (points and points[0][0] == begin_ms):
        points.insert(0, (begin_ms, older[-1][1]))
    if points and now_ms > points[-1][0]:
        points.append((now_ms, points[-1][1]))
    return points


def _sums(samples: Samples, lines: Counters) -> list[Point]:
    """Return every sample with the sums of the lines' counters."""
    columns = samples.columns
    return [
        (
            time_ms,
            tuple(
                float(sum(columns[name][i] for name in names if name in columns))
                for names in lines.values()
            ),
        )
        for i, time_ms in enumerate(samples.times)
    ]
