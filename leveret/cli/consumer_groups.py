"""`leveret group …`: consumer groups on a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_rows
from leveret.cli.session import Vhost, ask, fail

__all__ = ["app"]

app = Group("Consumer groups of queues and streams.")

QueueName = Annotated[str, typer.Argument(help="The queue or stream.")]
Name = Annotated[str, typer.Argument(help="The group.")]
MOVED = ["partition", "before", "after"]
DIGITS_MAX = 19  # of an offset; no log has more
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
            help="earliest or first, latest or next, last, an offset, an age such as 2h, a time of "
            "ISO 8601, shift: and a number of messages from where it is, such as shift:-100, or "
            "tag: and an expression of tags, for the first message that has them.",
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", help="Move it in this partition; repeatable. Default: all."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be.")] = False,
    vhost: Vhost = "/",
) -> None:
    """Let a group without consumers go on elsewhere: read again, or skip."""
    rows = ask(
        "group.reset_offsets",
        vhost=vhost,
        queue=queue,
        name=name,
        to=to,
        partitions=partition or None,
        dry_run=dry_run,
    )
    show_rows(rows, MOVED)


@app.command("commit-offsets")
def commit_offsets(
    queue: QueueName,
    name: Name,
    offsets: Annotated[
        list[str],
        typer.Argument(help="Where to go on, PARTITION=OFFSET for each partition."),
    ],
    vhost: Vhost = "/",
) -> None:
    """Let a group go on at offsets, for a reader that keeps its own place; only forward.

    The group is created where it does not exist.
    """
    committed = _by_partition(offsets)
    rows = ask("group.commit_offsets", vhost=vhost, queue=queue, name=name, offsets=committed)
    show_rows(rows, MOVED)


def _by_partition(stated: list[str]) -> dict[str, int]:
    """Return offsets by partition, from PARTITION=OFFSET."""
    offsets: dict[str, int] = {}
    for text in stated:
        partition, _, offset = text.partition("=")
        if not (offset.isascii() and offset.isdigit() and len(offset) <= DIGITS_MAX):
            fail(f"where to go on is PARTITION=OFFSET, not {text!r}")
        if partition in offsets:
            fail(f"partition {partition} is given twice")
        offsets[partition] = int(offset)
    return offsets


@app.change("delete", "group.delete", "consumer group '{name}' of queue '{queue}' was deleted")
def delete(queue: QueueName, name: Name, vhost: Vhost = "/") -> None:
    """Delete a group without consumers, and what it remembers."""
