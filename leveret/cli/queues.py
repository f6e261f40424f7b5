"""`leveret queue …`: the queues of a running node."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from leveret.cli.completion import queue_names
from leveret.cli.group import Group
from leveret.cli.output import show_done, show_warnings
from leveret.cli.session import InVhost, Vhost, as_json, ask
from leveret.cli.values import Arguments, NamePart, Transient, arguments_of, show_one

__all__ = ["app"]

app = Group("Queues of a running node.")

COLUMNS = ["vhost", "name", "type", "messages_ready", "messages_unacknowledged", "consumers"]

Name = Annotated[str, typer.Argument(help="The queue's name.", autocompletion=queue_names)]


class _Type(StrEnum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


@app.list("queue.list", COLUMNS, paged=True)
def list_(name: NamePart = None, vhost: InVhost = None) -> None:
    """Show queues with their messages and consumers."""


@app.command("show")
def show(name: Name, vhost: Vhost = "/") -> None:
    """Show one queue: settings, messages, memory and rates."""
    row = ask("queue.show", vhost=vhost, name=name)
    show_one(row if as_json() else _readable(row))


def _readable(row: dict[str, Any]) -> dict[str, object]:
    """Return a row for people, in which rates stand beside their counters."""
    flat = {**row, **row.get("message_stats", {})}
    shown: dict[str, object] = {}
    for name, value in flat.items():
        rate = value.get("rate") if isinstance(value, dict) and name.endswith("_details") else None
        if name == "message_stats" or rate is not None:
            continue
        details = flat.get(f"{name}_details", {})
        per_second = details.get("rate", 0) if isinstance(details, dict) else 0
        shown[name] = f"{value} ({per_second:+.1f}/s)" if per_second else value
    return shown


@app.command("declare")
def declare(
    name: Annotated[
        str, typer.Argument(help="The queue's name; if empty, the node generates one.")
    ],
    type_: Annotated[
        _Type | None,
        typer.Option("--type", help="Its type; without it, the virtual host's default."),
    ] = None,
    transient: Transient = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it with its last consumer.")
    ] = False,
    argument: Arguments = None,
    vhost: Vhost = "/",
) -> None:
    """Create a queue; one that exists must have the same properties."""
    arguments = arguments_of(argument)
    made = ask(
        "queue.declare",
        vhost=vhost,
        name=name,
        type=None if type_ is None else type_.value,
        durable=not transient,
        auto_delete=auto_delete,
        arguments=arguments,
    )
    if arguments:
        from leveret.core.definitions.effects import without_effect  # a queue needs none, mostly
        from leveret.ports.definitions import QueueDefinition

        show_warnings(without_effect(QueueDefinition(vhost, made, arguments=arguments)))
    show_done(f"queue '{made}' is declared")


@app.count("delete", "queue.delete", "deleted with queue '{name}'")
def delete(
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no consumers.")
    ] = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it is empty.")] = False,
    vhost: Vhost = "/",
) -> None:
    """Delete a queue and its messages, even an exclusive queue."""


@app.count("purge", "queue.purge", "deleted")
def purge(
    name: Name,
    waiting: Annotated[
        bool,
        typer.Option("--waiting", help="Also messages that wait for a retry or for their ETA."),
    ] = False,
    vhost: Vhost = "/",
) -> None:
    """Delete all messages except unacknowledged ones."""


@app.change("pause", "queue.pause", "queue '{name}' is paused")
def pause(
    name: Name,
    publishing: Annotated[
        bool, typer.Option("--publishing", help="Also refuse messages that are published to it.")
    ] = False,
    vhost: Vhost = "/",
) -> None:
    """Stop delivering from a queue until it is resumed; consumers stay connected."""


@app.change("resume", "queue.resume", "queue '{name}' is resumed")
def resume(name: Name, vhost: Vhost = "/") -> None:
    """Resume the delivery of a paused queue."""


@app.change("rename", "queue.rename", "queue '{name}' was renamed to '{new_name}'")
def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(help="The new name.")],
    vhost: Vhost = "/",
) -> None:
    """Rename a queue; the old name stays an alias until `queue remove-alias`."""


@app.change("remove-alias", "queue.alias.remove", "alias '{alias}' was removed")
def remove_alias(
    alias: Annotated[str, typer.Argument(help="An alias, a former name of a queue.")],
    vhost: Vhost = "/",
) -> None:
    """Remove an alias of a renamed queue: clients that use it get 404."""


@app.change("change", "queue.change", "queue '{name}' was changed")
def change(name: Name, argument: Arguments = None, vhost: Vhost = "/") -> None:
    """Change arguments of a queue while it is in use; NAME=null removes one."""
