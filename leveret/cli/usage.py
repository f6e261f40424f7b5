"""`leveret usage`: who has used how much, hour by hour."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from leveret.cli.output import show_rows
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, ask

__all__ = ["usage"]

HOUR_SECONDS = 3600


class _Subject(StrEnum):
    VHOST = "vhost"
    USER = "user"
    QUEUE = "queue"


def usage(
    hours: Annotated[int, typer.Option("--hours", min=1, help="So many, this one included.")] = 24,
    subject: Annotated[
        _Subject | None, typer.Option("--of", help="Of virtual hosts, users or queues only.")
    ] = None,
    vhost: InVhost = None,
    name: Annotated[str | None, typer.Option("--name", help="Of this user or queue only.")] = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Show messages and bytes in and out by hour (UTC); a queue's in is what was stored in it."""
    now = int(time.time())
    until = now - now % HOUR_SECONDS + HOUR_SECONDS
    rows = ask(
        data_dir,
        "usage.list",
        since=until - hours * HOUR_SECONDS,
        until=until,
        subject=None if subject is None else subject.value,
        vhost=vhost,
        name=name,
    )
    if not json:
        for row in rows:
            row["hour"] = datetime.fromtimestamp(row["hour"], UTC).strftime("%Y-%m-%d %H:00")
    columns = ["hour", "subject", "vhost", "name"]
    counts = ["messages_in", "bytes_in", "messages_out", "bytes_out"]
    show_rows(rows, [*columns, *counts], as_json=json)
