"""One administrative request, to the node that runs on a data directory or to its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from leveret.errors import LeveretError, NodeRunningError

__all__ = [
    "DATA_DIR",
    "DataDir",
    "InVhost",
    "Json",
    "OfUser",
    "PasswordStdin",
    "Vhost",
    "ask",
    "fail",
    "read_json",
    "read_password",
]

DATA_DIR = Path("var")  # config.data_dir's; that module is slow to import for so little

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="LEVERET_DATA_DIR", help="The node's data directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Vhost = Annotated[str, typer.Option("--vhost", help="The virtual host's name.")]
InVhost = Annotated[str | None, typer.Option("--vhost", help="Only in this vhost.")]
OfUser = Annotated[str | None, typer.Option("--user", help="Only this user's.")]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, a line.")
]


def ask(data_dir: Path, operation: str, **parameters: object) -> Any:
    """The result of an operation; a refusal ends the command with its reason and status 1."""
    try:
        answer = _answer(data_dir, operation, parameters)
    except LeveretError as error:
        fail(str(error))
    if not answer["ok"]:
        fail(answer["explanation"])
    return answer["result"]


def read_password(from_stdin: bool) -> str:
    """A password from standard input or a prompt, never from an argument that `ps` shows."""
    if from_stdin:
        return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not sys.stdin.isatty():
        fail("no terminal to ask for the password: use --password-stdin")
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password


def read_json(text: str) -> Any:
    """A JSON value that somebody typed, or a document; a mistake ends the command."""
    from leveret.core.definitions import DefinitionsError, decode

    try:
        return decode(text)
    except DefinitionsError as error:
        fail(str(error))


def fail(explanation: str) -> NoReturn:
    """End the command with a reason and status 1."""
    typer.echo(f"leveret: {explanation}", err=True)
    raise typer.Exit(1)


def _answer(data_dir: Path, operation: str, parameters: dict[str, object]) -> dict[str, Any]:
    """Ask the files if nobody holds them, else the node that does."""
    from leveret.storage.lock import DirectoryLock  # `leveret --help` is instant

    if not data_dir.is_dir():
        fail(f"{data_dir} is not a data directory; `leveret serve` makes one")
    try:
        lock = DirectoryLock(data_dir)
    except NodeRunningError:
        from leveret.mgmt_ui.control import request

        return request(data_dir / "control.sock", operation, parameters)
    import asyncio

    with lock:
        return asyncio.run(
            _perform_on_files(data_dir, {"operation": operation, "parameters": parameters})
        )


async def _perform_on_files(data_dir: Path, request: dict[str, object]) -> dict[str, Any]:
    import asyncio
    import secrets

    from leveret.core.model import Model
    from leveret.mgmt_ui.administered import Administered
    from leveret.mgmt_ui.operations import create_defaults, perform
    from leveret.storage.metadata import SqliteMetadataStore

    async with asyncio.TaskGroup() as group:
        store = await SqliteMetadataStore.open(data_dir / "leveret.db", group.create_task)
        try:
            model = Model(await store.load(), store, lambda: secrets.token_urlsafe(16))
            await create_defaults(model.administration)
            return await perform(Administered(model.administration, model.vhosts), request)
        finally:
            await store.close()
