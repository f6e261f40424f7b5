"""`leveret dedup …`: the windows within which no message is stored twice, on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done, show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask

__all__ = ["app"]

app = Group("Windows of queues and exchanges in which no message is stored twice.")

COLUMNS = ["kind", "name", "window_ms", "keys", "duplicates"]

Queue = Annotated[str | None, typer.Option("--queue", help="The window of this queue.")]
Exchange = Annotated[str | None, typer.Option("--exchange", help="The window of this exchange.")]


@app.command("list")
def list_(vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show the windows: keys in memory, and messages that were not stored since the start."""
    show_rows(ask(data_dir, "dedup.list", vhost=vhost), COLUMNS, as_json=json)


@app.command("show")
def show(
    id_: Annotated[str | None, typer.Argument(help="An x-dedup-id, or message-id.")] = None,
    queue: Queue = None,
    exchange: Exchange = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show one window; with an id, when the message was taken (ms since 1970)."""
    row = ask(data_dir, "dedup.show", vhost=vhost, queue=queue, exchange=exchange, id=id_)
    show_rows([row], list(row), as_json=json)


@app.command("forget")
def forget(
    id_: Annotated[str, typer.Argument(help="An x-dedup-id, or message-id.")],
    queue: Queue = None,
    exchange: Exchange = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Let a message with this id be stored again."""
    ask(data_dir, "dedup.forget", vhost=vhost, queue=queue, exchange=exchange, id=id_)
    show_done(f"message '{id_}' may come again", as_json=json)
