"""Values that people type in several commands, and how such are shown."""

from __future__ import annotations

import json as json_text
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.output import printable
from leveret.cli.session import fail

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MIB",
    "SHOWN_ROWS",
    "Arguments",
    "Limit",
    "all_pages",
    "arguments_of",
    "header_values",
    "iso",
    "moment_ms",
    "show_count",
    "show_one",
    "span",
]

MIB = 1 << 20
PAGE_ROWS = 1000  # of a list that a node tells page by page
SHOWN_ROWS = 100  # of which so many are shown where nobody says

Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", help="An argument, NAME=VALUE; VALUE is JSON, or text. Repeatable."),
]
Limit = Annotated[int, typer.Option("--limit", help="At most so many; 0: all.")]


def all_pages(limit: int, ask_page: Callable[[int, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a list, at most `limit` (0: all); `ask_page(count, after)` gets some of them."""
    rows: list[dict[str, Any]] = []
    after: Any = None
    while not limit or len(rows) < limit:
        page = ask_page(min(limit - len(rows), PAGE_ROWS) if limit else PAGE_ROWS, after)
        rows += page["rows"]
        after = page["after"]
        if after is None:
            break
    return rows


def header_values(stated: list[str] | None) -> dict[str, str]:
    """Headers by name, of options NAME=VALUE."""
    headers = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--header is NAME=VALUE, not {text!r}")
        headers[name] = value
    return headers


def arguments_of(stated: list[str] | None) -> dict[str, object]:
    """Arguments by name, of options NAME=VALUE; what is JSON is read as such, all else is text."""
    arguments: dict[str, object] = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--argument is NAME=VALUE, not {text!r}")
        try:
            arguments[name] = json_text.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, from a number of them or from a time, UTC unless it says else."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is neither an ISO 8601 time nor milliseconds since 1970")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def iso(ms: int) -> str:
    """A time for people, from milliseconds since 1970; the number where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError):
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_count(count: int, done: str, *, as_json: bool) -> None:
    """How many messages something was done to."""
    if as_json:
        typer.echo(json_text.dumps({"count": count}))
    else:
        typer.echo(f"{count} {'message was' if count == 1 else 'messages were'} {done}")


def show_one(fields: dict[str, object], *, as_json: bool) -> None:
    """One thing: a line for each of its fields, or all in JSON."""
    if as_json:
        typer.echo(json_text.dumps(fields, ensure_ascii=False))
        return
    for name, value in fields.items():
        text = value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
        typer.echo(f"{name}: {printable(text)}")


def span(seconds: int) -> str:
    """A span of time, as coarse as people need it."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
