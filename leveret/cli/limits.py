"""`leveret limit …`: limits of virtual hosts and users."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done
from leveret.cli.session import ask

__all__ = ["app"]

app = Group("Limits of virtual hosts and users.")


class _Kind(StrEnum):
    VHOST = "vhost"
    USER = "user"


Kind = Annotated[_Kind, typer.Argument(help="What is limited.")]
Name = Annotated[str, typer.Argument(help="Its name.")]
LIMITS = (
    "max-connections; of a vhost max-queues, of a user max-channels; publish-rate, "
    "publish-burst, consume-rate, consume-burst, in messages (a second)"
)


@app.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value
def set_(
    kind: Kind,
    name: Name,
    limit: Annotated[str, typer.Argument(help=f"{LIMITS}.")],
    value: Annotated[int, typer.Argument(help="0 allows none, -1 any number.")],
) -> None:
    """Set a limit of a virtual host or a user; open connections stay."""
    ask("limits.set", kind=kind.value, name=name, limits={limit: value})
    show_done(f"{limit} of {kind.value} '{name}' was set to {value}")


@app.command("clear", also=("delete",))
def clear(
    kind: Kind,
    name: Name,
    limit: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
) -> None:
    """Remove one limit of a virtual host or a user, or all."""
    ask("limits.clear", kind=kind.value, name=name, limit=limit)
    show_done(f"{limit or 'every limit'} of {kind.value} '{name}' was lifted")


@app.list("limits.list", ["kind", "name", "limit", "value"])
def list_() -> None:
    """Show all limits."""
