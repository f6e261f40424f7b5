"""`leveret queue …`: the queues of a running node."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from leveret.cli.completion import queue_names
from leveret.cli.group import Group
from leveret.cli.listing import Listing, asked, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done, show_warnings
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, Vhost, ask
from leveret.cli.values import Arguments, arguments_of, show_count, show_one

__all__ = ["app"]

app = Group("Queues of a running node.")

COLUMNS = ["vhost", "name", "type", "messages_ready", "messages_unacknowledged", "consumers"]

Name = Annotated[str, typer.Argument(help="The queue's name.", autocompletion=queue_names)]


class _Type(StrEnum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


@app.command("list")
@with_options_of(Listing)
def list_(
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Only names that contain this text.")
    ] = None,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show queues with their messages and consumers."""
    show_list(
        asked(data_dir, "queue.list", options, vhost=vhost, name=name),
        COLUMNS,
        options,
        as_json=json,
    )


@app.command("show")
def show(name: Name, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show one queue: settings, messages, memory and rates."""
    row = ask(data_dir, "queue.show", vhost=vhost, name=name)
    show_one(row if json else _readable(row), as_json=json)


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
    transient: Annotated[
        bool, typer.Option("--transient", help="Do not keep it when the node stops.")
    ] = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it with its last consumer.")
    ] = False,
    argument: Arguments = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Create a queue; one that exists must have the same properties."""
    arguments = arguments_of(argument)
    made = ask(
        data_dir,
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
    show_done(f"queue '{made}' is declared", as_json=json)


@app.command("delete")
def delete(
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no consumers.")
    ] = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it is empty.")] = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete a queue and its messages, even an exclusive queue."""
    count = ask(
        data_dir, "queue.delete", vhost=vhost, name=name, if_unused=if_unused, if_empty=if_empty
    )
    show_count(count, f"deleted with queue '{name}'", as_json=json)


@app.command("purge")
def purge(
    name: Name,
    waiting: Annotated[
        bool,
        typer.Option("--waiting", help="Also messages that wait for a retry or for their ETA."),
    ] = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete all messages except unacknowledged ones."""
    count = ask(data_dir, "queue.purge", vhost=vhost, name=name, waiting=waiting)
    show_count(count, "deleted", as_json=json)


@app.command("pause")
def pause(
    name: Name,
    publishing: Annotated[
        bool, typer.Option("--publishing", help="Also refuse messages that are published to it.")
    ] = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Stop delivering from a queue until it is resumed; consumers stay connected."""
    ask(data_dir, "queue.pause", vhost=vhost, name=name, publishing=publishing)
    show_done(f"queue '{name}' is paused", as_json=json)


@app.command("resume")
def resume(
    name: Name, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
) -> None:
    """Resume the delivery of a paused queue."""
    ask(data_dir, "queue.resume", vhost=vhost, name=name)
    show_done(f"queue '{name}' is resumed", as_json=json)


@app.command("rename")
def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(help="The new name.")],
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Rename a queue; the old name stays an alias until `queue remove-alias`."""
    ask(data_dir, "queue.rename", vhost=vhost, name=name, new_name=new_name)
    show_done(f"queue '{name}' was renamed to '{new_name}'", as_json=json)


@app.command("remove-alias")
def remove_alias(
    alias: Annotated[str, typer.Argument(help="An alias, a former name of a queue.")],
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Remove an alias of a renamed queue: clients that use it get 404."""
    ask(data_dir, "queue.alias.remove", vhost=vhost, alias=alias)
    show_done(f"alias '{alias}' was removed", as_json=json)


@app.command("change")
def change(
    name: Name,
    argument: Arguments = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Change arguments of a queue while it is in use; NAME=null removes one."""
    ask(data_dir, "queue.change", vhost=vhost, name=name, arguments=arguments_of(argument))
    show_done(f"queue '{name}' was changed", as_json=json)
