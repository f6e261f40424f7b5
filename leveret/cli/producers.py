"""`leveret producer …`: idempotent producers of a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask

__all__ = ["app"]

app = Group("Idempotent producers.")

COLUMNS = ["id", "user", "epoch", "sequence", "last_at"]


@app.command("list")
@with_options_of(Listing)
def list_(
    *, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any
) -> None:
    """Show the last sequence number of each producer, and its time."""
    show_list(whole(ask(data_dir, "producers.list", vhost=vhost)), COLUMNS, options, as_json=json)


@app.command("delete")
def delete(
    id_: Annotated[str, typer.Argument(help="The producer's x-producer-id.")],
    user: Annotated[
        str | None, typer.Option(help="Only of this user; without it, of all users.")
    ] = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete a producer's state: it may start again with any epoch and sequence number 0."""
    ask(data_dir, "producers.forget", vhost=vhost, id=id_, user=user)
    show_done(f"producer '{id_}' was deleted: it may start again", as_json=json)
