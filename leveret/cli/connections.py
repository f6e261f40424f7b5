"""`leveret connection …`, `channel …` and `consumer …`: the clients of a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.listing import all_rows, asked
from leveret.cli.output import show_done
from leveret.cli.session import InVhost, OfUser, ask, ask_if_there, fail

__all__ = ["app", "channels", "consumers"]

app = Group("Connections of clients to a running node.")
channels = Group("Channels of clients.")
consumers = Group("Consumers and their queues.")

COLUMNS = ["name", "client_name", "user", "vhost", "state", "channels", "ssl"]
CHANNEL_COLUMNS = [
    "name", "user", "vhost", "consumer_count", "messages_unacknowledged", "messages_unconfirmed",
    "prefetch_count", "confirm",
]  # fmt: skip
CONSUMER_COLUMNS = [
    "vhost", "queue", "consumer_tag", "channel", "ack_required", "prefetch_count",
    "messages_unacknowledged",
]  # fmt: skip
CLIENT_NAME = {"client_name": "client_properties.connection_name"}
CONSUMER_NAMES = {
    "vhost": "queue.vhost", "queue": "queue.name", "channel": "channel_details.name",
}  # fmt: skip

Name = Annotated[str, typer.Argument(help="The connection's name, `1.2.3.4:5 -> 6.7.8.9:5672`.")]


@app.list("connection.list", COLUMNS, paged=True, aliases=CLIENT_NAME)
def list_(user: OfUser = None, vhost: InVhost = None) -> None:
    """Show connections."""


@app.show("show", "connection.show")
def show(name: Name) -> None:
    """Show one connection."""


@app.command("close")
def close(
    name: Annotated[str | None, typer.Argument(help="The connection's name.")] = None,
    user: OfUser = None,
    vhost: InVhost = None,
    all_: Annotated[bool, typer.Option("--all", help="Close every connection.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason sent to the client.")
    ] = "closed on the command line",
) -> None:
    """Close a connection, or those of a user or a virtual host; most clients reconnect."""
    if (name is not None) + (user is not None or vhost is not None) + all_ != 1:
        fail("state either a connection's name, or --user and --vhost, or --all")
    if name is not None:
        ask("connection.close", name=name, reason=reason)
        count = 1
    else:
        count = _close_all(user, vhost, reason)
    closed = "connection was closed" if count == 1 else "connections were closed"
    show_done(f"{count} {closed}")


def _close_all(user: str | None, vhost: str | None, reason: str) -> int:
    """Close all current connections. Returns their number, without those already gone."""
    rows = all_rows(asked("connection.list", {"reverse": False}, user=user, vhost=vhost))
    return sum(ask_if_there("connection.close", name=row["name"], reason=reason) for row in rows)


@channels.list("channel.list", CHANNEL_COLUMNS, paged=True)
def list_channels(user: OfUser = None, vhost: InVhost = None) -> None:
    """Show channels with their unacknowledged and unconfirmed messages."""


@consumers.list("consumer.list", CONSUMER_COLUMNS, paged=True, aliases=CONSUMER_NAMES)
def list_consumers(
    queue: Annotated[str | None, typer.Option("--queue", help="Only of this queue.")] = None,
    vhost: InVhost = None,
) -> None:
    """Show consumers, by their queues."""
