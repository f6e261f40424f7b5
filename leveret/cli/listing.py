"""Lists of what there is on a running node: their options, and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.output import show_rows
from leveret.cli.session import ask
from leveret.cli.values import SHOWN_ROWS, Limit, all_pages

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Listing", "show_list"]

SORTED_ROWS_MAX = 5000  # of a list that is sorted by a column: it comes in one page


@dataclass(frozen=True, slots=True)
class Listing:
    """Options of every such list."""

    columns: Annotated[
        str | None, typer.Option("--columns", help="Show these, NAME,NAME; --json has them all.")
    ] = None
    sort: Annotated[
        str | None, typer.Option("--sort", help="By this column; without it, by name.")
    ] = None
    reverse: Annotated[bool, typer.Option("--reverse", help="The highest first; needs --sort.")] = (
        False
    )
    limit: Limit = SHOWN_ROWS


def show_list(
    data_dir: Path,
    operation: str,
    columns: list[str],
    options: dict[str, Any],
    *,
    as_json: bool,
    **parameters: object,
) -> None:
    """Ask for a list and show it; `options` are the values of Listing's."""
    chosen = (options["columns"] or "").split(",") if options["columns"] else []
    common = {"sort": options["sort"], "reverse": options["reverse"], **parameters}
    limit = options["limit"]
    if options["sort"] is not None:
        limit = limit or SORTED_ROWS_MAX
        rows = ask(data_dir, operation, limit=limit, after=None, **common)["rows"]
    else:
        rows = all_pages(
            limit,
            lambda count, after: ask(data_dir, operation, limit=count, after=after, **common),
        )
    shown = chosen or columns
    if chosen or not as_json:
        rows = [{name: _shown(row, name) for name in shown} for row in rows]
    show_rows(rows, shown, as_json=as_json)


def _shown(row: dict[str, Any], column: str) -> object:
    """A column of a row; `queue.name` is a part of one."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return value
