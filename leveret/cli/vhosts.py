"""`leveret vhost …`: namespaces of exchanges, queues and permissions."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done
from leveret.cli.session import ask
from leveret.cli.values import Sent, listed

__all__ = ["app"]

app = Group("Namespaces of exchanges, queues and permissions.")

VHOST_COLUMNS = [
    "name",
    "description",
    "tags",
    "default_queue_type",
    "protected",
    "creates_queues",
    "limits",
]
Name = Annotated[str, typer.Argument(help="The virtual host's name.")]
Description = Annotated[str, typer.Option("--description", help="A description.")]
Tags = Annotated[
    list[str], typer.Option("--tag", help="A label; may be repeated."), Sent(listed, "tags")
]


QueueType = Annotated[
    str | None,
    typer.Option(
        "--default-queue-type", help="Type of queues that are declared without one, such as quorum."
    ),
]


@app.change("add", "vhost.add", "vhost '{name}' was added")
def add(
    name: Name,
    description: Description = "",
    tag: Tags = [],  # noqa: B006  # read, never changed
    default_queue_type: QueueType = None,
) -> None:
    """Add a virtual host; `permission set` gives users access."""


@app.command("set")
def set_(
    name: Name,
    description: Annotated[str | None, typer.Option("--description", help="A description.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="A label, in place of those it has; may be repeated."),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove its labels.")] = False,
    default_queue_type: QueueType = None,
) -> None:
    """Change properties of a virtual host; those that are not given stay."""
    if tag and no_tags:
        raise typer.BadParameter("either --tag or --no-tags")
    stated = {
        "description": description,
        "tags": [] if no_tags else tag or None,
        "default_queue_type": default_queue_type,
    }
    changed = [name.replace("_", " ") for name, value in stated.items() if value is not None]
    if not changed:
        raise typer.BadParameter("state what to replace: see --help")
    ask("vhost.set", name=name, **stated)
    show_done(f"vhost '{name}': replaced {' and '.join(changed)}")


@app.command("create-queues")
def create_queues(
    name: Name,
    on: Annotated[bool, typer.Option("--on/--off", help="Switch it on or off.")] = True,
) -> None:
    """Auto-create queues: publishing to the default exchange creates the queue named by the key.

    The queue gets the default queue type; the user must be allowed to configure it.
    """
    ask("vhost.create_queues", name=name, on=on)
    done = "creates queues for messages" if on else "creates no queues for messages"
    show_done(f"vhost '{name}' {done}")


@app.change("protect", "vhost.protect", "vhost '{name}' is protected from deletion", protected=True)
def protect(name: Name) -> None:
    """Protect a virtual host from deletion."""


@app.change("unprotect", "vhost.protect", "vhost '{name}' can be deleted", protected=False)
def unprotect(name: Name) -> None:
    """Allow a virtual host to be deleted again."""


@app.list("vhost.list", VHOST_COLUMNS)
def list_() -> None:
    """Show all virtual hosts."""


@app.change("delete", "vhost.delete", "vhost '{name}' was deleted")
def delete(name: Name) -> None:
    """Delete a virtual host with all its exchanges, queues and messages."""
