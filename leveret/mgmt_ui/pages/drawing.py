"""Drawing of an exchange and its bindings: SVG, computed from numbers.

    sources ──► the exchange ──► destinations

With many bindings, it shows the first of them and the number of the others; the tables have them
all. Only positions are computed here: names are inserted by the template, which escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.mgmt_ui.pages.formats import path

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row

__all__ = ["Box", "Drawing", "Edge", "draw"]

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
