"""`leveret batch …`: writers of staged batches, on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.session import Vhost

__all__ = ["app"]

app = Group("Staged batches: what their writers have committed, and what waits.")

COLUMNS = [
    "writer", "user", "committed", "committed_at", "staged", "parts", "rows", "bytes",
    "staged_since",
]  # fmt: skip


@app.list("batch.list", COLUMNS)
def list_(vhost: Vhost = "/") -> None:
    """Show the writers: the last committed batch of each, and what is staged."""


@app.change("delete", "batch.delete", "writer '{writer}' was deleted, with all that it had staged")
def delete(
    writer: Annotated[str, typer.Argument(help="The writer of the batches.")],
    user: Annotated[
        str | None, typer.Option(help="Only of this user; without it, of all users.")
    ] = None,
    vhost: Vhost = "/",
) -> None:
    """Forget a writer and its parts: batches with its numbers may be committed again."""
