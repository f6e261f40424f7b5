"""`leveret topic …`: streams, and queues with partitions or a retention, on a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.completion import queue_names
from leveret.cli.group import Group
from leveret.cli.output import show_json, show_rows
from leveret.cli.session import Vhost, as_json, ask
from leveret.cli.values import moment_ms

__all__ = ["app"]

app = Group("Topics: streams, and queues with partitions or a retention.")

Name = Annotated[str, typer.Argument(help="The queue or stream.", autocompletion=queue_names)]
PARTITION = ["partition", "state", "messages", "unacked", "first", "end", "bytes"]


@app.list(
    "topic.list",
    [
        "name",
        "type",
        "partitions",
        "retired",
        "partition_by",
        "messages",
        "unacked",
        "consumers",
        "groups",
    ],
)
def list_(vhost: Vhost = "/") -> None:
    """Show the streams, and the queues that have partitions or a retention."""


@app.command("describe")
def describe(name: Name, vhost: Vhost = "/") -> None:
    """Show the partitions of a queue or stream: counts, offsets and bytes on the disk."""
    found: dict[str, Any] = ask("topic.describe", vhost=vhost, name=name)
    if as_json():
        show_json(found)
    else:
        show_rows(found["partition_details"], PARTITION)


@app.command("offsets")
def offsets(
    name: Name,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", help="Show the offset of the first message then: ISO 8601, or ms since 1970."
        ),
    ] = None,
    vhost: Vhost = "/",
) -> None:
    """Show the first and the end offset of each partition, and the offset for a time."""
    time_ms = None if at is None else moment_ms(at)
    found = ask("topic.offsets", vhost=vhost, queue=name, time_ms=time_ms)
    show_rows(found, ["partition", "first", "end", *(["offset"] if at is not None else [])])


@app.command("partitions")
def partitions(
    name: Name,
    count: Annotated[int, typer.Argument(help="How many partitions are published to.", min=1)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be.")] = False,
    vhost: Vhost = "/",
) -> None:
    """Give a queue more or fewer partitions while it is used.

    New ones begin empty. Those beyond a smaller number are read until nothing is left in them, and
    removed then. From a change on, messages of a key may go to another partition than before.
    """
    found = ask("topic.set_partitions", vhost=vhost, name=name, count=count, dry_run=dry_run)
    if as_json():
        show_json(found)
        return
    rows = [{"partition": number, "state": "active"} for number in found["active"]]
    rows += [{"partition": number, "state": "retired"} for number in found["retired"]]
    show_rows(rows, ["partition", "state"])
