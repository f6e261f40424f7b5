"""`leveret binding …`: the bindings of a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done
from leveret.cli.session import InVhost, Vhost, ask, fail
from leveret.cli.values import Arguments, Sent, arguments_of

__all__ = ["app"]

app = Group("Bindings of a running node.")

COLUMNS = ["vhost", "source", "destination_type", "destination", "routing_key", "arguments"]


def _destination_type(to_exchange: bool) -> str:
    return "exchange" if to_exchange else "queue"


Source = Annotated[str, typer.Argument(help="The exchange that messages come from.")]
Destination = Annotated[str, typer.Argument(help="The queue, or the exchange, that they go to.")]
Key = Annotated[str, typer.Option("--routing-key", help="The routing key of the binding.")]
ToExchange = Annotated[
    bool,
    typer.Option("--to-exchange", help="The destination is an exchange, not a queue."),
    Sent(_destination_type, "destination_type"),
]


@app.list("binding.list", COLUMNS, paged=True)
def list_(
    source: Annotated[str | None, typer.Option("--source", help="Only from this exchange.")] = None,
    destination: Annotated[
        str | None, typer.Option("--destination", help="Only to this queue or exchange.")
    ] = None,
    vhost: InVhost = None,
) -> None:
    """Show bindings; those of the default exchange, whose name is empty, included."""


@app.change("declare", "binding.declare", "'{destination}' is bound to exchange '{source}'")
def declare(
    source: Source,
    destination: Destination,
    routing_key: Key = "",
    argument: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: Vhost = "/",
) -> None:
    """Bind a queue or an exchange to an exchange; nothing changes if the binding exists."""


@app.command("delete")
def delete(
    source: Source,
    destination: Destination,
    routing_key: Key = "",
    argument: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: Vhost = "/",
) -> None:
    """Delete the binding with exactly this key and these arguments."""
    if not ask(
        "binding.delete",
        vhost=vhost,
        source=source,
        destination=destination,
        destination_type=_destination_type(to_exchange),
        routing_key=routing_key,
        arguments=arguments_of(argument),
    ):
        fail(f"no such binding: '{destination}' is not bound to exchange '{source}' in this way")
    show_done(f"'{destination}' was unbound from exchange '{source}'")
