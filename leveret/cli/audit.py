"""`leveret audit`: the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import with_common
from leveret.cli.listing import Cut, Source, show_list
from leveret.cli.options import with_options_of
from leveret.cli.session import OfUser, ask

__all__ = ["audit"]

COLUMNS = ["number", "at", "user", "way", "peer", "operation", "parameters", "error"]


@with_common
@with_options_of(Cut)
def audit(
    *,
    user: OfUser = None,
    operation: Annotated[
        str | None,
        typer.Option(
            "--operation", help="Only operations with this name, or this beginning (`queue.`)."
        ),
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only records before this number.")
    ] = None,
    **options: Any,
) -> None:
    """Show changes by administrators, refused ones included, the latest first."""

    def page(count: int, after: int | None) -> dict[str, Any]:
        stated = {"before": before if after is None else after, "user": user}
        found = ask("audit.list", limit=count, operation=operation, **stated)
        return {"rows": found["rows"], "after": found["before"]}

    show_list(Source(page), COLUMNS, options)
