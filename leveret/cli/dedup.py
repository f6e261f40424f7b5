"""`leveret dedup …`: the de-duplication windows of a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done, show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask

__all__ = ["app"]

app = Group("Deduplication windows of queues and exchanges.")

COLUMNS = ["kind", "name", "window_ms", "keys", "duplicates"]

Queue = Annotated[str | None, typer.Option("--queue", help="The window of this queue.")]
Exchange = Annotated[str | None, typer.Option("--exchange", help="The window of this exchange.")]


@app.command("list")
@with_options_of(Listing)
def list_(
    *, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any
) -> None:
    """Show the windows: keys in memory, and duplicates dropped since the start."""
    show_list(whole(ask(data_dir, "dedup.list", vhost=vhost)), COLUMNS, options, as_json=json)


@app.command("show")
def show(
    id_: Annotated[str | None, typer.Argument(help="An x-dedup-id, or message-id.")] = None,
    queue: Queue = None,
    exchange: Exchange = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show one window; with an id, when that message was stored."""
    row = ask(data_dir, "dedup.show", vhost=vhost, queue=queue, exchange=exchange, id=id_)
    show_rows([row], list(row), as_json=json)


@app.command("delete")
def delete(
    id_: Annotated[str, typer.Argument(help="An x-dedup-id, or message-id.")],
    queue: Queue = None,
    exchange: Exchange = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Remove an id from the window: a message with it is stored again."""
    ask(data_dir, "dedup.forget", vhost=vhost, queue=queue, exchange=exchange, id=id_)
    show_done(f"id '{id_}' was deleted: a message with it is stored again", as_json=json)
