"""Charts: the data that the script draws, and the units of values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULT", "PERIODS", "Chart", "Period", "period_named"]

Unit = Literal["count", "rate", "bytes", "bytes-rate", "seconds", "share"]


@dataclass(frozen=True, slots=True)
class Period:
    """Time span of a chart."""

    name: str
    title: str
    age_seconds: int


DEFAULT = Period("minutes", "10 minutes", 600)
PERIODS = (
    Period("minute", "Minute", 60),
    DEFAULT,
    Period("hour", "Hour", 3_600),
    Period("day", "Day", 86_400),
    Period("week", "Week", 604_800),
)


def period_named(name: str) -> Period:
    """Return the period of an address's parameter; ten minutes if unknown."""
    return next((period for period in PERIODS if period.name == name), DEFAULT)


@dataclass(frozen=True, slots=True)
class Chart:
    """Line chart over time. `points` are (milliseconds since 1970, one value for each label).

    `name` is unique on its page, so that `live` can append to the chart.
    """

    name: str
    title: str
    unit: Unit
    labels: tuple[str, ...]
    points: Sequence[tuple[float, Sequence[float | None]]] = ()
    window_seconds: int = 3_600  # older points are dropped when new ones come

    @property
    def description(self) -> str:
        """Text for screen readers: the latest values."""
        latest = self.points[-1][1] if self.points else [None] * len(self.labels)
        parts = (
            f"{label} {'unknown' if value is None else round(value, 3)}"
            for label, value in zip(self.labels, latest, strict=True)
        )
        return f"{self.title}: latest values {', '.join(parts)}"

    @property
    def json(self) -> str:
        """Data for the script: columns, as uPlot needs them."""
        times = [time_ms / 1000 for time_ms, _ in self.points]
        columns = [[values[i] for _, values in self.points] for i in range(len(self.labels))]
        return json.dumps(
            {
                "name": self.name,
                "unit": self.unit,
                "labels": self.labels,
                "data": [times, *columns],
                "window": self.window_seconds,
            }
        )
