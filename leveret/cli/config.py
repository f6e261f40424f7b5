"""`leveret config …`: shows and checks the settings that a node would start with."""

from __future__ import annotations

from pathlib import Path  # read when the command is built
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.group import JSON, Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.session import as_json
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from leveret.config import LoadedConfiguration

__all__ = ["app"]

app = Group("Settings: what applies, where it comes from, and what is wrong.")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", envvar="LEVERET_CONFIG", help="TOML file with settings."),
]


@app.command("show", common=JSON)
@with_options_of(Listing)
def show(
    *,
    config: ConfigFile = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that something has set.")
    ] = False,
    **options: Any,
) -> None:
    """Show all settings of the file and the environment, each with its source.

    Secrets are not shown.
    """
    from leveret.config.reference import groups, setting_text

    loaded = _load(config)
    plain = loaded.configuration.model_dump(mode="json")  # which masks secrets
    rows: list[dict[str, Any]] = [
        {
            "setting": name,
            "value": plain[name]
            if as_json()
            else setting_text(getattr(loaded.configuration, name)),
            "source": loaded.source(name),
        }
        for _, fields in groups()
        for name, _ in fields
        if not changed or name in loaded.sources
    ]
    show_list(whole(rows), ["setting", "value", "source"], options)


@app.command("check", common=())
def check(config: ConfigFile = None) -> None:
    """Check the settings of the file and the environment without starting a node.

    Ends with status 1 where the node would not start with them.
    """
    from leveret.config.checks import unreadable_files

    loaded = _load(config)
    problems = list(unreadable_files(loaded))
    for problem in problems:
        typer.echo(f"leveret: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
    count = len(loaded.sources)
    typer.echo(f"the settings are valid: {count} set, the others have their defaults")


@app.command("sample", common=())
def sample() -> None:
    """Print a TOML file with all settings, their defaults and what they do."""
    from leveret.config.reference import sample_file

    typer.echo(sample_file(), nl=False)


def _load(file: Path | None) -> LoadedConfiguration:
    """Return the settings as `serve` would have them; errors end the command with status 1."""
    from leveret.config import load

    try:
        loaded = load(file)
    except LeveretError as error:
        for line in str(error).splitlines():
            typer.echo(f"leveret: {line}", err=True)
        raise typer.Exit(1) from None
    for notice in loaded.notices:
        typer.echo(f"leveret: {notice}", err=True)
    return loaded
