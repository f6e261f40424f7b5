"""Charts: what the script draws, and how the values are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULT", "PERIODS", "Chart", "Period", "period_named"]

Unit = Literal["count", "rate", "bytes", "bytes-rate", "seconds", "share"]


@dataclass(frozen=True, slots=True)
class Period:
    """How far back a chart looks."""

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
    """The period of an address's parameter; ten minutes where it names none."""
    return next((period for period in PERIODS if period.name == name), DEFAULT)


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time. `points` are (milliseconds since 1970, one value for each label).

    `name` tells it from the others of its page, for `live` to append to it.
    """

    name: str
    title: str
    unit: Unit
    labels: tuple[str, ...]
    points: Sequence[tuple[float, Sequence[float | None]]] = ()
    window_seconds: int = 3_600  # what is older leaves on the left when new points come

    @property
    def description(self) -> str:
        """For who cannot see it."""
        latest = self.points[-1][1] if self.points else [None] * len(self.labels)
        parts = (
            f"{label} {'unknown' if value is None else round(value, 3)}"
            for label, value in zip(self.labels, latest, strict=True)
        )
        return f"{self.title}: latest values {', '.join(parts)}"

    @property
    def json(self) -> str:
        """For the script: columns, as uPlot wants them."""
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
