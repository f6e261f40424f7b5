"""The command `leveret`: its groups and single commands.

A command's module is imported when the command is used, so that the others cost no time.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from leveret import __version__
from leveret.cli.group import CommandGroup, Group

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

# In the order of `leveret --help`: where each command is, MODULE:NAME; `app` is a group's name.
COMMANDS = {
    "serve": "serve:serve",
    "config": "config:app",
    "queue": "queues:app",
    "message": "messages:app",
    "exchange": "exchanges:app",
    "binding": "bindings:app",
    "connection": "connections:app",
    "channel": "connections:channels",
    "consumer": "connections:consumers",
    "user": "users:app",
    "permission": "permissions:app",
    "topic-permission": "permissions:topics",
    "vhost": "vhosts:app",
    "limit": "limits:app",
    "hash-password": "users:hash_password",
    "policy": "policies:policies",
    "operator-policy": "policies:operator_policies",
    "parameter": "parameters:app",
    "global-parameter": "parameters:global_app",
    "definitions": "definitions:app",
    "node": "node:app",
    "cluster": "cluster:app",
    "health": "node:health",
    "alarms": "node:alarms",
    "top": "top:top",
    "doctor": "doctor:doctor",
    "loss": "losses:app",
    "dump": "dump:dump",
    "trace": "trace:app",
    "usage": "usage:usage",
    "audit": "audit:audit",
    "alert": "alerts:app",
    "dlq": "dlq:app",
    "retry": "schedule:retries",
    "schedule": "schedule:app",
    "dedup": "dedup:app",
    "producer": "dedup:producers",
    "group": "consumer_groups:app",
    "topic": "topics:app",
    "prepared": "prepared:app",
    "batch": "batches:app",
    "lease": "leases:app",
    "encryption": "encryption:app",
    "backup": "backup:app",
    "restore": "backup:restore",
    "adopt": "adopt:adopt",
    "certs": "certs:certs",
    "perf": "perf:perf",
    "spark": "spark:app",
}


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each imported when it is first looked up."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = _imported(name, COMMANDS[name])
        return self._known[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Root(CommandGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": None})
        self.commands = _Commands()

    def list_commands(self, _: Any) -> list[str]:
        """Return the names only, without importing the commands, for shell completion."""
        return list(COMMANDS)


def _imported(name: str, place: str) -> Any:
    """Return the command `name` as Typer makes it from a group or a function."""
    module, _, attribute = place.partition(":")
    found: typer.Typer | Callable[..., Any] = getattr(
        import_module(f"leveret.cli.{module}"), attribute
    )
    holder = Group(add_completion=False)
    holder.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, common=())(found)
    made = typer.main.get_command(holder)
    assert isinstance(made, TyperGroup), "it has a callback"
    return made.commands[name]


app = Group("An AMQP 0-9-1 broker whose queues are logs.", name="leveret", cls=_Root)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leveret {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # the callback acts
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
