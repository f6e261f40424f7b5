"""`leveret dedup …` and `leveret producer …`: de-duplication on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_rows
from leveret.cli.session import Vhost, ask

__all__ = ["app", "producers"]

app = Group("Deduplication windows of queues and exchanges.")
producers = Group("Idempotent producers.")

Queue = Annotated[str | None, typer.Option("--queue", help="The window of this queue.")]
Exchange = Annotated[str | None, typer.Option("--exchange", help="The window of this exchange.")]


@app.list("dedup.list", ["kind", "name", "window_ms", "keys", "duplicates"])
def list_(vhost: Vhost = "/") -> None:
    """Show the windows: keys in memory, and duplicates dropped since the start."""


@app.command("show")
def show(
    id_: Annotated[str | None, typer.Argument(help="An x-dedup-id, or message-id.")] = None,
    queue: Queue = None,
    exchange: Exchange = None,
    vhost: Vhost = "/",
) -> None:
    """Show one window; with an id, when that message was stored."""
    row = ask("dedup.show", vhost=vhost, queue=queue, exchange=exchange, id=id_)
    show_rows([row], list(row))


@app.change("delete", "dedup.forget", "id '{id_}' was deleted: a message with it is stored again")
def delete(
    id_: Annotated[str, typer.Argument(help="An x-dedup-id, or message-id.")],
    queue: Queue = None,
    exchange: Exchange = None,
    vhost: Vhost = "/",
) -> None:
    """Remove an id from the window: a message with it is stored again."""


@producers.list("producers.list", ["id", "user", "epoch", "sequence", "last_at"])
def list_producers(vhost: Vhost = "/") -> None:
    """Show the last sequence number of each producer, and its time."""


@producers.change("delete", "producers.forget", "producer '{id_}' was deleted: it may start again")
def delete_producer(
    id_: Annotated[str, typer.Argument(help="The producer's x-producer-id.")],
    user: Annotated[
        str | None, typer.Option(help="Only of this user; without it, of all users.")
    ] = None,
    vhost: Vhost = "/",
) -> None:
    """Delete a producer's state: it may start again with any epoch and sequence number 0."""
