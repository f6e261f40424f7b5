"""`leveret retry …`: messages that failed and wait to be tried again, on a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask
from leveret.cli.values import (
    SHOWN_ROWS,
    Limit,
    all_pages,
    header_values,
    iso,
    moment_ms,
    show_count,
    show_one,
)

__all__ = ["app"]

app = Group("Messages that failed and wait to be tried again.")

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

Queue = Annotated[str, typer.Argument(help="The queue to which they come back.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `retry list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every message that waits.")]


@app.command("list")
def list_(
    queue: Queue,
    id_: Annotated[str | None, typer.Option("--id", help="The one with this id.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--message-id", help="With this message id.")
    ] = None,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Published to this exchange.")
    ] = None,
    routing_key: Annotated[
        str | None, typer.Option("--routing-key", help="Published with this key.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="With this header, NAME=VALUE; repeatable.")
    ] = None,
    due_from: Annotated[
        str | None,
        typer.Option("--due-from", help="Due then or later: ISO 8601, or ms since 1970."),
    ] = None,
    due_before: Annotated[str | None, typer.Option("--due-before", help="Due before then.")] = None,
    limit: Limit = SHOWN_ROWS,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show the messages that wait, the next one that is due first."""
    asked = {
        "id": id_,
        "message_id": message_id,
        "exchange": exchange,
        "routing_key": routing_key,
        "headers": header_values(header),
        "due_from_ms": None if due_from is None else moment_ms(due_from),
        "due_before_ms": None if due_before is None else moment_ms(due_before),
    }
    rows = all_pages(
        limit,
        lambda count, after: ask(
            data_dir, "retry.list", vhost=vhost, queue=queue, limit=count, after=after, **asked
        ),
    )
    shown = rows if json else [_readable(row) for row in rows]
    show_rows(shown, COLUMNS, as_json=json)


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
    show_one(row if json else {**row, "due": iso(row["due_ms"])}, as_json=json)


@app.command("retry-now")
def retry_now(
    queue: Queue,
    ids: Ids = None,
    all_: All = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Let messages come back at once."""
    count = ask(
        data_dir, "retry.retry_now", vhost=vhost, queue=queue, ids=list(ids or ()), all=all_
    )
    show_count(count, "brought back", as_json=json)


@app.command("cancel")
def cancel(
    queue: Queue,
    ids: Ids = None,
    all_: All = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete messages that wait: they never come back, and are no dead letters either."""
    count = ask(data_dir, "retry.cancel", vhost=vhost, queue=queue, ids=list(ids or ()), all=all_)
    show_count(count, "deleted", as_json=json)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "due": iso(row["due_ms"]), "message_id": row["message_id"] or ""}
