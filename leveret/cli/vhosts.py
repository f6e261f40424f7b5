"""`leveret vhost …`: namespaces of exchanges, queues and permissions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leveret.cli.output import show_done, show_rows
from leveret.cli.session import DATA_DIR_DEFAULT, DataDir, Json, ask

__all__ = ["app"]

app = typer.Typer(help="Namespaces of exchanges, queues and permissions.", no_args_is_help=True)

DATA_DIR = Path(DATA_DIR_DEFAULT)
Name = Annotated[str, typer.Argument(help="The virtual host's name.")]
Description = Annotated[str, typer.Option("--description", help="What it is for.")]
Tags = Annotated[list[str], typer.Option("--tag", help="A tag for people; may be repeated.")]


@app.command("add")
def add(
    name: Name,
    description: Description = "",
    tag: Tags = [],  # noqa: B006  # read, never changed
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Add a virtual host, which nobody may enter until `permission set`."""
    ask(data_dir, "vhost.add", name=name, description=description, tags=tag)
    show_done(f"vhost '{name}' was added", as_json=json)


@app.command("set")
def set_(
    name: Name,
    description: Description = "",
    tag: Tags = [],  # noqa: B006  # read, never changed
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Replace a virtual host's description and tags."""
    ask(data_dir, "vhost.set", name=name, description=description, tags=tag)
    show_done(f"the description of vhost '{name}' was replaced", as_json=json)


@app.command("list")
def list_(data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Show all virtual hosts."""
    show_rows(ask(data_dir, "vhost.list"), ["name", "description", "tags"], as_json=json)


@app.command("delete")
def delete(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Delete a virtual host with all its exchanges, queues and messages."""
    ask(data_dir, "vhost.delete", name=name)
    show_done(f"vhost '{name}' was deleted", as_json=json)
