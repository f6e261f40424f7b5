"""`leveret schedule …`: delayed messages of a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Cut, Source, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import iso
from leveret.cli.session import DATA_DIR, DataDir, Json, Vhost, ask, fail
from leveret.cli.values import (
    header_values,
    moment_ms,
    show_count,
    show_one,
)

__all__ = ["app"]

app = Group("Delayed and scheduled messages.")

COLUMNS = ["id", "due", "message_id", "exchange", "routing_key", "payload_bytes", "repeats"]
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Id = Annotated[str, typer.Argument(help="The message's id, as `schedule list` shows it.")]
MaybeId = Annotated[str | None, typer.Argument(help="The id of one message.")]
Exchange = Annotated[
    str | None, typer.Option("--exchange", help="Messages published to this exchange.")
]
RoutingKey = Annotated[
    str | None, typer.Option("--routing-key", help="Messages published with this key.")
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", help="Messages with this header, NAME=VALUE; repeatable."),
]
MessageId = Annotated[
    str | None, typer.Option("--message-id", help="Messages with this message id.")
]
DueFrom = Annotated[
    str | None,
    typer.Option("--due-from", help="Messages due then or later: ISO 8601, or ms since 1970."),
]
DueBefore = Annotated[str | None, typer.Option("--due-before", help="Messages due before then.")]
OfQueue = Annotated[
    str | None, typer.Option("--queue", help="Celery tasks of this queue that wait for their ETA.")
]
All = Annotated[bool, typer.Option("--all", help="Every message of the virtual host.")]


@app.command("list")
@with_options_of(Cut)
def list_(
    *,
    id_: Annotated[str | None, typer.Option("--id", help="The message with this id.")] = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Header = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    queue: OfQueue = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show messages, in the order in which they are due."""
    common = _common(exchange, routing_key, header, message_id, due_from, due_before)
    show_list(
        Source(
            lambda count, after: ask(
                data_dir,
                "schedule.list",
                vhost=vhost,
                queue=queue,
                id=id_,
                limit=count,
                after=after,
                **common,
            )
        ),
        COLUMNS,
        options,
        as_json=json,
        readable=_readable,
    )


@app.command("show")
def show(
    id_: Id,
    queue: OfQueue = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show one message with its properties, its headers and its payload."""
    row = ask(data_dir, "schedule.show", vhost=vhost, queue=queue, id=id_)
    show_one(row, as_json=json)


@app.command("cancel")
def cancel(
    id_: MaybeId = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Header = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    all_: All = False,
    queue: OfQueue = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Cancel one message, or all that meet every condition given."""
    common = _common(exchange, routing_key, header, message_id, due_from, due_before)
    count = ask(data_dir, "schedule.cancel", vhost=vhost, queue=queue, id=id_, all=all_, **common)
    show_count(count, "cancelled", as_json=json, selected=not all_)


@app.command("deliver-now")
def deliver_now(
    id_: MaybeId = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Header = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    all_: All = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Deliver one message at once, or all that meet every condition given."""
    common = _common(exchange, routing_key, header, message_id, due_from, due_before)
    count = ask(data_dir, "schedule.deliver_now", vhost=vhost, id=id_, all=all_, **common)
    show_count(count, "delivered", as_json=json, selected=not all_)


@app.command("reschedule")
def reschedule(
    id_: MaybeId = None,
    at: Annotated[
        str | None, typer.Option("--at", help="The new time: ISO 8601, or ms since 1970.")
    ] = None,
    in_: Annotated[
        str | None, typer.Option("--in", help="Time from now: 500ms, 90s, 5m, 2h or 7d.")
    ] = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Header = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    all_: All = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Change the time of one message, or of all that meet every condition given."""
    count = ask(
        data_dir,
        "schedule.reschedule",
        vhost=vhost,
        id=id_,
        all=all_,
        due_ms=None if at is None else moment_ms(at),
        delay_ms=None if in_ is None else _interval(in_),
        **_common(exchange, routing_key, header, message_id, due_from, due_before),
    )
    show_count(count, "rescheduled", as_json=json, selected=not all_)


def _common(
    exchange: str | None,
    routing_key: str | None,
    header: list[str] | None,
    message_id: str | None,
    due_from: str | None,
    due_before: str | None,
) -> dict[str, object]:
    return {
        "exchange": exchange,
        "routing_key": routing_key,
        "headers": header_values(header),
        "message_id": message_id,
        "due_from_ms": None if due_from is None else moment_ms(due_from),
        "due_before_ms": None if due_before is None else moment_ms(due_before),
    }


def _interval(text: str) -> int:
    digits = text.rstrip("msdh")
    unit = text[len(digits) :]
    if not (digits.isascii() and digits.isdigit() and unit in UNITS_MS):
        fail(f"{text!r} is no interval such as 500ms, 90s, 5m, 2h or 7d")
    return int(digits) * UNITS_MS[unit]


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    repeats = row["cron"] or ""
    if row["repeat_every_ms"] is not None:
        repeats = f"every {row['repeat_every_ms']} ms"
    if row["deliveries_left"] is not None:
        repeats += f", {row['deliveries_left']} left"
    named = {"message_id": row["message_id"] or ""}
    return {**row, **named, "due": iso(row["due_ms"]), "repeats": repeats}
