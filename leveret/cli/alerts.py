"""`leveret alert …`: alert rules, and the alerts that are firing."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import iso
from leveret.cli.session import InVhost, Vhost, ask, read_json
from leveret.cli.values import Sent, span

__all__ = ["app"]

app = Group("Alert rules, and firing alerts.")

Name = Annotated[str, typer.Argument(help="The rule's name.")]
FIRING = ["vhost", "name", "queue", "severity", "condition", "value", "threshold", "unit", "since"]


@app.change("set", "alert.set", "alert rule '{name}' in vhost '{vhost}' was set")
def set_(
    name: Name,
    rule: Annotated[
        str,
        typer.Argument(help='JSON, such as {"condition": "backlog", "above": 1000}.'),
        Sent(read_json),
    ],
    vhost: Vhost = "/",
) -> None:
    """Add or replace a rule; it applies within seconds."""


@app.change(
    "clear",
    "alert.clear",
    "alert rule '{name}' in vhost '{vhost}' was cleared",
    also=("delete",),
)
def clear(name: Name, vhost: Vhost = "/") -> None:
    """Delete a rule; its firing alerts are resolved."""


@app.list("alert.list", ["vhost", "name", "rule"], name="rules")
def rules(vhost: InVhost = None) -> None:
    """Show the rules; secrets are hidden."""


@app.command("list")
@with_options_of(Listing)
def list_(
    *,
    past: Annotated[
        bool,
        typer.Option("--past", help="Alerts fired or resolved since the node started."),
    ] = False,
    vhost: InVhost = None,
    **options: Any,
) -> None:
    """Show the firing alerts of a running node."""
    found = ask("alert.status", vhost=vhost)
    rows = found["past" if past else "firing"]
    columns = [*FIRING, "firing"] if past else list(FIRING)
    if any(row["group"] for row in rows):
        columns.insert(columns.index("queue") + 1, "group")
    show_list(whole(rows), columns, options, readable=_with_age)


def _with_age(row: dict[str, Any]) -> dict[str, Any]:
    seconds = max(int(time.time() - row["since"] / 1000), 0)
    return {**row, "since": f"{iso(row['since'])} ({span(seconds)} ago)"}
