"""`leveret topic-permission …`: topic permissions of users."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, OfUser, Vhost, ask

__all__ = ["app"]

app = Group("Topic permissions: which routing keys a user may use.")

User = Annotated[str, typer.Argument(help="The user's name.")]
Exchange = Annotated[str, typer.Argument(help="The topic exchange's name.")]
PATTERN = "Regular expression, searched in routing keys; {username} and {vhost} stand for names."
Write = Annotated[str, typer.Argument(help=f"May publish. {PATTERN}")]
Read = Annotated[str, typer.Argument(help=f"May bind. {PATTERN}")]


@app.command("set")
def set_(
    user: User,
    exchange: Exchange,
    write: Write,
    read: Read,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Restrict a user to some routing keys; without this, all are allowed."""
    ask(
        data_dir,
        "topic_permission.set",
        vhost=vhost,
        user=user,
        exchange=exchange,
        write=write,
        read=read,
    )
    show_done(f"the topic permissions of user '{user}' on '{exchange}' were set", as_json=json)


@app.command("clear")
@app.command("delete", hidden=True)
def clear(
    user: User,
    exchange: Annotated[str | None, typer.Argument(help="Only on this exchange.")] = None,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Allow a user all routing keys again."""
    ask(data_dir, "topic_permission.clear", user=user, vhost=vhost, exchange=exchange)
    show_done(f"the topic permissions of user '{user}' were cleared", as_json=json)


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
    """Show topic permissions."""
    rows = ask(data_dir, "topic_permission.list", user=user, vhost=vhost)
    show_list(whole(rows), ["vhost", "user", "exchange", "write", "read"], options, as_json=json)
