"""Common parsing of values in options, and formatting of results."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import not_
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.output import MOMENTS, iso, printable, show_json
from leveret.cli.session import as_json, fail

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MIB",
    "Arguments",
    "Headers",
    "NamePart",
    "Partition",
    "Sent",
    "Transient",
    "arguments_of",
    "counted",
    "header_values",
    "listed",
    "moment_ms",
    "show_count",
    "show_one",
    "shown_alarms",
    "span",
]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sent:
    """Metadata of a parameter: how its value is sent to the node, and under which name."""

    convert: Callable[[Any], object]
    name: str = ""


def listed(stated: list[Any] | None) -> list[Any]:
    """Return the values of a repeatable parameter."""
    return list(stated or ())


def header_values(stated: list[str] | None) -> dict[str, str]:
    """Return headers by name, from options NAME=VALUE."""
    headers = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"--header is NAME=VALUE, not {text!r}")
        headers[name] = value
    return headers


def arguments_of(stated: list[str] | None, option: str = "--argument") -> dict[str, object]:
    """Return arguments by name, from options NAME=VALUE; values are JSON if they parse as such."""
    arguments: dict[str, object] = {}
    for text in stated or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"{option} is NAME=VALUE, not {text!r}")
        try:
            arguments[name] = json_text.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


def moment_ms(text: str | None) -> int | None:
    """Return ms since 1970, from a number or an ISO 8601 time, in UTC by default; None for None."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is neither an ISO 8601 time nor milliseconds since 1970")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def show_count(count: int, done: str, *, selected: bool = False) -> None:
    """Print the number of affected messages; for `selected` ones 0 ends with an error."""
    if as_json():
        show_json({"count": count})
    else:
        typer.echo(f"{counted(count, 'message')} {'was' if count == 1 else 'were'} {done}")
    if selected and not count:
        fail("no message matches: nothing was done")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 queue`, `2 queues`, `3 policies`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun.removesuffix('y')}ies" if noun.endswith("cy") else f"{count} {noun}s"


def show_one(fields: Mapping[str, object]) -> None:
    """Print one object: a line for each of its fields, or all in JSON."""
    if as_json():
        show_json(fields)
        return
    for name, value in fields.items():
        text = value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
        if name in MOMENTS and type(value) is int:
            text = iso(value)
        typer.echo(f"{name.removesuffix('_ms') if name in MOMENTS else name}: {printable(text)}")


def shown_alarms(found: Mapping[str, Any]) -> str:
    """Return the alarms of a node's status in one line: its own, and whose the others are."""
    elsewhere = [f"{each['resource']} of {each['node']}" for each in found["alarms_elsewhere"]]
    return ", ".join([*found["alarms"], *elsewhere]) or "none"


def span(seconds: int) -> str:
    """Format a duration in seconds by its two largest units."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", help="An argument, NAME=VALUE; VALUE is JSON, or text. Repeatable."),
    Sent(arguments_of, "arguments"),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", help="Messages with this header, NAME=VALUE; repeatable."),
    Sent(header_values, "headers"),
]
NamePart = Annotated[str | None, typer.Option("--name", help="Only names that contain this text.")]
Partition = Annotated[
    int | None,
    typer.Option("--partition", min=0, help="One of its partitions, where it has several."),
]
Transient = Annotated[
    bool,
    typer.Option("--transient", help="Do not keep it when the node stops."),
    Sent(not_, "durable"),
]
