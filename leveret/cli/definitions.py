"""`leveret definitions …`: export and import of definitions."""

from __future__ import annotations

import json as json_text
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.output import show_done, show_json, show_warnings
from leveret.cli.progress import progress
from leveret.cli.session import as_json, ask, fail, read_json
from leveret.cli.values import counted

__all__ = ["app"]

app = Group("Export and import all definitions, also for and from RabbitMQ.")

STREAM = "-"
File = Annotated[str, typer.Argument(help="A file; - is standard input or output.")]
Vhost = Annotated[str | None, typer.Option("--vhost", help="Only of, or into, this vhost.")]


@app.command("export")
def export(
    file: File = STREAM,
    vhost: Vhost = None,
    rabbitmq: Annotated[
        bool,
        typer.Option(
            "--for-rabbitmq",
            help="Leave out what RabbitMQ would refuse, and list it.",
        ),
    ] = False,
) -> None:
    """Write users, virtual hosts, permissions, policies, queues, exchanges, bindings and the rest.

    The file holds the hashes of passwords and is for its owner alone.
    """
    if rabbitmq:
        found = ask("rabbitmq_definitions.export", vhost=vhost)
        document = found["document"]
        show_warnings(found["left_out"])
    else:
        document = ask("definitions.export", vhost=vhost)
    text = json_text.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if file == STREAM:
        typer.echo(text, nl=False)
        return
    try:
        _write_private(Path(file), text)
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}")
    show_done(f"definitions were written to {file}")


@app.command("import")
def import_(
    file: File,
    vhost: Vhost = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be imported, and change nothing.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse a file if anything in it would be listed."),
    ] = False,
) -> None:
    """Import definitions from a file, all of them or none.

    It may come from `definitions export` or from RabbitMQ. Users, permissions, policies and
    parameters that exist are replaced. Queues and exchanges that exist stay as they are: those that
    differ from the file are listed, and so is what has no effect here, such as federation.
    """
    try:
        text = sys.stdin.read() if file == STREAM else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {error}")
    with progress("importing", shown=not as_json()):
        summary = ask(
            "definitions.rehearse" if dry_run else "definitions.import",
            document=read_json(text),
            vhost=vhost,
            strict=strict,
        )
    if as_json():
        show_json(summary)
        return
    counts = [counted(count, _noun(section)) for section, count in summary["imported"].items()]
    done = "would import" if dry_run else "imported"
    typer.echo(f"{done} {', '.join(counts) or 'nothing'}")
    show_warnings([*summary["warnings"], *summary["kept"]])
    show_warnings(
        f"{place} was skipped: one of its ends does not exist" for place in summary["left_out"]
    )
    show_warnings(f"{place} is not supported and ignored" for place in summary["ignored"])


def _noun(section: str) -> str:
    """Return the noun of a section: `topic permission`, or `policy` for policies."""
    one = (
        section.removesuffix("ies") + "y" if section.endswith("ies") else section.removesuffix("s")
    )
    return one.replace("_", " ")


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
