"""`leveret adopt`: turns logs without a queue into queues again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import with_common
from leveret.cli.output import iso, show_json, show_rows
from leveret.cli.session import as_json, ask, fail, read_json
from leveret.cli.values import counted

__all__ = ["adopt"]

COLUMNS = ["log", "vhost", "queue", "bytes", "segments", "changed"]


@with_common
def adopt(
    log: Annotated[
        str | None, typer.Argument(help="A log without a queue, as the list names it.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="The name of the queue that gets the log.")
    ] = None,
    vhost: Annotated[
        str | None, typer.Option("--vhost", help="Its virtual host.  [default: the log's]")
    ] = None,
    queue_type: Annotated[
        str | None, typer.Option("--type", help="classic, quorum or stream.  [default: classic]")
    ] = None,
    arguments: Annotated[
        str, typer.Option("--arguments", help="The queue's arguments, a JSON object.")
    ] = "{}",
) -> None:
    """List the logs that belong to no queue, or make one the log of a new durable queue.

    Which of its messages were settled stands in the log. Bindings and policies do not: declare them
    anew.
    """
    if log is None:
        show_rows([_row(row) for row in ask("orphan.list")], COLUMNS)
        return
    if queue is None:
        fail("name the queue that gets the log: --queue NAME")
    count = ask(
        "orphan.adopt",
        log=log,
        queue=queue,
        vhost=vhost,
        type=queue_type,
        arguments=_arguments(arguments),
    )
    if as_json():
        show_json({"ok": True, "messages": count})
    else:
        typer.echo(f"queue '{queue}' has the log's {counted(count, 'message')}")


def _arguments(text: str) -> Any:
    value = read_json(text)
    if not isinstance(value, dict):
        fail("--arguments is a JSON object, such as '{\"x-max-length\": 1000}'")
    return value


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for people: the original names, and the time of the last write."""
    row["queue"] = row["topic"]
    row["changed"] = iso(row["changed_ms"])
    return row
