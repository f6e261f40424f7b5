"""`leveret usage`: messages and bytes by hour and by virtual host, user or queue."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from leveret.cli.group import with_common
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import iso
from leveret.cli.session import InVhost, ask

__all__ = ["usage"]

HOUR_SECONDS = 3600
COLUMNS = [
    "hour", "subject", "vhost", "name", "messages_in", "bytes_in", "messages_out", "bytes_out",
]  # fmt: skip


class _Subject(StrEnum):
    VHOST = "vhost"
    USER = "user"
    QUEUE = "queue"


@with_common
@with_options_of(Listing)
def usage(
    *,
    hours: Annotated[
        int, typer.Option("--hours", min=1, help="Number of hours, including the current one.")
    ] = 24,
    subject: Annotated[
        _Subject | None, typer.Option("--of", help="Only of virtual hosts, users or queues.")
    ] = None,
    vhost: InVhost = None,
    name: Annotated[str | None, typer.Option("--name", help="Only of this user or queue.")] = None,
    **options: Any,
) -> None:
    """Show messages and bytes in and out, by hour; of a queue, in is what was stored in it."""
    now = int(time.time())
    until = now - now % HOUR_SECONDS + HOUR_SECONDS
    rows = ask(
        "usage.list",
        since=until - hours * HOUR_SECONDS,
        until=until,
        subject=None if subject is None else subject.value,
        vhost=vhost,
        name=name,
    )
    show_list(whole(rows), COLUMNS, options, readable=_readable)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "hour": iso(row["hour"] * 1000)}
