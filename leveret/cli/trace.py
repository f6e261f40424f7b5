"""`leveret trace …`: the firehose, copies of every message of a virtual host."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.values import Sent

__all__ = ["app"]

app = Group("Copy every message that enters or leaves a virtual host to amq.rabbitmq.trace.")

Vhost = Annotated[str, typer.Option("--vhost", help="The virtual host."), Sent(str, "name")]


@app.change("on", "vhost.trace_on", "vhost '{vhost}' is traced")
def on(vhost: Vhost = "/") -> None:
    """Start copying; `trace off` or a restart of the node ends it."""


@app.change("off", "vhost.trace_off", "vhost '{vhost}' is no longer traced")
def off(vhost: Vhost = "/") -> None:
    """Stop copying."""
