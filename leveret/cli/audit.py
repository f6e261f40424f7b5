"""`leveret audit`: who has changed what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from leveret.cli.output import show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, OfUser, ask

__all__ = ["audit"]

COLUMNS = ["at", "user", "way", "peer", "operation", "parameters", "error"]


def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many.")] = 50,
    user: OfUser = None,
    operation: Annotated[
        str | None,
        typer.Option("--operation", help="Only these: a name, or its beginning (`queue.`)."),
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only records before this number.")
    ] = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show what administrators have changed, or were refused, the latest first (UTC)."""
    rows = ask(data_dir, "audit.list", limit=limit, before=before, user=user, operation=operation)[
        "rows"
    ]
    if not json:
        for row in rows:
            row["at"] = datetime.fromtimestamp(row["at"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    show_rows(rows, ["number", *COLUMNS], as_json=json)
