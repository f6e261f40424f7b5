"""`leveret permission …`: permissions of users in virtual hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, OfUser, Vhost, ask

__all__ = ["app"]

app = Group("Permissions of users in virtual hosts.")

User = Annotated[str, typer.Argument(help="The user's name.")]
PATTERN = "Regular expression, searched in names; '' matches none."
Configure = Annotated[str, typer.Argument(help=f"May declare and delete. {PATTERN}")]
Write = Annotated[str, typer.Argument(help=f"May publish and bind. {PATTERN}")]
Read = Annotated[str, typer.Argument(help=f"May consume, get and purge. {PATTERN}")]


@app.command("set")
@app.command("add", hidden=True)
def set_(
    user: User,
    configure: Configure,
    write: Write,
    read: Read,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Set a user's permissions in a virtual host, as patterns of names."""
    ask(
        data_dir,
        "permission.set",
        vhost=vhost,
        user=user,
        configure=configure,
        write=write,
        read=read,
    )
    show_done(f"the permissions of user '{user}' in vhost '{vhost}' were set", as_json=json)


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
    """Show permissions."""
    rows = ask(data_dir, "permission.list", user=user, vhost=vhost)
    show_list(whole(rows), ["vhost", "user", "configure", "write", "read"], options, as_json=json)


@app.command("clear")
@app.command("delete", hidden=True)
def clear(user: User, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Remove a user's permissions in a virtual host."""
    ask(data_dir, "permission.clear", user=user, vhost=vhost)
    show_done(f"user '{user}' has no permissions in vhost '{vhost}' any more", as_json=json)
