"""Charts as positions in a drawing: stacked columns over time, lines, and bars of a ranking.

Only numbers are computed here; the template draws them as SVG, and has a table of the same numbers
beside each. A drawing is as wide as the page, in units of its own:

        left                                  WIDTH
    TOP  ┌──────────────────────────────────────┐
         │   columns, or points of lines        │
    base └──────────────────────────────────────┘
          ticks of the categories
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.spark.reports.texts import quantity, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leveret.spark.reports.texts import Unit

__all__ = [
    "ChartSeries",
    "RankedRow",
    "Ranking",
    "SeriesChart",
    "column_chart",
    "line_chart",
    "ranking",
]

WIDTH: Final = 960
HEIGHT: Final = 260
TOP: Final = 12
BASE: Final = 222  # the axis of the categories
LEFT: Final = 84  # place for the numbers of the scale
SERIES_MAX: Final = 6  # as many as the page has colours; the smallest are summed up in the last
STEPS: Final = 4  # of the scale, about
LABEL_UNITS: Final = 7.5  # width of a character of a tick
COLUMN_WIDTH_MAX: Final = 48.0
COLUMN_HEIGHT_MIN: Final = 1.0  # of a part that is not empty, so that it is seen
OTHERS: Final = "all others"


class ChartSeries(NamedTuple):
    """Values of one name, one for each category."""

    name: str
    values: Sequence[float]


class ChartColumn(NamedTuple):
    """Rectangle of one value, and what is said of it."""

    x: float
    y: float
    width: float
    height: float
    title: str


class ScaleTick(NamedTuple):
    """Mark of a scale at a position."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    """One series as it is drawn: columns, or a line through points."""

    columns: Sequence[ChartColumn] = ()
    points: Sequence[ChartColumn] = ()  # of a line, without a size
    path: str = ""


@dataclass(frozen=True, slots=True)
class SeriesChart:
    """A chart of several series over ordered categories, such as hours."""

    title: str
    unit: Unit
    axis: str  # what the categories are
    categories: Sequence[str]
    series: Sequence[ChartSeries]
    drawn: Sequence[DrawnSeries]
    value_ticks: Sequence[ScaleTick]
    category_ticks: Sequence[ScaleTick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    base: int = BASE

    @property
    def description(self) -> str:
        """Sentence that says what is seen, for those who do not see it."""
        if not self.categories:
            return f"{self.title}: nothing to show"
        totals = [sum(parts) for parts in zip(*(each.values for each in self.series), strict=True)]
        highest = max(totals)
        where = self.categories[totals.index(highest)]
        return (
            f"{self.title}, by {self.axis}, from {self.categories[0]} to {self.categories[-1]}: "
            f"{quantity(sum(totals), self.unit)} in all, at most {quantity(highest, self.unit)} "
            f"at {where}"
        )

    @property
    def rows(self) -> list[list[str]]:
        """The numbers, a row for each category."""
        return [
            [category, *(quantity(each.values[at], self.unit) for each in self.series)]
            for at, category in enumerate(self.categories)
        ]


class RankedRow(NamedTuple):
    """One name, its value, and its share of the highest value in percent."""

    name: str
    value: str
    share: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The names with the highest values; `others` sums up the rest."""

    title: str
    heading: str  # of the names
    unit: Unit
    rows: Sequence[RankedRow]
    others: str = ""


def column_chart(
    title: str,
    axis: str,
    categories: Sequence[str],
    values: Mapping[str, Sequence[float]],
    unit: Unit = "count",
) -> SeriesChart:
    """Return columns, one for each category, in which the series are stacked."""
    series = _largest(values)
    stacks = [list(accumulate(parts)) for parts in zip(*(s.values for s in series), strict=True)]
    highest = max((stack[-1] for stack in stacks if stack), default=0)
    top, ticks = _scale(highest, unit)
    step = (WIDTH - LEFT) / max(len(categories), 1)
    width = min(step * 0.8, COLUMN_WIDTH_MAX)
    drawn = [
        DrawnSeries(
            columns=[
                _column(
                    (LEFT + step * at + (step - width) / 2, width),
                    (stacks[at][row] - value, stacks[at][row]),
                    top,
                    f"{categories[at]}, {each.name}: {quantity(value, unit)}",
                )
                for at, value in enumerate(each.values)
                if value > 0
            ]
        )
        for row, each in enumerate(series)
    ]
    return SeriesChart(
        title, unit, axis, list(categories), series, drawn, ticks, _category_ticks(categories)
    )


def line_chart(
    title: str,
    axis: str,
    categories: Sequence[str],
    values: Mapping[str, Sequence[float]],
    unit: Unit = "count",
) -> SeriesChart:
    """Return a line for each series."""
    series = _largest(values)
    highest = max((value for each in series for value in each.values), default=0)
    top, ticks = _scale(highest, unit)
    step = (WIDTH - LEFT) / max(len(categories), 1)
    drawn = []
    for each in series:
        points = [
            ChartColumn(
                round(LEFT + step * (at + 0.5), 1),
                round(BASE - (BASE - TOP) * value / top, 1),
                0,
                0,
                f"{categories[at]}, {each.name}: {quantity(value, unit)}",
            )
            for at, value in enumerate(each.values)
        ]
        path = " ".join(f"{'L' if at else 'M'}{p.x} {p.y}" for at, p in enumerate(points))
        drawn.append(DrawnSeries(points=points, path=path))
    return SeriesChart(
        title, unit, axis, list(categories), series, drawn, ticks, _category_ticks(categories)
    )


def ranking(
    title: str,
    heading: str,
    values: Iterable[tuple[str, float]],
    unit: Unit = "count",
    rows_max: int = 12,
) -> Ranking:
    """Return the names with the highest values, and what the others have together."""
    ordered = sorted(values, key=lambda pair: (-pair[1], pair[0]))
    shown, rest = ordered[:rows_max], ordered[rows_max:]
    highest = max((value for _, value in shown), default=0) or 1
    return Ranking(
        title,
        heading,
        unit,
        [
            RankedRow(visible(name), quantity(value, unit), round(max(value, 0) / highest * 100, 2))
            for name, value in shown
        ],
        f"{len(rest):,} more: {quantity(sum(value for _, value in rest), unit)}" if rest else "",
    )


def _largest(values: Mapping[str, Sequence[float]]) -> list[ChartSeries]:
    """Return the largest series, in the order of their sums; the others are added up."""
    ordered = sorted(values.items(), key=lambda pair: (-sum(pair[1]), pair[0]))
    if len(ordered) > SERIES_MAX:
        rest = [
            sum(parts) for parts in zip(*(v for _, v in ordered[SERIES_MAX - 1 :]), strict=True)
        ]
        ordered = [*ordered[: SERIES_MAX - 1], (OTHERS, rest)]
    return [ChartSeries(visible(name), list(numbers)) for name, numbers in ordered]


def _column(
    place: tuple[float, float], values: tuple[float, float], top: float, title: str
) -> ChartColumn:
    """Return the rectangle at a place (x, width) from one value to another."""
    (x, width), (low, high) = place, values
    scale = (BASE - TOP) / top
    height = max((high - low) * scale, COLUMN_HEIGHT_MIN)
    y = min(BASE - high * scale, BASE - height)
    return ChartColumn(round(x, 1), round(y, 1), round(width, 1), round(height, 1), title)


def _scale(highest: float, unit: Unit) -> tuple[float, list[ScaleTick]]:
    """Return the value at the top, and the ticks from 0 to it, at round numbers."""
    if highest <= 0:
        return 1.0, [ScaleTick(BASE, quantity(0, unit))]
    base = 2.0 if unit == "bytes" else 10.0
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if unit == "bytes" else (1, 2, 5, 10)
    rough = highest / STEPS
    power = (
        1024 ** math.floor(math.log(max(rough, 1), 1024))
        if base == 2
        else 10 ** math.floor(math.log10(rough))
    )
    step = next((each * power for each in steps if each * power >= rough), 1024 * power)
    if unit == "count" and step < 1:
        step = 1.0
    count = math.ceil(highest / step)
    top = step * count
    return top, [
        ScaleTick(round(BASE - (BASE - TOP) * at / count, 1), quantity(step * at, unit))
        for at in range(count + 1)
    ]


def _category_ticks(categories: Sequence[str]) -> list[ScaleTick]:
    """Return the names of as many categories as have room."""
    if not categories:
        return []
    step = (WIDTH - LEFT) / len(categories)
    longest = max(len(each) for each in categories)
    every = max(math.ceil((longest + 2) * LABEL_UNITS / step), 1)
    return [
        ScaleTick(round(LEFT + step * (at + 0.5), 1), visible(categories[at]))
        for at in range(0, len(categories), every)
    ]
