"""Values that people type in several commands, and how such are shown."""

from __future__ import annotations

import json as json_text
from datetime import UTC, datetime

import typer

from leveret.cli.session import fail

__all__ = ["header_values", "iso", "moment_ms", "show_count", "show_fields"]


def header_values(stated: list[str] | None) -> dict[str, str]:
    """Headers by name, of options NAME=VALUE."""
    headers = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--header is NAME=VALUE, not {text!r}")
        headers[name] = value
    return headers


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, from a number of them or from a time, UTC unless it says else."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is neither an ISO 8601 time nor milliseconds since 1970")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def iso(ms: int) -> str:
    """A time for people, from milliseconds since 1970."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_count(count: int, done: str, *, as_json: bool) -> None:
    """How many messages something was done to."""
    if as_json:
        typer.echo(json_text.dumps({"count": count}))
    else:
        typer.echo(f"{count} {'message was' if count == 1 else 'messages were'} {done}")


def show_fields(fields: dict[str, object]) -> None:
    """One thing, a line for each of its fields."""
    for name, value in fields.items():
        text = value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
        typer.echo(f"{name}: {text}")
