"""`leveret vhost …`: namespaces of exchanges, queues and permissions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done
from leveret.cli.session import DATA_DIR, DataDir, Json, ask

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
Tags = Annotated[list[str], typer.Option("--tag", help="A label; may be repeated.")]


QueueType = Annotated[
    str | None,
    typer.Option(
        "--default-queue-type", help="Type of queues that are declared without one, such as quorum."
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
    """Add a virtual host; `permission set` gives users access."""
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
    description: Annotated[str | None, typer.Option("--description", help="A description.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="A label, in place of those it has; may be repeated."),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove its labels.")] = False,
    default_queue_type: QueueType = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
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
    ask(data_dir, "vhost.set", name=name, **stated)
    show_done(f"vhost '{name}': replaced {' and '.join(changed)}", as_json=json)


@app.command("create-queues")
def create_queues(
    name: Name,
    on: Annotated[bool, typer.Option("--on/--off", help="Switch it on or off.")] = True,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Auto-create queues: publishing to the default exchange creates the queue named by the key.

    The queue gets the default queue type; the user must be allowed to configure it.
    """
    ask(data_dir, "vhost.create_queues", name=name, on=on)
    done = "creates queues for messages" if on else "creates no queues for messages"
    show_done(f"vhost '{name}' {done}", as_json=json)


@app.command("protect")
def protect(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Protect a virtual host from deletion."""
    ask(data_dir, "vhost.protect", name=name, protected=True)
    show_done(f"vhost '{name}' is protected from deletion", as_json=json)


@app.command("unprotect")
def unprotect(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Allow a virtual host to be deleted again."""
    ask(data_dir, "vhost.protect", name=name, protected=False)
    show_done(f"vhost '{name}' can be deleted", as_json=json)


@app.command("list")
@with_options_of(Listing)
def list_(*, data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any) -> None:
    """Show all virtual hosts."""
    show_list(whole(ask(data_dir, "vhost.list")), VHOST_COLUMNS, options, as_json=json)


@app.command("delete")
def delete(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Delete a virtual host with all its exchanges, queues and messages."""
    ask(data_dir, "vhost.delete", name=name)
    show_done(f"vhost '{name}' was deleted", as_json=json)
