"""`leveret exchange …`: the exchanges of a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.session import InVhost, Vhost
from leveret.cli.values import Arguments, NamePart, Transient

__all__ = ["app"]

app = Group("Exchanges of a running node.")

COLUMNS = ["vhost", "name", "type", "durable", "auto_delete", "internal"]

Name = Annotated[str, typer.Argument(help="The exchange's name.")]


@app.list("exchange.list", COLUMNS, paged=True)
def list_(name: NamePart = None, vhost: InVhost = None) -> None:
    """Show exchanges, the predeclared ones included."""


@app.show("show", "exchange.show")
def show(name: Name, vhost: Vhost = "/") -> None:
    """Show one exchange."""


@app.change("declare", "exchange.declare", "exchange '{name}' is declared")
def declare(
    name: Name,
    type_: Annotated[
        str, typer.Option("--type", help="direct, fanout, topic, headers, or another one.")
    ] = "direct",
    transient: Transient = False,
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
) -> None:
    """Create an exchange; one that exists must have the same properties."""


@app.change("delete", "exchange.delete", "exchange '{name}' was deleted")
def delete(
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if nothing is bound to it.")
    ] = False,
    vhost: Vhost = "/",
) -> None:
    """Delete an exchange and its bindings."""
