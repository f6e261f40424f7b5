"""Output of results: a table on a terminal, plain columns elsewhere, JSON for programs.

Scripts read the plain columns: they are as wide as their content and have no colour.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from leveret.cli.session import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

__all__ = [
    "MOMENTS",
    "is_for_people",
    "iso",
    "printable",
    "show_done",
    "show_json",
    "show_rows",
    "show_warnings",
]

COLUMN_GAP = "  "
# Columns of states, which are coloured; other columns are not.
STATE_COLUMNS = {"state", "phase", "firing"}
STATE_STYLES = {
    "running": "green",
    "paused": "yellow",
    "blocked": "yellow",
    "unacked": "yellow",
    "delayed": "yellow",
    "cancelled": "yellow",
    "failed": "red",
}


# Fields that hold a moment, in milliseconds since 1970: people are shown a time.
MOMENTS = {
    "at",
    "committed_at",
    "connected_at",
    "created",
    "created_at",
    "created_ms",
    "died_at",
    "due",
    "due_ms",
    "ends_at",
    "first_failure_at",
    "last_at",
    "next_check_at",
    "prepared_at",
    "seen_at",
    "since",
    "staged_since",
    "started",
    "stored_at",
    "time_ms",
}

# Fields that hold ascending numbers, of which there may be very many: people are shown ranges.
NUMBERED = {"staged"}
RANGES_SHOWN_MAX = 3


def iso(ms: int) -> str:
    """Format milliseconds since 1970; out of the calendar's range, return the number."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError):
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_rows(rows: list[dict[str, Any]], columns: list[str]) -> None:
    """Show a list of results; in columns, the headings come first even without rows."""
    if as_json():
        show_json(rows)
    elif is_for_people():
        _show_table(rows, columns)
    else:
        _show_columns(rows, columns)


def is_for_people() -> bool:
    """Whether standard output is a terminal that supports formatting."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _show_table(rows: list[dict[str, object]], columns: list[str]) -> None:
    """Show a table; numbers are aligned right, long cells are wrapped."""
    from rich.box import SIMPLE_HEAD  # imported only if needed
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for column in columns:
        numeric = bool(rows) and all(_is_number(column, row[column]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row[column]) for column in columns))
    Console(highlight=False).print(table)


def _cell(column: str, value: object) -> Text:
    """Return a cell as plain text, so that brackets in names are no markup."""
    from rich.text import Text

    text = _text(column, value)
    return Text(text, style=STATE_STYLES.get(text, "") if column in STATE_COLUMNS else "")


def _is_number(column: str, value: object) -> bool:
    return column not in MOMENTS and isinstance(value, int | float) and not isinstance(value, bool)


def _show_columns(rows: list[dict[str, object]], columns: list[str]) -> None:
    lines = [columns, *([_text(column, row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo(COLUMN_GAP.join(padded).rstrip())


def show_json(value: object) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def show_done(sentence: str) -> None:
    """Report success, in a sentence or as `{"ok": true}`."""
    typer.echo(json.dumps({"ok": True}) if as_json() else sentence)


def show_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, so that results stay parsable."""
    for warning in warnings:
        typer.echo(printable(warning), err=True)


def printable(text: str) -> str:
    """Escape control characters: names and messages are untrusted and must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _text(column: str, value: object) -> str:
    if value is None:
        return ""
    if column in MOMENTS and type(value) is int:
        return iso(value)
    if column in NUMBERED and isinstance(value, list):
        return _ranges(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return printable(",".join(value))
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as ranges, `0-29,31`; of many ranges the first, and a count."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [f"{first}-{last}" if first < last else f"{first}" for first, last in ranges]
    if len(shown) > RANGES_SHOWN_MAX:
        shown = [*shown[:RANGES_SHOWN_MAX], f"… ({len(numbers)})"]
    return ",".join(shown)
