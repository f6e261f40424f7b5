"""Drawings in SVG, computed from numbers: a histogram, bars of partitions, an exchange's bindings.

    sources ──► the exchange ──► destinations

With many bindings, it shows the first of them and the number of the others; the tables have them
all. Only positions are computed here: names are inserted by the template, which escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.mgmt_ui.pages.formats import count, duration, moment, path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.mgmt_ui.api.views import Row

__all__ = [
    "LAG_WIDTH",
    "Bar",
    "Box",
    "Drawing",
    "Edge",
    "HistogramChart",
    "LagBar",
    "draw",
    "histogram",
    "lag_bars",
    "partition_bars",
]

ROWS_MAX = 14  # of each side
BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT = 220, 30, 44
COLUMN_GAP = 190  # for routing keys
MARGIN = 16
NAME_CHARACTERS_MAX, KEY_CHARACTERS_MAX = 30, 20


@dataclass(frozen=True, slots=True)
class Box:
    """An exchange or a queue; `address` is "" if it is no link."""

    x: int
    y: int
    text: str
    title: str
    address: str
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Line from the right side of one box to the left side of another, with routing keys."""

    line: str
    x: int
    y: int
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes, edges and size of the drawing."""

    width: int
    height: int
    boxes: list[Box]
    edges: list[Edge]
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


def draw(vhost: str, exchange: str, incoming: Sequence[Row], outgoing: Sequence[Row]) -> Drawing:
    """Return the drawing of an exchange with its incoming and outgoing bindings."""
    sources = _ends(incoming, lambda row: ("exchange", row["source"]))
    targets = _ends(outgoing, lambda row: (row["destination_type"], row["destination"]))
    rows = max(_rows(sources), _rows(targets), 1)
    columns = [MARGIN]
    if sources:
        columns.append(columns[-1] + BOX_WIDTH + COLUMN_GAP)
    middle = columns[-1]
    right = middle + BOX_WIDTH + COLUMN_GAP
    width = (right if targets else middle) + BOX_WIDTH + MARGIN
    height = rows * ROW_HEIGHT + 2 * MARGIN - (ROW_HEIGHT - BOX_HEIGHT)
    centre = (height - BOX_HEIGHT) // 2
    here = Box(
        middle, centre, _cut(exchange or "(default)", NAME_CHARACTERS_MAX), exchange, "", True
    )
    drawing = Drawing(width, height, [here], [])
    _add(drawing, vhost, sources, MARGIN, here, into=True)
    _add(drawing, vhost, targets, right, here, into=False)
    return drawing


def _ends(rows: Iterable[Row], end: object) -> dict[tuple[str, str], list[str]]:
    """Return the other ends with their routing keys, in the order of the bindings."""
    assert callable(end)
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault(end(row), []).append(row["routing_key"])
    return found


def _rows(ends: dict[tuple[str, str], list[str]]) -> int:
    return min(len(ends), ROWS_MAX + 1)


def _add(
    drawing: Drawing,
    vhost: str,
    ends: dict[tuple[str, str], list[str]],
    x: int,
    here: Box,
    *,
    into: bool,
) -> None:
    """Add the boxes of one side, centred vertically, and their lines."""
    count = _rows(ends)
    top = (drawing.height - count * ROW_HEIGHT + ROW_HEIGHT - BOX_HEIGHT) // 2
    for i, ((kind, name), keys) in enumerate(list(ends.items())[:ROWS_MAX]):
        y = top + i * ROW_HEIGHT
        room = "exchanges" if kind == "exchange" else "queues"
        address = path(room, vhost, name or "amq.default")
        text = _cut(name or "(default)", NAME_CHARACTERS_MAX)
        drawing.boxes.append(Box(x, y, text, f"{kind} {name}", address))
        left, right = ((x, y), (here.x, here.y)) if into else ((here.x, here.y), (x, y))
        drawing.edges.append(_edge(left, right, y, keys))
    if len(ends) > ROWS_MAX:
        more = f"and {len(ends) - ROWS_MAX} more"
        drawing.boxes.append(Box(x, top + ROWS_MAX * ROW_HEIGHT, more, more, ""))


def _edge(left: tuple[int, int], right: tuple[int, int], y: int, keys: list[str]) -> Edge:
    x1, y1 = left[0] + BOX_WIDTH, left[1] + BOX_HEIGHT // 2
    x2, y2 = right[0], right[1] + BOX_HEIGHT // 2
    bend = (x1 + x2) // 2
    line = f"M{x1} {y1} C{bend} {y1} {bend} {y2} {x2 - 7} {y2}"
    shown = sorted({key for key in keys if key})
    text = shown[0] if shown else ""
    if len(shown) > 1:
        text += f" +{len(shown) - 1}"
    # Beside the end that is not shared, where lines are apart.
    at = x2 - COLUMN_GAP // 3 if y == right[1] and y != left[1] else x1 + COLUMN_GAP // 3
    return Edge(line, at, y + BOX_HEIGHT // 2 - 5, _cut(text, KEY_CHARACTERS_MAX), ", ".join(shown))


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


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


LAG_WIDTH = 240  # of the longest bar, in its own units
LAG_WIDTH_MIN = 3  # of a part that is not empty, so that it is seen


@dataclass(frozen=True, slots=True)
class LagBar:
    """Widths of a partition's bar, from the left: read, delivered and not settled, waiting."""

    read: float
    unacked: float
    waiting: float
    title: str


def lag_bars(partitions: Sequence[Row]) -> list[LagBar]:
    """Return the bars of partitions, each as long as what the partition keeps, on one scale.

        |  read              | unacked | waiting  |
        first                                     end

    A lag that comes near the left end is about to lose messages to retention.
    """
    longest = max((row["end"] - row["first"] for row in partitions), default=0)
    return [_lag_bar(row, max(longest, 1)) for row in partitions]


def _lag_bar(row: Row, longest: int) -> LagBar:
    kept = max(row["end"] - row["first"], 0)
    lag = min(row["lag"], kept)
    unacked = min(row["unacked"], lag)
    title = f"{count(lag)} of {count(kept)} messages kept are not acknowledged"
    return _in_parts(kept, unacked, lag - unacked, longest, title)


def _in_parts(kept: int, unacked: int, waiting: int, longest: int, title: str) -> LagBar:
    """Return a bar of `kept` messages, of which some are unacknowledged and some wait."""
    scale = LAG_WIDTH / longest
    held, rest = (
        round(max(number * scale, LAG_WIDTH_MIN), 1) if number else 0.0
        for number in (unacked, waiting)
    )
    read = round(max(kept * scale - held - rest, 0), 1)
    return LagBar(read, held, rest, title)


def partition_bars(partitions: Sequence[Row], *, keeps: bool) -> list[LagBar]:
    """Return the bars of a topic's partitions, each as long as what it holds, on one scale.

        |  settled, kept by the retention  | unacked | ready  |

    Without a retention (`keeps`) settled messages cannot be read again, and are not drawn.
    """
    parts = [_contents(row, keeps=keeps) for row in partitions]
    longest = max((sum(numbers) for numbers in parts), default=0)
    return [
        _in_parts(sum(numbers), numbers[1], numbers[2], max(longest, 1), _contents_title(*numbers))
        for numbers in parts
    ]


def _contents(row: Row, *, keeps: bool) -> tuple[int, int, int]:
    """Return how many messages of a partition are settled and kept, unacknowledged, and ready."""
    present = row["unacked"] + row["messages"]
    settled = max(row["end"] - row["first"] - present, 0) if keeps else 0
    return settled, row["unacked"], row["messages"]


def _contents_title(settled: int, unacked: int, ready: int) -> str:
    told = f"{count(ready)} ready, {count(unacked)} unacknowledged"
    return f"{told}, {count(settled)} kept to be read again" if settled else told
