"""`leveret alert …`: alert rules, and the alerts that are firing."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import iso, show_done
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, Vhost, ask, read_json
from leveret.cli.values import span

__all__ = ["app"]

app = Group("Alert rules, and firing alerts.")

Name = Annotated[str, typer.Argument(help="The rule's name.")]
FIRING = ["vhost", "name", "queue", "severity", "condition", "value", "threshold", "unit", "since"]


@app.command("set")
def set_(
    name: Name,
    rule: Annotated[
        str, typer.Argument(help='JSON, such as {"condition": "backlog", "above": 1000}.')
    ],
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Add or replace a rule; it applies within seconds."""
    ask(data_dir, "alert.set", vhost=vhost, name=name, rule=read_json(rule))
    show_done(f"alert rule '{name}' in vhost '{vhost}' was set", as_json=json)


@app.command("clear")
@app.command("delete", hidden=True)
def clear(name: Name, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Delete a rule; its firing alerts are resolved."""
    ask(data_dir, "alert.clear", vhost=vhost, name=name)
    show_done(f"alert rule '{name}' in vhost '{vhost}' was cleared", as_json=json)


@app.command("rules")
@with_options_of(Listing)
def rules(
    *, vhost: InVhost = None, data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any
) -> None:
    """Show the rules; secrets are hidden."""
    rows = ask(data_dir, "alert.list", vhost=vhost)
    show_list(whole(rows), ["vhost", "name", "rule"], options, as_json=json)


@app.command("list")
@with_options_of(Listing)
def list_(
    *,
    past: Annotated[
        bool,
        typer.Option("--past", help="Alerts fired or resolved since the node started."),
    ] = False,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show the firing alerts of a running node."""
    found = ask(data_dir, "alert.status", vhost=vhost)
    rows = found["past" if past else "firing"]
    columns = [*FIRING, "firing"] if past else FIRING
    show_list(whole(rows), columns, options, as_json=json, readable=_with_age)


def _with_age(row: dict[str, Any]) -> dict[str, Any]:
    seconds = max(int(time.time() - row["since"] / 1000), 0)
    return {**row, "since": f"{iso(row['since'])} ({span(seconds)} ago)"}
