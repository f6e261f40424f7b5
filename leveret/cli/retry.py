"""`leveret retry …`: messages that failed and wait to be tried again, on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask
from leveret.cli.values import SHOWN_ROWS, Limit, all_pages, iso, show_count, show_one

__all__ = ["app"]

app = Group("Messages that failed and wait to be tried again.")

COLUMNS = ["id", "due", "retry_count", "last_failure", "exchange", "routing_key", "payload_bytes"]

Queue = Annotated[str, typer.Argument(help="The queue to which they come back.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `retry list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every message that waits.")]


@app.command("list")
def list_(
    queue: Queue,
    limit: Limit = SHOWN_ROWS,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show the messages that wait, the next one that is due first."""
    rows = all_pages(
        limit,
        lambda count, after: ask(
            data_dir, "retry.list", vhost=vhost, queue=queue, limit=count, after=after
        ),
    )
    shown = rows if json else [{**row, "due": iso(row["due_ms"])} for row in rows]
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
