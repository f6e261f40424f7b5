"""`leveret binding …`: the bindings of a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, asked, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, Vhost, ask, fail
from leveret.cli.values import Arguments, arguments_of

__all__ = ["app"]

app = Group("Bindings of a running node.")

COLUMNS = ["vhost", "source", "destination_type", "destination", "routing_key", "arguments"]

Source = Annotated[str, typer.Argument(help="The exchange that messages come from.")]
Destination = Annotated[str, typer.Argument(help="The queue, or the exchange, that they go to.")]
Key = Annotated[str, typer.Option("--routing-key", help="The routing key of the binding.")]
ToExchange = Annotated[
    bool, typer.Option("--to-exchange", help="The destination is an exchange, not a queue.")
]


@app.command("list")
@with_options_of(Listing)
def list_(
    *,
    source: Annotated[str | None, typer.Option("--source", help="Only from this exchange.")] = None,
    destination: Annotated[
        str | None, typer.Option("--destination", help="Only to this queue or exchange.")
    ] = None,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show bindings; those of the default exchange, whose name is empty, included."""
    stated = {"vhost": vhost, "source": source, "destination": destination}
    show_list(
        asked(data_dir, "binding.list", options, **stated),
        COLUMNS,
        options,
        as_json=json,
    )


@app.command("declare")
def declare(
    source: Source,
    destination: Destination,
    routing_key: Key = "",
    argument: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Bind a queue or an exchange to an exchange; nothing changes if the binding exists."""
    binding = _binding(source, destination, routing_key, argument, to_exchange=to_exchange)
    ask(data_dir, "binding.declare", vhost=vhost, **binding)
    show_done(f"'{destination}' is bound to exchange '{source}'", as_json=json)


@app.command("delete")
def delete(
    source: Source,
    destination: Destination,
    routing_key: Key = "",
    argument: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete the binding with exactly this key and these arguments."""
    binding = _binding(source, destination, routing_key, argument, to_exchange=to_exchange)
    if not ask(data_dir, "binding.delete", vhost=vhost, **binding):
        fail(f"no such binding: '{destination}' is not bound to exchange '{source}' in this way")
    show_done(f"'{destination}' was unbound from exchange '{source}'", as_json=json)


def _binding(
    source: str,
    destination: str,
    routing_key: str,
    argument: list[str] | None,
    *,
    to_exchange: bool,
) -> dict[str, object]:
    return {
        "source": source,
        "destination": destination,
        "destination_type": "exchange" if to_exchange else "queue",
        "routing_key": routing_key,
        "arguments": arguments_of(argument),
    }
