"""Common parsing of values in options, and formatting of results."""

from __future__ import annotations

import json as json_text
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.output import MOMENTS, iso, printable
from leveret.cli.session import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "MIB",
    "Arguments",
    "all_rows",
    "arguments_of",
    "counted",
    "header_values",
    "moment_ms",
    "show_count",
    "show_one",
    "span",
]

MIB = 1 << 20
PAGE_ROWS = 1000  # of a list that a node returns page by page

Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", help="An argument, NAME=VALUE; VALUE is JSON, or text. Repeatable."),
]


def all_rows(ask_page: Callable[[int, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every row of a list; `ask_page(count, after)` returns a page."""
    rows: list[dict[str, Any]] = []
    after: Any = None
    while True:
        page = ask_page(PAGE_ROWS, after)
        rows += page["rows"]
        after = page["after"]
        if after is None:
            return rows


def header_values(stated: list[str] | None) -> dict[str, str]:
    """Return headers by name, from options NAME=VALUE."""
    headers = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--header is NAME=VALUE, not {text!r}")
        headers[name] = value
    return headers


def arguments_of(stated: list[str] | None, option: str = "--argument") -> dict[str, object]:
    """Return arguments by name, from options NAME=VALUE; values are JSON if they parse as such."""
    arguments: dict[str, object] = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"{option} is NAME=VALUE, not {text!r}")
        try:
            arguments[name] = json_text.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


def moment_ms(text: str) -> int:
    """Return ms since 1970, from a number or an ISO 8601 time, in UTC by default."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is neither an ISO 8601 time nor milliseconds since 1970")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def show_count(count: int, done: str, *, as_json: bool, selected: bool = False) -> None:
    """Print the number of affected messages; for `selected` ones 0 ends with an error."""
    if as_json:
        typer.echo(json_text.dumps({"count": count}))
    else:
        typer.echo(f"{counted(count, 'message')} {'was' if count == 1 else 'were'} {done}")
    if selected and not count:
        fail("no message matches: nothing was done")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 queue`, `2 queues`, `3 policies`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun.removesuffix('y')}ies" if noun.endswith("cy") else f"{count} {noun}s"


def show_one(fields: Mapping[str, object], *, as_json: bool) -> None:
    """Print one object: a line for each of its fields, or all in JSON."""
    if as_json:
        typer.echo(json_text.dumps(fields, ensure_ascii=False))
        return
    for name, value in fields.items():
        text = value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
        if name in MOMENTS and type(value) is int:
            text = iso(value)
        typer.echo(f"{name.removesuffix('_ms') if name in MOMENTS else name}: {printable(text)}")


def span(seconds: int) -> str:
    """Format a duration in seconds by its two largest units."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
