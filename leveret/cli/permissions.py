"""`leveret permission …` and `leveret topic-permission …`: what users may do in virtual hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.session import InVhost, OfUser, Vhost

__all__ = ["app", "topics"]

app = Group("Permissions of users in virtual hosts.")
topics = Group("Topic permissions: which routing keys a user may use.")

User = Annotated[str, typer.Argument(help="The user's name.")]
PATTERN = "Regular expression, searched in names; '' matches none."
Configure = Annotated[str, typer.Argument(help=f"May declare and delete. {PATTERN}")]
Write = Annotated[str, typer.Argument(help=f"May publish and bind. {PATTERN}")]
Read = Annotated[str, typer.Argument(help=f"May consume, get and purge. {PATTERN}")]
Exchange = Annotated[str, typer.Argument(help="The topic exchange's name.")]
KEYS = "Regular expression, searched in routing keys; {username} and {vhost} stand for names."
WriteKeys = Annotated[str, typer.Argument(help=f"May publish. {KEYS}")]
ReadKeys = Annotated[str, typer.Argument(help=f"May bind. {KEYS}")]


@app.change(
    "set",
    "permission.set",
    "the permissions of user '{user}' in vhost '{vhost}' were set",
    also=("add",),
)
def set_(user: User, configure: Configure, write: Write, read: Read, vhost: Vhost = "/") -> None:
    """Set a user's permissions in a virtual host, as patterns of names."""


@app.list("permission.list", ["vhost", "user", "configure", "write", "read"])
def list_(user: OfUser = None, vhost: InVhost = None) -> None:
    """Show permissions."""


@app.change(
    "clear",
    "permission.clear",
    "user '{user}' has no permissions in vhost '{vhost}' any more",
    also=("delete",),
)
def clear(user: User, vhost: Vhost = "/") -> None:
    """Remove a user's permissions in a virtual host."""


@topics.change(
    "set",
    "topic_permission.set",
    "the topic permissions of user '{user}' on '{exchange}' were set",
)
def set_topics(
    user: User, exchange: Exchange, write: WriteKeys, read: ReadKeys, vhost: Vhost = "/"
) -> None:
    """Restrict a user to some routing keys; without this, all are allowed."""


@topics.change(
    "clear",
    "topic_permission.clear",
    "the topic permissions of user '{user}' were cleared",
    also=("delete",),
)
def clear_topics(
    user: User,
    exchange: Annotated[str | None, typer.Argument(help="Only on this exchange.")] = None,
    vhost: Vhost = "/",
) -> None:
    """Allow a user all routing keys again."""


@topics.list("topic_permission.list", ["vhost", "user", "exchange", "write", "read"])
def list_topics(user: OfUser = None, vhost: InVhost = None) -> None:
    """Show topic permissions."""
