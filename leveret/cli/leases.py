"""`leveret lease …`: holders of batch leases, on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.session import Vhost

__all__ = ["app"]

app = Group("Batch leases: which jobs have taken messages of queues, and how many.")

COLUMNS = ["queue", "holder", "user", "leases", "messages", "bytes", "ends_at"]


@app.list("lease.list", COLUMNS)
def list_(vhost: Vhost = "/") -> None:
    """Show the holders: what each has leased, and when it is given up unless it asks."""


@app.change("release", "lease.release", "all that holder '{holder}' had leased is ready again")
def release(
    queue: Annotated[str, typer.Argument(help="The queue.")],
    holder: Annotated[str, typer.Argument(help="The holder, as `leveret lease list` shows it.")],
    user: Annotated[
        str | None, typer.Option(help="Only of this user; without it, of all users.")
    ] = None,
    vhost: Vhost = "/",
) -> None:
    """Give back what a holder has leased, before its idle time is over."""
