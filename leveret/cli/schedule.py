"""`leveret schedule …` and `leveret retry …`: messages of a running node that wait for a time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Cut
from leveret.cli.output import iso
from leveret.cli.session import Vhost, fail
from leveret.cli.values import Headers, Partition, Sent, listed, moment_ms

__all__ = ["app", "retries"]

app = Group("Delayed and scheduled messages.")
retries = Group("Failed messages that wait for a retry.")

COLUMNS = ["id", "due", "message_id", "exchange", "routing_key", "payload_bytes", "repeats"]
RETRY_COLUMNS = [
    "id", "due", "message_id", "retry_count", "last_failure", "exchange", "routing_key",
    "payload_bytes",
]  # fmt: skip
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _interval(text: str | None) -> int | None:
    """Return milliseconds of a text such as 90s; None for None."""
    if text is None:
        return None
    digits = text.rstrip("msdh")
    unit = text[len(digits) :]
    if not (digits.isascii() and digits.isdigit() and unit in UNITS_MS):
        fail(f"{text!r} is no interval such as 500ms, 90s, 5m, 2h or 7d")
    return int(digits) * UNITS_MS[unit]


Id = Annotated[str, typer.Argument(help="The message's id, as `schedule list` shows it.")]
MaybeId = Annotated[str | None, typer.Argument(help="The id of one message.")]
WithId = Annotated[str | None, typer.Option("--id", help="The message with this id.")]
Exchange = Annotated[
    str | None, typer.Option("--exchange", help="Messages published to this exchange.")
]
RoutingKey = Annotated[
    str | None, typer.Option("--routing-key", help="Messages published with this key.")
]
MessageId = Annotated[
    str | None, typer.Option("--message-id", help="Messages with this message id.")
]
DueFrom = Annotated[
    str | None,
    typer.Option("--due-from", help="Messages due then or later: ISO 8601, or ms since 1970."),
    Sent(moment_ms, "due_from_ms"),
]
DueBefore = Annotated[
    str | None,
    typer.Option("--due-before", help="Messages due before then."),
    Sent(moment_ms, "due_before_ms"),
]
OfQueue = Annotated[
    str | None, typer.Option("--queue", help="Celery tasks of this queue that wait for their ETA.")
]
All = Annotated[bool, typer.Option("--all", help="Every message of the virtual host.")]
RetryQueue = Annotated[str, typer.Argument(help="The queue whose messages wait.")]
RetryId = Annotated[str, typer.Argument(help="The message's id, as `retry list` shows it.")]
RetryIds = Annotated[
    list[str] | None, typer.Argument(help="Ids, as `retry list` shows them."), Sent(listed)
]
EveryRetry = Annotated[bool, typer.Option("--all", help="Every message that waits.")]


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    repeats = row["cron"] or ""
    if row["repeat_every_ms"] is not None:
        repeats = f"every {row['repeat_every_ms']} ms"
    if row["deliveries_left"] is not None:
        repeats += f", {row['deliveries_left']} left"
    named = {"message_id": row["message_id"] or ""}
    return {**row, **named, "due": iso(row["due_ms"]), "repeats": repeats}


@app.list("schedule.list", COLUMNS, options=Cut, paged=True, readable=_readable)
def list_(
    id_: WithId = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Headers = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    queue: OfQueue = None,
    vhost: Vhost = "/",
) -> None:
    """Show messages, in the order in which they are due."""


@app.show("show", "schedule.show")
def show(id_: Id, queue: OfQueue = None, vhost: Vhost = "/") -> None:
    """Show one message with its properties, its headers and its payload."""


@app.count("cancel", "schedule.cancel", "cancelled", selects=True)
def cancel(
    id_: MaybeId = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Headers = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    all_: All = False,
    queue: OfQueue = None,
    vhost: Vhost = "/",
) -> None:
    """Cancel one message, or all that meet every condition given."""


@app.count("deliver-now", "schedule.deliver_now", "delivered", selects=True)
def deliver_now(
    id_: MaybeId = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Headers = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    all_: All = False,
    vhost: Vhost = "/",
) -> None:
    """Deliver one message at once, or all that meet every condition given."""


@app.count("reschedule", "schedule.reschedule", "rescheduled", selects=True)
def reschedule(
    id_: MaybeId = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="The new time: ISO 8601, or ms since 1970."),
        Sent(moment_ms, "due_ms"),
    ] = None,
    in_: Annotated[
        str | None,
        typer.Option("--in", help="Time from now: 500ms, 90s, 5m, 2h or 7d."),
        Sent(_interval, "delay_ms"),
    ] = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Headers = None,
    message_id: MessageId = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    all_: All = False,
    vhost: Vhost = "/",
) -> None:
    """Change the time of one message, or of all that meet every condition given."""


@retries.list("retry.list", RETRY_COLUMNS, options=Cut, paged=True, aliases={"due": "due_ms"})
def list_retries(
    queue: RetryQueue,
    id_: WithId = None,
    message_id: MessageId = None,
    exchange: Exchange = None,
    routing_key: RoutingKey = None,
    header: Headers = None,
    due_from: DueFrom = None,
    due_before: DueBefore = None,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Show the waiting messages, in the order in which they are due."""


@retries.show("show", "retry.show")
def show_retry(
    queue: RetryQueue, id_: RetryId, partition: Partition = None, vhost: Vhost = "/"
) -> None:
    """Show one message with its properties and its payload."""


@retries.count("retry-now", "retry.retry_now", "retried", selects=True)
def retry_now(
    queue: RetryQueue,
    ids: RetryIds = None,
    all_: EveryRetry = False,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Retry messages now."""


@retries.count("cancel", "retry.cancel", "deleted", selects=True)
def cancel_retries(
    queue: RetryQueue,
    ids: RetryIds = None,
    all_: EveryRetry = False,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Delete waiting messages; they are not dead-lettered."""
