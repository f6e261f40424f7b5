"""Histogram of times: bars over a time axis, drawn on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.mgmt_ui.pages.formats import count, duration, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bar", "HistogramChart", "histogram"]

WIDTH, HEIGHT = 960, 130  # of the drawing, in its own units
BARS = 48
TICKS = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: position, size, and tooltip."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class HistogramChart:
    """A drawing of `width` by `height`; `ticks` are texts below it by position."""

    bars: list[Bar]
    ticks: list[tuple[float, str]]
    highest: int
    width: int = WIDTH
    height: int = HEIGHT


def histogram(times_ms: Sequence[int], now_ms: int) -> HistogramChart | None:
    """Return the histogram of times from now to the last one; None without times."""
    if not times_ms:
        return None
    span = max(max(times_ms) - now_ms, 1000)
    step = span / BARS
    counts = [0] * BARS
    for time_ms in times_ms:
        counts[min(max(int((time_ms - now_ms) / step), 0), BARS - 1)] += 1
    highest = max(counts)
    return HistogramChart(
        [
            _bar(at, number, highest, now_ms + at * step)
            for at, number in enumerate(counts)
            if number
        ],
        [(WIDTH * tick / TICKS, _in(span * tick / TICKS)) for tick in range(TICKS + 1)],
        highest,
    )


def _bar(at: int, number: int, highest: int, begins_ms: float) -> Bar:
    width = WIDTH / BARS
    height = max(HEIGHT * number / highest, 2)
    title = f"{count(number)} from {moment(begins_ms)}"
    return Bar(
        round(at * width + 1, 1), round(HEIGHT - height, 1), width - 2, round(height, 1), title
    )


def _in(milliseconds: float) -> str:
    return f"in {duration(round(milliseconds / 1000))}" if milliseconds else "now"
