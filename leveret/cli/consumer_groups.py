"""`leveret group …`: consumer groups on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_rows
from leveret.cli.session import Vhost, ask

__all__ = ["app"]

app = Group("Consumer groups of queues and streams.")

QueueName = Annotated[str, typer.Argument(help="The queue or stream.")]
Name = Annotated[str, typer.Argument(help="The group.")]
PARTITION = ["partition", "committed", "end", "lag", "unacked", "member"]
MEMBER = [
    "client",
    "connection",
    "channel",
    "tag",
    "partitions",
    "unacked",
    "prefetch",
    "suspended",
]


@app.list(
    "group.list",
    ["queue", "name", "state", "members", "partitions", "lag", "unacked", "created_at"],
)
def list_(vhost: Vhost = "/") -> None:
    """Show all groups: members, and messages not acknowledged yet."""


@app.command("describe")
def describe(
    queue: QueueName,
    name: Name,
    members: Annotated[
        bool, typer.Option("--members", help="Show its members instead of its partitions.")
    ] = False,
    vhost: Vhost = "/",
) -> None:
    """Show where a group is in each partition and who is delivered it, or its members."""
    found = ask("group.describe", vhost=vhost, queue=queue, name=name)
    if members:
        show_rows(found["member_details"], MEMBER)
    else:
        show_rows(found["partition_details"], PARTITION)


@app.command("reset-offsets")
def reset_offsets(
    queue: QueueName,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, an offset, an age such as 2h, a time of ISO 8601, or tag: and "
            "an expression of tags, for the first message that has them.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be.")] = False,
    vhost: Vhost = "/",
) -> None:
    """Let a group without consumers go on elsewhere: read again, or skip."""
    rows = ask("group.reset_offsets", vhost=vhost, queue=queue, name=name, to=to, dry_run=dry_run)
    show_rows(rows, ["partition", "before", "after"])


@app.change("delete", "group.delete", "consumer group '{name}' of queue '{queue}' was deleted")
def delete(queue: QueueName, name: Name, vhost: Vhost = "/") -> None:
    """Delete a group without consumers, and what it remembers."""
