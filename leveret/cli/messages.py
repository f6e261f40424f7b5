"""`leveret message …`: single messages of a queue or stream of a running node."""

from __future__ import annotations

import sys
import time
from base64 import b64decode, b64encode
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path  # read when the command is built
from typing import Annotated, Any

import typer

from leveret.cli.completion import queue_names
from leveret.cli.group import Group
from leveret.cli.listing import Cut, Source, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import iso, printable, show_json
from leveret.cli.progress import progress
from leveret.cli.session import Vhost, as_json, ask, fail, read_json
from leveret.cli.values import (
    Headers,
    Partition,
    arguments_of,
    counted,
    header_values,
    moment_ms,
    show_count,
    show_one,
)

__all__ = ["app"]

app = Group(
    "Browse a queue without disturbing it; publish, take, delete, move, copy and edit messages."
)

COLUMNS = ["offset", "state", "stored_at", "message_id", "exchange", "routing_key", "payload_bytes"]
PUBLISHED_COUNT_MAX = 1000  # in one request
# Properties whose values are text also where they look like a number: message_id=7.
TEXT_PROPERTIES = {
    "app_id", "cluster_id", "content_encoding", "content_type", "correlation_id", "expiration",
    "message_id", "reply_to", "type", "user_id",
}  # fmt: skip
# Counts in an answer about messages that were left, and the reason.
LEFT = {
    "skipped": "with a consumer",
    "unroutable": "unroutable",
    "refused": "refused: the destination is full",
}

Queue = Annotated[
    str, typer.Argument(help="The queue that holds the messages.", autocompletion=queue_names)
]
Offset = Annotated[int, typer.Argument(help="Its offset, as `list` shows it.")]


class _State(StrEnum):
    READY = "ready"
    UNACKED = "unacked"
    DELAYED = "delayed"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Options that select messages; a message must meet all of them."""

    partition: Partition = None
    offset: Annotated[
        list[int] | None, typer.Option("--offset", help="The message at this offset; repeatable.")
    ] = None
    message_id: Annotated[
        list[str] | None,
        typer.Option("--message-id", help="Messages with this message id; repeatable."),
    ] = None
    state: Annotated[
        _State | None,
        typer.Option(
            "--state", help="Ready, unacknowledged, delayed, or settled ones that are kept."
        ),
    ] = None
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Messages published to this exchange.")
    ] = None
    routing_key: Annotated[
        str | None, typer.Option("--routing-key", help="Messages published with this routing key.")
    ] = None
    header: Headers = None
    tags: Annotated[
        str | None, typer.Option("--tags", help="Messages whose tags match this expression.")
    ] = None
    sql: Annotated[
        str | None, typer.Option("--sql", help="Messages whose headers meet this condition.")
    ] = None
    text: Annotated[
        str | None, typer.Option("--text", help="Messages whose body contains this text.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", help="Messages stored then or later: ISO 8601, or ms since 1970."),
    ] = None
    until: Annotated[str | None, typer.Option("--until", help="Messages stored before then.")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class Where:
    """Options of a destination; either a queue or an exchange."""

    to_queue: Annotated[
        str | None,
        typer.Option("--to-queue", help="Destination queue.", autocompletion=queue_names),
    ] = None
    to_exchange: Annotated[
        str | None, typer.Option("--to-exchange", help="Exchange to publish them to.")
    ] = None
    to_key: Annotated[
        str | None, typer.Option("--to-key", help="Routing key in place of their own.")
    ] = None


@app.command("list")
@with_options_of(Cut)
@with_options_of(MessageOptions)
def list_(
    *,
    queue: Queue,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Begin at the end of the queue.")
    ] = False,
    vhost: Vhost = "/",
    **selected: Any,
) -> None:
    """Show messages, the oldest first. Nothing is delivered."""
    chosen = _chosen(vhost, queue, selected)
    asked = {**chosen, "from": None, "backwards": newest_first, "truncate": None, "encoding": None}

    def page(count: int, after: object) -> dict[str, Any]:
        found = ask("message.list", limit=count, after=after, **asked)
        return {"rows": found["messages"], "after": found["after"]}

    names = {"stored_at": "time_ms", "message_id": "properties.message_id"}
    show_list(Source(page), COLUMNS, selected, aliases=names)


@app.command("show")
def show(
    queue: Queue,
    offset: Offset,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Show one message with its properties and its payload."""
    one = {"offset": offset, "truncate": None, "encoding": None, "partition": partition}
    show_one(ask("message.show", vhost=vhost, queue=queue, **one))


@app.command("publish")
def publish(
    payload: Annotated[
        str | None, typer.Argument(help="The body; without it, standard input or --file.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", help="Queue to publish to.", autocompletion=queue_names),
    ] = None,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Exchange to publish to.")
    ] = None,
    routing_key: Annotated[
        str, typer.Option("--routing-key", help="Routing key, with --exchange.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--file", help="File with the body; any bytes.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="A header, NAME=VALUE; VALUE is JSON, or text. Repeatable."),
    ] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property", help="A property, such as content_type=text/plain or priority=5."
        ),
    ] = None,
    persistent: Annotated[
        bool,
        typer.Option("--persistent/--transient", help="Whether the message survives a restart."),
    ] = True,
    count: Annotated[int, typer.Option("--count", min=1, help="How many times to publish it.")] = 1,
    vhost: Vhost = "/",
) -> None:
    """Publish a message and wait for its confirm; status 1 if no queue took it."""
    if (queue is None) == (exchange is None):
        raise typer.BadParameter("state either --queue or --exchange")
    if queue is not None and routing_key:
        raise typer.BadParameter("--routing-key is for --exchange")
    asked = {
        "vhost": vhost,
        "exchange": exchange or "",
        "routing_key": routing_key if queue is None else queue,
        "properties": _properties(property_, header, persistent=persistent),
        **_payload(payload, file),
    }
    sums = {"published": 0, "routed": 0}
    with progress("publishing", shown=not as_json()) as bar:
        bar.total(count)
        while sums["published"] < count:
            portion = min(count - sums["published"], PUBLISHED_COUNT_MAX)
            told = ask("message.publish", count=portion, **asked)
            for name, number in told.items():
                sums[name] += number
            bar.reach(sums["published"])
    unroutable = sums["published"] - sums["routed"]
    if as_json():
        show_json(sums)
    elif sums["routed"]:
        show_count(sums["routed"], "published and confirmed")
    if unroutable:
        fail(f"{counted(unroutable, 'message')} could not be routed: no binding matches")


@app.command("take", also=("get",))
def take(
    queue: Queue,
    count: Annotated[
        int, typer.Option("--count", min=1, max=1000, help="Messages to take at most.")
    ] = 1,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Put them back, marked as redelivered.")
    ] = False,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print only the bodies, each on a line.")
    ] = False,
    vhost: Vhost = "/",
) -> None:
    """Get messages and remove them from the queue; `message list` and `show` do not.

    Ends with status 1 if the queue is empty.
    """
    stated = {"vhost": vhost, "queue": queue, "count": count, "requeue": requeue}
    rows = ask("message.take", **stated)["messages"]
    if as_json():
        show_json(rows)
    elif payload:
        for row in rows:
            sys.stdout.buffer.write(_body(row) + b"\n")
        sys.stdout.flush()
    else:
        for number, row in enumerate(rows):
            if number:
                typer.echo()
            show_one(row)
    if not rows:
        fail(f"queue '{queue}' has no message that is ready")


def _body(row: dict[str, Any]) -> bytes:
    text: str = row["payload"]
    return text.encode() if row["payload_encoding"] == "string" else b64decode(text)


def _payload(stated: str | None, file: Path | None) -> dict[str, str]:
    """Return the body from its option, a file or standard input, as requests carry it."""
    if stated is not None and file is not None:
        raise typer.BadParameter("state either a payload or --file")
    if stated is not None:
        return {"payload": stated, "payload_encoding": "string"}
    try:
        body = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
    return {"payload": b64encode(body).decode(), "payload_encoding": "base64"}


def _properties(
    stated: list[str] | None, headers: list[str] | None, *, persistent: bool
) -> dict[str, object]:
    properties = {**arguments_of(stated, "--property"), "delivery_mode": 2 if persistent else 1}
    for name in properties.keys() & TEXT_PROPERTIES:
        properties[name] = next(
            text.partition("=")[2] for text in reversed(stated or ()) if text.startswith(f"{name}=")
        )
    if headers:
        properties["headers"] = arguments_of(headers, "--header")
    return properties


@app.command("trace")
def trace(
    queue: Annotated[
        str | None,
        typer.Argument(help="The queue that holds the message.", autocompletion=queue_names),
    ] = None,
    offset: Annotated[int | None, typer.Argument(help="Its offset, as `list` shows it.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--message-id", help="All messages with this id, in any queue.")
    ] = None,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Show the trace of a message: published, failed, dead-lettered, stored, delivered.

    With an id, it also finds messages that wait for a retry, an ETA or a delay, and prepared ones.
    """
    one = {
        "vhost": vhost,
        "queue": queue,
        "offset": offset,
        "message_id": message_id,
        "partition": partition,
    }
    told: list[dict[str, Any]] = []
    after = None
    while True:
        found = ask("message.trace", after=after, **one)
        told += found["messages"]
        after = found["after"]
        if after is None:
            break
    if as_json():
        show_json(told)
        return
    from leveret.features.trace.message_trace import (
        sentences,  # its import brings the parser of field tables
    )

    for message in told:
        where = f"of queue {message['queue']}" if message["queue"] is not None else message["state"]
        if "partition" in message:
            where = f"of partition {message['partition']} {where}"
        typer.echo(printable(f"message {message['offset']} {where}"))
        for time_ms, sentence in sentences(message):
            typer.echo(printable(f"  {'' if time_ms is None else iso(time_ms):24}  {sentence}"))
    if not told:
        fail(f"no message with id '{message_id}' in vhost '{vhost}'")


@app.command("delete")
@with_options_of(MessageOptions)
def delete(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    **selected: Any,
) -> None:
    """Delete the selected messages; `leveret queue purge` deletes all."""
    chosen = _chosen(vhost, queue, selected)
    if not chosen["select"].keys() - {"partition"}:
        fail("state which messages; `leveret queue purge` deletes all")
    _deal("message.delete", "deleted", chosen)


@app.command("move")
@with_options_of(Where)
@with_options_of(MessageOptions)
def move(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    **stated: Any,
) -> None:
    """Move the selected messages; after a crash, too, each is in exactly one place."""
    _deal("message.move", "moved", _transfer(vhost, queue, stated))


@app.command("copy")
@with_options_of(Where)
@with_options_of(MessageOptions)
def copy(
    *,
    queue: Queue,
    vhost: Vhost = "/",
    **stated: Any,
) -> None:
    """Copy the selected messages to a queue or an exchange."""
    _deal("message.copy", "copied", _transfer(vhost, queue, stated))


@app.command("edit")
def edit(
    queue: Queue,
    offset: Offset,
    payload: Annotated[str | None, typer.Option("--payload", help="The new payload.")] = None,
    routing_key: Annotated[
        str | None, typer.Option("--routing-key", help="The new routing key.")
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", help="Headers to change, in JSON; null removes one.")
    ] = None,
    properties: Annotated[
        str | None,
        typer.Option("--properties", help="Properties to change, in JSON; null removes one."),
    ] = None,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Replace a message with an edited copy at the tail of the queue."""
    stated = {
        "payload": payload,
        "routing_key": routing_key,
        "headers": None if headers is None else read_json(headers),
        "properties": None if properties is None else read_json(properties),
    }
    changes = {name: value for name, value in stated.items() if value is not None}
    one = {"vhost": vhost, "queue": queue, "offset": offset, "partition": partition}
    done = ask("message.edit", changes=changes, **one)
    show_count(done["edited"], "changed")


def _chosen(vhost: str, queue: str, selected: dict[str, Any]) -> dict[str, Any]:
    """Return queue and message filter, as the node takes them."""
    stated = {
        "partition": selected["partition"],
        "offsets": selected["offset"],
        "message_ids": selected["message_id"],
        "state": selected["state"] and selected["state"].value,
        "exchange": selected["exchange"],
        "routing_key": selected["routing_key"],
        "headers": header_values(selected["header"]),
        "tags": selected["tags"],
        "sql": selected["sql"],
        "text": selected["text"],
        "since": moment_ms(selected["since"]),
        "until": moment_ms(selected["until"]),
    }
    # An exchange and a routing key may be empty; a list that nothing was put into says nothing.
    select = {name: value for name, value in stated.items() if value not in (None, [], {})}
    return {"vhost": vhost, "queue": queue, "select": select}


def _transfer(vhost: str, queue: str, stated: dict[str, Any]) -> dict[str, Any]:
    """Return queue, message filter and destination, as the node takes them."""
    if stated["to_key"] is not None and stated["to_exchange"] is None:
        fail("--to-key is for --to-exchange")
    chosen = _chosen(vhost, queue, stated)
    # Messages that arrive meanwhile are left out: copies may go into the same queue.
    chosen["select"].setdefault("until", int(time.time() * 1000) + 1)
    return {
        **chosen,
        "to_queue": stated["to_queue"],
        "exchange": stated["to_exchange"],
        "routing_key": stated["to_key"],
    }


def _deal(operation: str, done: str, asked: dict[str, Any]) -> None:
    """Process messages, request by request, and show the counts; status 1 if any were left."""
    sums: dict[str, int] = {done: 0}
    after = None
    with progress(f"messages {done}", shown=not as_json()) as bar:
        while True:
            told = ask(operation, limit=None, after=after, **asked)
            for name in (done, *LEFT):
                sums[name] = sums.get(name, 0) + told.get(name, 0)
            bar.advance(told[done])
            after = told["after"]
            if after is None or told.get("refused"):
                break
    if as_json():
        show_json(sums)
    else:
        show_count(sums[done], done)
        for name, why in LEFT.items():
            if sums[name]:
                show_count(sums[name], f"left: {why}")
    if any(sums[name] for name in LEFT):
        raise typer.Exit(1)
    # "until" alone is what every transfer states, and a partition is where to look.
    if not sums[done] and asked["select"].keys() - {"until", "partition"}:
        fail("no message matches: nothing was done")
