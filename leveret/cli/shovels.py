"""`leveret shovel …`: shovels, as rabbitmqctl's shovel_status, restart_shovel, delete_shovel."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.session import InVhost, Vhost, ask, read_json
from leveret.cli.values import Sent

__all__ = ["app"]

app = Group("Shovels, which move messages between queues and brokers.")

Name = Annotated[str, typer.Argument(help="The shovel's name.")]
COLUMNS = ["vhost", "name", "node", "state", "source", "destination", "forwarded", "reason"]


@app.change(
    "set",
    "parameter.set",
    "shovel '{name}' in vhost '{vhost}' was set",
    component="shovel",
)
def set_(
    name: Name,
    value: Annotated[
        str,
        typer.Argument(help='JSON, such as {"src-uri": "amqp://", "src-queue": "a", …}.'),
        Sent(read_json),
    ],
    vhost: Vhost = "/",
) -> None:
    """Add or replace a shovel; it starts at once."""


@app.command("list")
@with_options_of(Listing)
def list_(*, vhost: InVhost = None, **options: Any) -> None:
    """Show the shovels of a running node's cluster, and their states."""
    rows = [row for row in ask("shovel.status") if vhost in {None, row["vhost"]}]
    show_list(whole([_with_ends(row) for row in rows]), COLUMNS, options)


def _with_ends(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its source and destination in one column each."""
    ends = {}
    for column, end in (("source", "src"), ("destination", "dest")):
        place = row.get(f"{end}_queue") or row.get(f"{end}_exchange") or ""
        ends[column] = f"{row.get(f'{end}_uri', '')} {place}".strip()
    return {**row, **ends, "reason": row.get("reason", "")}


@app.change("restart", "shovel.restart", "shovel '{name}' in vhost '{vhost}' was restarted")
def restart(name: Name, vhost: Vhost = "/") -> None:
    """Have a shovel connect anew."""


@app.change("delete", "shovel.delete", "shovel '{name}' in vhost '{vhost}' was deleted")
def delete(name: Name, vhost: Vhost = "/") -> None:
    """Delete a shovel; what is in flight stays in its source."""
