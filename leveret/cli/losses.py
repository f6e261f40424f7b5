"""`leveret loss …`: losses that no operator has acknowledged yet."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import iso, show_done, show_rows
from leveret.cli.session import as_json, ask, fail

__all__ = ["app"]

app = Group("Messages and definitions that were lost.")

COLUMNS = ["number", "at", "kind", "subject", "count", "what"]


@app.command("list")
def list_() -> None:
    """Show unacknowledged data losses of a running or a stopped node."""
    rows = ask("loss.list")
    shown = rows if as_json() else [{**row, "at": iso(row["at_ms"])} for row in rows]
    show_rows(shown, COLUMNS)


@app.command("acknowledge")
def acknowledge(
    numbers: Annotated[
        list[int] | None, typer.Argument(help="Numbers of losses, as `loss list` shows them.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every loss.")] = False,
) -> None:
    """Acknowledge losses: `leveret doctor` and the metrics stop reporting them."""
    if bool(numbers) == all_:
        fail("say which: numbers, or --all")
    count = ask("loss.acknowledge", numbers=[str(number) for number in numbers or ()])
    show_done(f"acknowledged: {count}")
