"""`leveret dlq …`: dead letters of a running node."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Cut, Source, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import show_json
from leveret.cli.progress import progress
from leveret.cli.session import Vhost, as_json, ask, fail
from leveret.cli.values import Headers, Partition, header_values, listed, moment_ms, show_count

__all__ = ["app"]

app = Group("Dead letters: list, delete and redrive them.")

COLUMNS = ["offset", "message_id", "reason", "queue", "exchange", "routing_keys", "attempts"]
POLL_SECONDS = 0.2  # while a redrive is watched

Queue = Annotated[str, typer.Argument(help="The queue that holds the messages.")]
QueueOption = Annotated[str, typer.Argument(help="The queue that is redriven.")]


@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """Options that select messages; a message must meet all of them."""

    partition: Partition = None
    offset: Annotated[
        list[int] | None, typer.Option("--offset", help="The message at this offset; repeatable.")
    ] = None
    message_id: Annotated[
        list[str] | None,
        typer.Option("--message-id", help="Messages with this message id; repeatable."),
    ] = None
    id: Annotated[list[str] | None, typer.Option("--id", hidden=True)] = None
    reason: Annotated[
        str | None,
        typer.Option("--reason", help="Messages dead-lettered, or last failed, for this reason."),
    ] = None
    source: Annotated[
        str | None, typer.Option("--source", help="Messages dead-lettered from this queue.")
    ] = None
    header: Headers = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Messages dead-lettered then or later: ISO 8601, or ms since 1970."
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option("--until", help="Messages dead-lettered before then."),
    ] = None


@app.command("list")
@with_options_of(Cut)
@with_options_of(DeadLetterOptions)
def list_(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    **stated: Any,
) -> None:
    """Show dead letters, the oldest first, unacknowledged ones included."""
    common = _common(vhost, queue, stated)
    show_list(
        Source(lambda count, after: ask("dlq.list", limit=count, after=after, **common)),
        COLUMNS,
        stated,
    )


@app.show("show", "dlq.show")
def show(
    queue: Queue,
    offset: Annotated[int, typer.Argument(help="Its offset, as `dlq list` shows it.")],
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Show one message with its properties and its payload."""


@app.command("redrive")
@with_options_of(DeadLetterOptions)
def redrive(
    *,
    queue: Queue,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Publish them to this exchange instead.")
    ] = None,
    routing_key: Annotated[
        str | None, typer.Option("--routing-key", help="Routing key in place of their own.")
    ] = None,
    routed: Annotated[
        bool,
        typer.Option(
            "--routed", help="Publish them to their exchange again, not just to their queue."
        ),
    ] = False,
    rate: Annotated[float | None, typer.Option("--rate", help="Messages per second.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    vhost: Vhost = "/",
    **selected: Any,
) -> None:
    """Redrive messages to their source queues: all, or the selected ones.

    Each returns to its source queue; if that was deleted, its original exchange and routing key
    decides. Its attempts are counted from 0 again. Ends with status 1 if any were unroutable or
    refused.
    """
    common = _common(vhost, queue, selected)
    status = ask(
        "dlq.redrive",
        exchange=exchange,
        routing_key=routing_key,
        routed=routed,
        rate=rate,
        **common,
    )
    if not detach:
        status = _watch(status, vhost=vhost, queue=queue, partition=common["partition"])
    _show_status(status)
    is_selective = any(value for name, value in selected.items() if name != "partition")
    if not detach and is_selective and not status["moved"]:
        fail("no message was redriven: none matches, or none could be moved")
    if status["phase"] == "failed" or status["unroutable"] or status["refused"]:
        raise typer.Exit(1)


def _control(verb: str, help_: str) -> None:
    """Register a command that acts on a redrive, and shows its status."""

    @app.command(verb, help=help_)
    def control(queue: QueueOption, partition: Partition = None, vhost: Vhost = "/") -> None:
        _show_status(ask(f"dlq.{verb}", vhost=vhost, queue=queue, partition=partition))


_control("status", "Show the progress of a queue's redrive.")
_control("pause", "Pause a redrive.")
_control("resume", "Resume a redrive.")
_control("cancel", "Cancel a redrive; messages that it has not moved stay.")


@app.command("delete")
@with_options_of(DeadLetterOptions)
def delete(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    **selected: Any,
) -> None:
    """Delete the selected messages."""
    count = ask("dlq.delete", **_common(vhost, queue, selected))
    show_count(count, "deleted", selected=True)


@app.count("purge", "dlq.purge", "deleted")
def purge(queue: Queue, partition: Partition = None, vhost: Vhost = "/") -> None:
    """Delete all messages except unacknowledged ones."""


def _common(vhost: str, queue: str, selected: dict[str, Any]) -> dict[str, object]:
    if selected["id"]:
        fail("--id may be either: state --offset, as `dlq list` shows it, or --message-id")
    return {
        "vhost": vhost,
        "queue": queue,
        "partition": selected["partition"],
        "offsets": listed(selected["offset"]),
        "message_ids": listed(selected["message_id"]),
        "reason": selected["reason"],
        "source": selected["source"],
        "headers": header_values(selected["header"]),
        "since": moment_ms(selected["since"]),
        "until": moment_ms(selected["until"]),
    }


def _watch(status: dict[str, Any], **where: object) -> dict[str, Any]:
    """Show the progress of a redrive, until it ends or is paused."""
    with progress("redriving", shown=not as_json()) as bar:
        while status["phase"] == "running":
            bar.total(status["total"])
            bar.reach(status["looked_at"])
            time.sleep(POLL_SECONDS)
            status = ask("dlq.status", **where)
    return status


def _show_status(status: dict[str, Any]) -> None:
    if as_json():
        show_json(status)
        return
    text = f"{status['phase']}: {status['moved']} moved, {status['looked_at']} of "
    text += f"{status['total']} scanned"
    for kind in ("unroutable", "refused"):
        if status[kind]:
            text += f", {status[kind]} {kind}"
    typer.echo(text)
    if status["explanation"]:
        fail(status["explanation"])
