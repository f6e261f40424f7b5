"""`leveret prepared …`: prepared messages that wait to be committed, on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_rows
from leveret.cli.session import Vhost, ask

__all__ = ["app"]

app = Group("Prepared messages, to be committed or rolled back.")

COLUMNS = [
    "id", "exchange", "routing_key", "prepared_at", "check_queue", "checks", "next_check_at",
]  # fmt: skip

Id = Annotated[str, typer.Argument(help="The message's x-prepare-id, or message-id.")]


@app.list("prepared.list", COLUMNS)
def list_(vhost: Vhost = "/") -> None:
    """Show prepared messages, the oldest first."""


@app.command("show")
def show(id_: Id, vhost: Vhost = "/") -> None:
    """Show one prepared message."""
    show_rows([ask("prepared.show", vhost=vhost, id=id_)], COLUMNS)


@app.change("commit", "prepared.commit", "message '{id_}' is committed")
def commit(id_: Id, vhost: Vhost = "/") -> None:
    """Commit a prepared message: it is routed to its queues."""


@app.change("rollback", "prepared.rollback", "message '{id_}' is rolled back")
def rollback(id_: Id, vhost: Vhost = "/") -> None:
    """Roll back a prepared message: it is deleted."""
