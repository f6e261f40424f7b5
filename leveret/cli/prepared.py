"""`leveret prepared …`: prepared messages that wait to be committed, on a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done, show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask

__all__ = ["app"]

app = Group("Prepared messages, to be committed or rolled back.")

COLUMNS = [
    "id",
    "exchange",
    "routing_key",
    "prepared_at",
    "check_queue",
    "checks",
    "next_check_at",
]

Id = Annotated[str, typer.Argument(help="The message's x-prepare-id, or message-id.")]


@app.command("list")
@with_options_of(Listing)
def list_(
    *, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any
) -> None:
    """Show prepared messages, the oldest first."""
    show_list(whole(ask(data_dir, "prepared.list", vhost=vhost)), COLUMNS, options, as_json=json)


@app.command("show")
def show(id_: Id, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show one prepared message."""
    row = ask(data_dir, "prepared.show", vhost=vhost, id=id_)
    show_rows([row], COLUMNS, as_json=json)


@app.command("commit")
def commit(id_: Id, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Commit a prepared message: it is routed to its queues."""
    ask(data_dir, "prepared.commit", vhost=vhost, id=id_)
    show_done(f"message '{id_}' is committed", as_json=json)


@app.command("rollback")
def rollback(id_: Id, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Roll back a prepared message: it is deleted."""
    ask(data_dir, "prepared.rollback", vhost=vhost, id=id_)
    show_done(f"message '{id_}' is rolled back", as_json=json)
