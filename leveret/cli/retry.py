"""`leveret retry …`: failed messages of a running node that wait for a retry."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Cut, Source, show_list
from leveret.cli.options import with_options_of
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask
from leveret.cli.values import header_values, moment_ms, show_count, show_one

__all__ = ["app"]

app = Group("Failed messages that wait for a retry.")

COLUMNS = [
    "id",
    "due",
    "message_id",
    "retry_count",
    "last_failure",
    "exchange",
    "routing_key",
    "payload_bytes",
]

Queue = Annotated[str, typer.Argument(help="The queue whose messages wait.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `retry list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every message that waits.")]


@app.command("list")
@with_options_of(Cut)
def list_(
    *,
    queue: Queue,
    id_: Annotated[str | None, typer.Option("--id", help="The message with this id.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--message-id", help="Messages with this message id.")
    ] = None,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Messages published to this exchange.")
    ] = None,
    routing_key: Annotated[
        str | None, typer.Option("--routing-key", help="Messages published with this key.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="Messages with this header, NAME=VALUE; repeatable."),
    ] = None,
    due_from: Annotated[
        str | None,
        typer.Option("--due-from", help="Messages due then or later: ISO 8601, or ms since 1970."),
    ] = None,
    due_before: Annotated[
        str | None, typer.Option("--due-before", help="Messages due before then.")
    ] = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show the waiting messages, in the order in which they are due."""
    asked = {
        "id": id_,
        "message_id": message_id,
        "exchange": exchange,
        "routing_key": routing_key,
        "headers": header_values(header),
        "due_from_ms": None if due_from is None else moment_ms(due_from),
        "due_before_ms": None if due_before is None else moment_ms(due_before),
    }
    show_list(
        Source(
            lambda count, after: ask(
                data_dir, "retry.list", vhost=vhost, queue=queue, limit=count, after=after, **asked
            )
        ),
        COLUMNS,
        options,
        as_json=json,
        aliases={"due": "due_ms"},
    )


@app.command("show")
def show(
    queue: Queue,
    id_: Annotated[str, typer.Argument(help="The message's id, as `retry list` shows it.")],
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show one message with its properties and its payload."""
    row = ask(data_dir, "retry.show", vhost=vhost, queue=queue, id=id_)
    show_one(row, as_json=json)


@app.command("retry-now")
def retry_now(
    queue: Queue,
    ids: Ids = None,
    all_: All = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Retry messages now."""
    count = ask(
        data_dir, "retry.retry_now", vhost=vhost, queue=queue, ids=list(ids or ()), all=all_
    )
    show_count(count, "retried", as_json=json, selected=not all_)


@app.command("cancel")
def cancel(
    queue: Queue,
    ids: Ids = None,
    all_: All = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete waiting messages; they are not dead-lettered."""
    count = ask(data_dir, "retry.cancel", vhost=vhost, queue=queue, ids=list(ids or ()), all=all_)
    show_count(count, "deleted", as_json=json, selected=not all_)
