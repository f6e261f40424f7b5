"""Lists: their options, and how they are queried, cut and shown.

Programs get a list whole; a terminal gets its beginning. Omitted rows are reported on standard
error, so that neither a person nor a script takes a part for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.output import is_for_people, show_rows
from leveret.cli.session import as_json, ask
from leveret.mgmt_ui.cells import cell, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["Cut", "Listing", "Source", "all_rows", "asked", "show_list", "whole"]

TERMINAL_ROWS = 100  # enough for people; programs get all
PAGE_ROWS = 1000  # of a list that a node returns page by page
SORTED_ROWS_MAX = 5000  # that a node sorts; longer lists are sorted here

Columns = Annotated[
    str | None, typer.Option("--columns", help="Columns to show, NAME,NAME; --json shows all.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", min=0, help="Rows to show; 0 shows all.  [default: all; on a terminal 100]"
    ),
]


@dataclass(frozen=True, slots=True)
class Cut:
    """Options of every list."""

    columns: Columns = None
    limit: Limit = None


@dataclass(frozen=True, slots=True)
class Listing(Cut):
    """Options of lists that can be sorted."""

    sort: Annotated[
        str | None, typer.Option("--sort", help="Column to sort by; without it, the name.")
    ] = None
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Sort from high to low; needs --sort.")
    ] = False


@dataclass(frozen=True, slots=True)
class Source:
    """Source of rows: `page(count, after)`, and `ranked(count, column)` where a node sorts.

    Both return {"rows", "after", "total" where it is known}: at most `count` rows, those behind
    `after`, which is from the page before.
    """

    page: Callable[[int, Any], Mapping[str, Any]]
    ranked: Callable[[int, str], Mapping[str, Any]] | None = None


def asked(operation: str, options: Mapping[str, Any], **parameters: object) -> Source:
    """Return a source whose rows the node pages, and sorts where few are wanted."""
    common = {**parameters, "reverse": options["reverse"]}
    return Source(
        lambda count, after: ask(operation, limit=count, after=after, sort=None, **common),
        lambda count, sort: ask(operation, limit=count, after=None, sort=sort, **common),
    )


def whole(rows: list[dict[str, Any]]) -> Source:
    """Return a source of rows that are all there."""
    return Source(lambda _count, _after: {"rows": rows, "after": None})


def all_rows(source: Source) -> list[dict[str, Any]]:
    """Return every row of a source."""
    return _first(source, 0)[0]


def show_list(
    source: Source,
    columns: list[str],
    options: Mapping[str, Any],
    *,
    aliases: Mapping[str, str] | None = None,
    readable: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> None:
    """Show a list; `options` are the values of Cut's or Listing's.

    `aliases` are other names of columns: {"queue": "queue.name"}; `readable` turns a row for
    programs into one for people.
    """
    aliases = aliases or {}
    sort, reverse = options.get("sort"), options.get("reverse", False)
    if reverse and sort is None:
        raise typer.BadParameter("it needs --sort", param_hint="--reverse")
    limit = options["limit"]
    if limit is None:
        limit = TERMINAL_ROWS if is_for_people() and not as_json() else 0
    if sort is None:
        rows, total = _first(source, limit)
    else:
        path = aliases.get(sort, sort)
        rows, total = _ranked(source, path, limit, reverse=reverse)
        _check("--sort", [sort], rows, columns, aliases)
    _show(rows, columns, options["columns"], aliases, readable)
    _tell_rest(len(rows), total)


def _show(
    rows: list[dict[str, Any]],
    columns: list[str],
    stated: str | None,
    aliases: Mapping[str, str],
    readable: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    chosen = [name.strip() for name in stated.split(",")] if stated else []
    if "partition" not in columns and any("partition" in row for row in rows):
        columns = ["partition", *columns]  # of a queue that has several
    if as_json() and not chosen:
        show_rows(rows, columns)
        return
    if not as_json():
        rows = [readable(row) for row in rows]
    _check("--columns", chosen, rows, columns, aliases)
    shown = chosen or columns
    cells = [{name: cell(row, aliases.get(name, name)) for name in shown} for row in rows]
    show_rows(cells, shown)


def _first(source: Source, limit: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return the first rows (0: all), and the number of all; None if unknown."""
    rows: list[dict[str, Any]] = []
    after: Any = None
    total: int | None = None
    while True:
        found = source.page(min(limit - len(rows), PAGE_ROWS) if limit else PAGE_ROWS, after)
        total = found.get("total", total) if after is None else total
        rows += found["rows"]
        after = found["after"]
        if after is None:
            return (rows[:limit] if limit else rows), len(rows)
        if limit and len(rows) >= limit:
            return rows, total


def _ranked(
    source: Source, path: str, limit: int, *, reverse: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the first rows by a column; the node sorts them if it can and few are wanted."""
    if source.ranked is not None and 0 < limit <= SORTED_ROWS_MAX:
        found = source.ranked(limit, path)
        return found["rows"], found["total"]
    rows, total = _first(source, 0)
    rows.sort(key=lambda row: rank(cell(row, path), reverse=reverse), reverse=reverse)
    return (rows[:limit] if limit else rows), total


def _check(
    option: str,
    stated: list[str],
    rows: list[dict[str, Any]],
    columns: list[str],
    aliases: Mapping[str, str],
) -> None:
    """End the command for a column that no row has; an empty list accepts any."""
    known = {*columns, *aliases, *(name for row in rows for name in row)}
    for name in stated:
        path = aliases.get(name, name)
        if not rows or name in known or any(cell(row, path) != "" for row in rows):
            continue
        near = get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise typer.BadParameter(
            f"no column '{name}'; {hint}there are {', '.join(sorted(known))}", param_hint=option
        )


def _tell_rest(shown: int, total: int | None) -> None:
    if total is None:
        typer.echo(f"the first {shown} shown; there are more: --limit 0 shows all", err=True)
    elif total > shown:
        typer.echo(f"{shown} of {total} shown; --limit 0 shows all", err=True)
