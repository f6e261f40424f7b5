"""`leveret cluster …`: the nodes of a cluster."""

from __future__ import annotations

import typer

from leveret.cli.group import Group
from leveret.cli.output import printable, show_rows
from leveret.cli.session import as_json, ask

__all__ = ["app"]

app = Group("Nodes of a cluster.")

COLUMNS = ["node", "role", "live", "in sync", "behind", "rack", "address", "release", "why"]


@app.command("status")
def status() -> None:
    """Show the nodes: who leads, who follows, how far behind, and why one is not in sync.

    Any node answers; how far others are behind is known to the one that leads.
    """
    rows = ask("cluster.nodes")
    if as_json():
        show_rows(rows, COLUMNS)
        return
    show_rows([_row(row) for row in rows], COLUMNS)
    if not any(row["role"] == "leader" and row["is_live"] for row in rows):
        typer.echo(printable("no node leads: clients wait"), err=True)


def _row(found: dict[str, object]) -> dict[str, object]:
    messages, ms = found["messages_behind"], found["ms_behind"]
    return {
        "node": f"{found['node']}{' (this)' if found['is_this'] else ''}",
        "role": found["role"],
        "live": "yes" if found["is_live"] else "no",
        "in sync": "yes" if found["is_in_sync"] else "no",
        "behind": "" if messages is None else f"{messages} messages, {ms} ms",
        "rack": found["rack"],
        "address": f"{found['host']}:{found['port']}" if found["host"] else "",
        "release": found["release"],
        "why": found["reason"],
    }
