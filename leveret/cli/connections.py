"""`leveret connection …`, `channel …` and `consumer …`: the clients of a running node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, asked, show_list
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, OfUser, ask, ask_if_there, fail
from leveret.cli.values import all_rows, show_one

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


@app.command("list")
@with_options_of(Listing)
def list_(
    *,
    user: OfUser = None,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show connections."""
    show_list(
        asked(data_dir, "connection.list", options, vhost=vhost, user=user),
        COLUMNS,
        options,
        as_json=json,
        aliases=CLIENT_NAME,
    )


@app.command("show")
def show(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show one connection."""
    show_one(ask(data_dir, "connection.show", name=name), as_json=json)


@app.command("close")
def close(
    name: Annotated[str | None, typer.Argument(help="The connection's name.")] = None,
    user: OfUser = None,
    vhost: InVhost = None,
    all_: Annotated[bool, typer.Option("--all", help="Close every connection.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason sent to the client.")
    ] = "closed on the command line",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Close a connection, or those of a user or a virtual host; most clients reconnect."""
    if (name is not None) + (user is not None or vhost is not None) + all_ != 1:
        fail("state either a connection's name, or --user and --vhost, or --all")
    if name is not None:
        ask(data_dir, "connection.close", name=name, reason=reason)
        count = 1
    else:
        count = _close_all(data_dir, user, vhost, reason)
    closed = "connection was closed" if count == 1 else "connections were closed"
    show_done(f"{count} {closed}", as_json=json)


def _close_all(data_dir: Any, user: str | None, vhost: str | None, reason: str) -> int:
    """Close all current connections. Returns their number, without those already gone."""
    stated = {"user": user, "vhost": vhost, "sort": None, "reverse": False}
    rows = all_rows(
        lambda count, after: ask(data_dir, "connection.list", limit=count, after=after, **stated)
    )
    return sum(
        ask_if_there(data_dir, "connection.close", name=row["name"], reason=reason) for row in rows
    )


@channels.command("list")
@with_options_of(Listing)
def list_channels(
    *,
    user: OfUser = None,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show channels with their unacknowledged and unconfirmed messages."""
    stated = {"vhost": vhost, "user": user}
    show_list(
        asked(data_dir, "channel.list", options, **stated),
        CHANNEL_COLUMNS,
        options,
        as_json=json,
    )


@consumers.command("list")
@with_options_of(Listing)
def list_consumers(
    *,
    queue: Annotated[str | None, typer.Option("--queue", help="Only of this queue.")] = None,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show consumers, by their queues."""
    stated = {"vhost": vhost, "queue": queue}
    show_list(
        asked(data_dir, "consumer.list", options, **stated),
        CONSUMER_COLUMNS,
        options,
        as_json=json,
        aliases=CONSUMER_NAMES,
    )
