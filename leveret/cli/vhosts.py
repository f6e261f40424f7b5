"""`leveret vhost …`: namespaces of exchanges, queues and permissions."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done, show_rows
from leveret.cli.session import DATA_DIR, DataDir, Json, ask

__all__ = ["app"]

app = Group("Namespaces of exchanges, queues and permissions.")

VHOST_COLUMNS = ["name", "description", "tags", "default_queue_type", "protected", "limits"]
Name = Annotated[str, typer.Argument(help="The virtual host's name.")]
Description = Annotated[str, typer.Option("--description", help="What it is for.")]
Tags = Annotated[list[str], typer.Option("--tag", help="A tag for people; may be repeated.")]


QueueType = Annotated[
    str | None,
    typer.Option(
        "--default-queue-type", help="Of queues whose declaration names none, such as quorum."
    ),
]


@app.command("add")
def add(
    name: Name,
    description: Description = "",
    tag: Tags = [],  # noqa: B006  # read, never changed
    default_queue_type: QueueType = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Add a virtual host, which nobody may enter until `permission set`."""
    ask(
        data_dir,
        "vhost.add",
        name=name,
        description=description,
        tags=tag,
        default_queue_type=default_queue_type,
    )
    show_done(f"vhost '{name}' was added", as_json=json)


@app.command("set")
def set_(
    name: Name,
    description: Description = "",
    tag: Tags = [],  # noqa: B006  # read, never changed
    default_queue_type: QueueType = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Replace a virtual host's description and tags, and its default queue type if given."""
    ask(
        data_dir,
        "vhost.set",
        name=name,
        description=description,
        tags=tag,
        default_queue_type=default_queue_type,
    )
    show_done(f"the description of vhost '{name}' was replaced", as_json=json)


@app.command("protect")
def protect(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Protect a virtual host from deletion."""
    ask(data_dir, "vhost.protect", name=name, protected=True)
    show_done(f"vhost '{name}' is protected from deletion", as_json=json)


@app.command("unprotect")
def unprotect(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Let a virtual host be deleted again."""
    ask(data_dir, "vhost.protect", name=name, protected=False)
    show_done(f"vhost '{name}' can be deleted", as_json=json)


@app.command("list")
def list_(data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show all virtual hosts."""
    show_rows(ask(data_dir, "vhost.list"), VHOST_COLUMNS, as_json=json)


@app.command("delete")
def delete(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Delete a virtual host with all its exchanges, queues and messages."""
    ask(data_dir, "vhost.delete", name=name)
    show_done(f"vhost '{name}' was deleted", as_json=json)
