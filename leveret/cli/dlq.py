"""`leveret dlq …`: dead letters of a running node."""

from __future__ import annotations

import json as json_text
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Cut, Source, show_list
from leveret.cli.options import with_options_of
from leveret.cli.progress import progress
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask, fail
from leveret.cli.values import (
    header_values,
    moment_ms,
    show_count,
    show_one,
)

__all__ = ["app"]

app = Group("Dead letters: list, delete and redrive them.")

COLUMNS = ["offset", "message_id", "reason", "queue", "exchange", "routing_keys", "attempts"]
POLL_SECONDS = 0.2  # while a redrive is watched

Queue = Annotated[str, typer.Argument(help="The queue that holds the messages.")]
QueueOption = Annotated[str, typer.Argument(help="The queue that is redriven.")]


@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """Options that select messages; a message must meet all of them."""

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
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="Messages with this header, NAME=VALUE; repeatable."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Messages dead-lettered then or later: ISO 8601, or ms since 1970."
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Messages dead-lettered before then.")
    ] = None


@app.command("list")
@with_options_of(Cut)
@with_options_of(DeadLetterOptions)
def list_(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **stated: Any,
) -> None:
    """Show dead letters, the oldest first, unacknowledged ones included."""
    common = _common(vhost, queue, stated)
    show_list(
        Source(lambda count, after: ask(data_dir, "dlq.list", limit=count, after=after, **common)),
        COLUMNS,
        stated,
        as_json=json,
    )


@app.command("show")
def show(
    queue: Queue,
    offset: Annotated[int, typer.Argument(help="Its offset, as `dlq list` shows it.")],
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show one message with its properties and its payload."""
    show_one(ask(data_dir, "dlq.show", vhost=vhost, queue=queue, offset=offset), as_json=json)


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
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **selected: Any,
) -> None:
    """Redrive messages to their source queues: all, or the selected ones.

    Each returns to its source queue; if that was deleted, its original exchange and routing key
    decides. Its attempts are counted from 0 again. Ends with status 1 if any were unroutable or
    refused.
    """
    status = ask(
        data_dir,
        "dlq.redrive",
        exchange=exchange,
        routing_key=routing_key,
        routed=routed,
        rate=rate,
        **_common(vhost, queue, selected),
    )
    if not detach:
        status = _watch(data_dir, vhost, queue, status, quiet=json)
    _show_status(status, as_json=json)
    if not detach and any(selected.values()) and not status["moved"]:
        fail("no message was redriven: none matches, or none could be moved")
    if status["phase"] == "failed" or status["unroutable"] or status["refused"]:
        raise typer.Exit(1)


@app.command("status")
def status(
    queue: QueueOption, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
) -> None:
    """Show the progress of a queue's redrive."""
    _show_status(ask(data_dir, "dlq.status", vhost=vhost, queue=queue), as_json=json)


@app.command("pause")
def pause(
    queue: QueueOption, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
) -> None:
    """Pause a redrive."""
    _show_status(ask(data_dir, "dlq.pause", vhost=vhost, queue=queue), as_json=json)


@app.command("resume")
def resume(
    queue: QueueOption, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
) -> None:
    """Resume a redrive."""
    _show_status(ask(data_dir, "dlq.resume", vhost=vhost, queue=queue), as_json=json)


@app.command("cancel")
def cancel(
    queue: QueueOption, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
) -> None:
    """Cancel a redrive; messages that it has not moved stay."""
    _show_status(ask(data_dir, "dlq.cancel", vhost=vhost, queue=queue), as_json=json)


@app.command("delete")
@with_options_of(DeadLetterOptions)
def delete(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **selected: Any,
) -> None:
    """Delete the selected messages."""
    count = ask(data_dir, "dlq.delete", **_common(vhost, queue, selected))
    show_count(count, "deleted", as_json=json, selected=True)


@app.command("purge")
def purge(
    queue: Queue, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
) -> None:
    """Delete all messages except unacknowledged ones."""
    show_count(ask(data_dir, "dlq.purge", vhost=vhost, queue=queue), "deleted", as_json=json)


def _common(vhost: str, queue: str, selected: dict[str, Any]) -> dict[str, object]:
    since, until = selected["since"], selected["until"]
    if selected["id"]:
        fail("--id may be either: state --offset, as `dlq list` shows it, or --message-id")
    return {
        "vhost": vhost,
        "queue": queue,
        "offsets": list(selected["offset"] or ()),
        "message_ids": list(selected["message_id"] or ()),
        "reason": selected["reason"],
        "source": selected["source"],
        "headers": header_values(selected["header"]),
        "since": None if since is None else moment_ms(since),
        "until": None if until is None else moment_ms(until),
    }


def _watch(
    data_dir: Any, vhost: str, queue: str, status: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    """Show the progress of a redrive, until it ends or is paused."""
    with progress("redriving", shown=not quiet) as bar:
        while status["phase"] == "running":
            bar.total(status["total"])
            bar.reach(status["looked_at"])
            time.sleep(POLL_SECONDS)
            status = ask(data_dir, "dlq.status", vhost=vhost, queue=queue)
    return status


def _show_status(status: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text.dumps(status, ensure_ascii=False))
        return
    text = f"{status['phase']}: {status['moved']} moved, {status['looked_at']} of "
    text += f"{status['total']} scanned"
    for kind in ("unroutable", "refused"):
        if status[kind]:
            text += f", {status[kind]} {kind}"
    typer.echo(text)
    if status["explanation"]:
        fail(status["explanation"])
