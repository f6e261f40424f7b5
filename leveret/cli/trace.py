"""`leveret trace …`: the firehose, copies of every message of a virtual host."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, Json, ask

__all__ = ["app"]

app = Group("Copy every message that enters or leaves a virtual host to amq.rabbitmq.trace.")

Vhost = Annotated[str, typer.Option("--vhost", help="The virtual host.")]


@app.command("on")
def on(vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Start copying; `trace off` or a restart of the node ends it."""
    ask(data_dir, "vhost.trace_on", name=vhost)
    show_done(f"vhost '{vhost}' is traced", as_json=json)


@app.command("off")
def off(vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Stop copying."""
    ask(data_dir, "vhost.trace_off", name=vhost)
    show_done(f"vhost '{vhost}' is no longer traced", as_json=json)
