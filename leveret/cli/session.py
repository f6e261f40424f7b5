"""One administrative request, to the node that runs on a data directory or to its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.errors import LeveretError, NodeRunningError

if TYPE_CHECKING:
    from leveret.ports import MetadataStore
    from leveret.ports.definitions import (
        BindingDefinition,
        Definitions,
        ExchangeDefinition,
        QueueDefinition,
    )

__all__ = ["DATA_DIR_DEFAULT", "DataDir", "Json", "PasswordStdin", "ask", "read_password"]

DATA_DIR_DEFAULT = "var"  # config.data_dir's; that module is slow to import for so little

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="LEVERET_DATA_DIR", help="The node's data directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, a line.")
]


def ask(data_dir: Path, operation: str, **parameters: object) -> Any:
    """The result of an operation; a refusal ends the command with its reason and status 1."""
    try:
        answer = _answer(data_dir, operation, parameters)
    except LeveretError as error:
        _fail(str(error))
    if not answer["ok"]:
        _fail(answer["explanation"])
    return answer["result"]


def read_password(from_stdin: bool) -> str:
    """A password from standard input or a prompt, never from an argument that `ps` shows."""
    if from_stdin:
        return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not sys.stdin.isatty():
        _fail("no terminal to ask for the password: use --password-stdin")
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _fail(explanation: str) -> Any:
    typer.echo(f"leveret: {explanation}", err=True)
    raise typer.Exit(1)


def _answer(data_dir: Path, operation: str, parameters: dict[str, object]) -> dict[str, Any]:
    """Ask the files if nobody holds them, else the node that does."""
    from leveret.storage.lock import DirectoryLock  # `leveret --help` is instant

    if not data_dir.is_dir():
        _fail(f"{data_dir} is not a data directory; `leveret serve` makes one")
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

    from leveret.core.access import AccessControl
    from leveret.core.administration import Administration
    from leveret.mgmt_ui.operations import create_defaults, perform
    from leveret.storage.metadata import SqliteMetadataStore

    async with asyncio.TaskGroup() as group:
        store = await SqliteMetadataStore.open(data_dir / "leveret.db", group.create_task)
        try:
            definitions = await store.load()
            administration = Administration(
                AccessControl(),
                store,
                on_vhost_added=lambda _: None,
                on_vhost_deleted=lambda name: _remove_contents(store, definitions, name),
            )
            administration.restore(definitions)
            await create_defaults(administration)
            return await perform(administration, request)
        finally:
            await store.close()


def _remove_contents(store: MetadataStore, definitions: Definitions, vhost: str) -> None:
    """What the broker does when it runs: a virtual host's resources go with it."""
    contents: list[ExchangeDefinition | QueueDefinition | BindingDefinition] = [
        *definitions.exchanges,
        *definitions.queues,
        *definitions.bindings,
    ]
    for definition in contents:
        if definition.vhost == vhost:
            store.remove(definition)
