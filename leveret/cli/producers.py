"""`leveret producers …`: publishers that number their messages, on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done, show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask

__all__ = ["app"]

app = Group("Publishers that number their messages.")

COLUMNS = ["id", "epoch", "sequence", "last_at"]


@app.command("list")
def list_(vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show how far each has come, and when (ms since 1970)."""
    show_rows(ask(data_dir, "producers.list", vhost=vhost), COLUMNS, as_json=json)


@app.command("forget")
def forget(
    id_: Annotated[str, typer.Argument(help="The publisher's x-producer-id.")],
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Let a publisher begin anew, with any epoch and number 0."""
    ask(data_dir, "producers.forget", vhost=vhost, id=id_)
    show_done(f"producer '{id_}' is forgotten", as_json=json)
