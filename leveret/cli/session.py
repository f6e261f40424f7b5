"""One administrative request, to the running node of a data directory or to its files."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from leveret.cli.completion import vhost_names
from leveret.errors import LeveretError, NodeRunningError
from leveret.mgmt_ui.control_client import ANSWER_SECONDS_MAX, CONTROL_SOCKET, request

__all__ = [
    "InVhost",
    "Invocation",
    "OfUser",
    "PasswordStdin",
    "Vhost",
    "answer_of",
    "as_json",
    "ask",
    "ask_if_there",
    "begin",
    "data_directory",
    "fail",
    "master_key_file",
    "patience",
    "read_json",
    "read_password",
    "reason_of",
]

DATA_DIR = Path("var")  # config.data_dir's; that module is slow to import for so little

# Operations that may take a node minutes before it answers.
LONG_OPERATIONS = {
    "definitions.import",
    "definitions.export",
    "definitions.rehearse",
    "rabbitmq_definitions.export",
    "encryption.rotate_master",
    "orphan.adopt",
    "orphan.list",
    "queue.delete",
    "queue.purge",
    "snapshot.take",
    "vhost.delete",
}
LONG_ANSWER_SECONDS_MAX = 900.0

Vhost = Annotated[
    str, typer.Option("--vhost", help="The virtual host's name.", autocompletion=vhost_names)
]
InVhost = Annotated[
    str | None,
    typer.Option("--vhost", help="Only of this virtual host.", autocompletion=vhost_names),
]
OfUser = Annotated[str | None, typer.Option("--user", help="Only of this user.")]
PasswordStdin = Annotated[
    bool,
    typer.Option(
        "--password-stdin", help="Read the password from standard input also on a terminal."
    ),
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """Values of the options that commands have in common."""

    data_dir: Path = DATA_DIR
    as_json: bool = False
    timeout: float | None = None
    key_file: Path | None = None  # with the master key, for what is done on a stopped node


_invocation: ContextVar[Invocation] = ContextVar(
    "invocation",
    default=Invocation(),  # noqa: B039  # it is frozen
)


def begin(invocation: Invocation) -> None:
    """Set the values of common options. Raises typer.BadParameter for an invalid timeout."""
    seconds = invocation.timeout
    if seconds is not None and not 0 < seconds < float("inf"):
        raise typer.BadParameter("it is a number of seconds above 0", param_hint="--timeout")
    _invocation.set(invocation)


def as_json() -> bool:
    """Whether the command prints JSON."""
    return _invocation.get().as_json


def data_directory() -> Path:
    """Return the data directory of the node that the command is about."""
    return _invocation.get().data_dir


def master_key_file() -> Path | None:
    """Return the file with the master key, if one was named."""
    return _invocation.get().key_file


def patience(usual: float) -> float:
    """Return the timeout in seconds for an answer: --timeout, or the command's default."""
    stated = _invocation.get().timeout
    return usual if stated is None else stated


def ask(operation: str, /, **parameters: object) -> Any:
    """Return the result of an operation; a refusal ends the command with status 1."""
    try:
        answer = answer_of(operation, **parameters)
    except LeveretError as error:
        fail(str(error))
    if not answer["ok"]:
        fail(reason_of(answer))
    return answer["result"]


def ask_if_there(operation: str, **parameters: object) -> bool:
    """Perform an operation as `ask` does; return False if its object does not exist."""
    try:
        answer = answer_of(operation, **parameters)
    except LeveretError as error:
        fail(str(error))
    if not answer["ok"] and answer["error"] != "not_found":
        fail(reason_of(answer))
    return bool(answer["ok"])


def reason_of(answer: dict[str, Any]) -> str:
    """Return the reason of a refusal as a sentence."""
    if answer["error"] == "not_running":
        return (
            f"no node is running on data directory {data_directory()}: `leveret serve` starts one"
        )
    from leveret.cli.wording import in_words  # imported only if needed

    return in_words(answer["explanation"])


def read_password(from_stdin: bool) -> str:
    """Return a password from a prompt or, without a terminal, the first line of standard input.

    It is never taken from an argument, which `ps` shows.
    """
    if from_stdin or not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            fail("there was no password on standard input: pipe it in, or use a terminal")
        return line.removesuffix("\n").removesuffix("\r")
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password


def read_json(text: str) -> Any:
    """Parse JSON that the user gave; an error ends the command."""
    from leveret.core.definitions.document import DefinitionsError, decode

    try:
        return decode(text)
    except DefinitionsError as error:
        fail(str(error))


def fail(explanation: str, status: int = 1) -> NoReturn:
    """End the command with a reason, on standard error, and its status."""
    for line in explanation.splitlines():
        if line:
            typer.echo(f"leveret: {line}", err=True)
    raise typer.Exit(status)


def answer_of(operation: str, /, **parameters: object) -> dict[str, Any]:
    """Return the answer, refusal or not. Raises LeveretError if there is none.

    A running node performs the operation; if none holds the files, it is performed on them.
    """
    from leveret.storage.lock import DirectoryLock  # `leveret --help` is instant

    data_dir = data_directory()
    if not data_dir.is_dir():
        fail(f"{data_dir} is not a data directory; `leveret serve` makes one")
    try:
        lock = DirectoryLock(data_dir)
    except NodeRunningError:
        usual = LONG_ANSWER_SECONDS_MAX if operation in LONG_OPERATIONS else ANSWER_SECONDS_MAX
        return request(
            data_dir / CONTROL_SOCKET, operation, parameters, seconds_max=patience(usual)
        )
    import asyncio

    from leveret.cli.stopped_node import perform_on_files

    with lock:
        try:
            return asyncio.run(perform_on_files(data_dir, operation, parameters, master_key_file()))
        except* LeveretError as group:
            raise group.exceptions[0] from None
