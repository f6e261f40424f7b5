"""`leveret exchange …`: the exchanges of a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, asked, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, Vhost, ask
from leveret.cli.values import Arguments, arguments_of, show_one

__all__ = ["app"]

app = Group("Exchanges of a running node.")

COLUMNS = ["vhost", "name", "type", "durable", "auto_delete", "internal"]

Name = Annotated[str, typer.Argument(help="The exchange's name.")]


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
    """Show exchanges, the predeclared ones included."""
    show_list(
        asked(data_dir, "exchange.list", options, vhost=vhost, name=name),
        COLUMNS,
        options,
        as_json=json,
    )


@app.command("show")
def show(name: Name, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show one exchange."""
    show_one(ask(data_dir, "exchange.show", vhost=vhost, name=name), as_json=json)


@app.command("declare")
def declare(
    name: Name,
    type_: Annotated[
        str, typer.Option("--type", help="direct, fanout, topic, headers, or another one.")
    ] = "direct",
    transient: Annotated[
        bool, typer.Option("--transient", help="Do not keep it when the node stops.")
    ] = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it with its last binding.")
    ] = False,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal", help="Take messages from other exchanges only, not from clients."
        ),
    ] = False,
    argument: Arguments = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Create an exchange; one that exists must have the same properties."""
    ask(
        data_dir,
        "exchange.declare",
        vhost=vhost,
        name=name,
        type=type_,
        durable=not transient,
        auto_delete=auto_delete,
        internal=internal,
        arguments=arguments_of(argument),
    )
    show_done(f"exchange '{name}' is declared", as_json=json)


@app.command("delete")
def delete(
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if nothing is bound to it.")
    ] = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete an exchange and its bindings."""
    ask(data_dir, "exchange.delete", vhost=vhost, name=name, if_unused=if_unused)
    show_done(f"exchange '{name}' was deleted", as_json=json)
