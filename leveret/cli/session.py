"""One administrative request, to the running node of a data directory or to its files."""

from __future__ import annotations

import os
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from leveret.cli.completion import vhost_names
from leveret.errors import LeveretError, NodeRunningError
from leveret.mgmt_ui.control_client import ANSWER_SECONDS_MAX, CONTROL_SOCKET, request

if TYPE_CHECKING:
    from leveret.storage.key_administration import KeyAdministration

__all__ = [
    "DATA_DIR",
    "DataDir",
    "InVhost",
    "Json",
    "OfUser",
    "PasswordStdin",
    "Timeout",
    "Vhost",
    "answer_of",
    "ask",
    "ask_about_keys",
    "ask_if_there",
    "be_patient",
    "fail",
    "patience",
    "read_json",
    "read_password",
    "reason_of",
]

DATA_DIR = Path("var")  # config.data_dir's; that module is slow to import for so little

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait for each answer of the node.  [default: 60 in most commands]",
    ),
]
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

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="LEVERET_DATA_DIR", help="The node's data directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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


_timeout: ContextVar[float | None] = ContextVar("timeout", default=None)


def be_patient(seconds: float | None) -> None:
    """Set the timeout for each answer, if the user has given one."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise typer.BadParameter("it is a number of seconds above 0", param_hint="--timeout")
    _timeout.set(seconds)


def patience(usual: float) -> float:
    """Return the timeout in seconds for an answer: --timeout, or the command's default."""
    stated = _timeout.get()
    return usual if stated is None else stated


def ask(data_dir: Path, operation: str, /, **parameters: object) -> Any:
    """Return the result of an operation; a refusal ends the command with status 1."""
    return _result(data_dir, operation, parameters, None)


def ask_if_there(data_dir: Path, operation: str, **parameters: object) -> bool:
    """Perform an operation as `ask` does; return False if its object does not exist."""
    try:
        answer = answer_of(data_dir, operation, **parameters)
    except LeveretError as error:
        fail(str(error))
    if not answer["ok"] and answer["error"] != "not_found":
        fail(reason_of(answer, data_dir))
    return bool(answer["ok"])


def answer_of(data_dir: Path, operation: str, **parameters: object) -> dict[str, Any]:
    """Return the answer, refusal or not. Raises LeveretError if there is none."""
    return _answer(data_dir, operation, parameters, None)


def ask_about_keys(
    data_dir: Path, key_file: Path | None, operation: str, **parameters: object
) -> Any:
    """Return the result of an operation on keys; a stopped node's need the master key file."""
    return _result(data_dir, operation, parameters, key_file)


def _result(
    data_dir: Path, operation: str, parameters: dict[str, object], key_file: Path | None
) -> Any:
    try:
        answer = _answer(data_dir, operation, parameters, key_file)
    except LeveretError as error:
        fail(str(error))
    if not answer["ok"]:
        fail(reason_of(answer, data_dir))
    return answer["result"]


def reason_of(answer: dict[str, Any], data_dir: Path) -> str:
    """Return the reason of a refusal as a sentence."""
    if answer["error"] == "not_running":
        return f"no node is running on data directory {data_dir}: `leveret serve` starts one"
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


def _answer(
    data_dir: Path, operation: str, parameters: dict[str, object], key_file: Path | None
) -> dict[str, Any]:
    """Perform the request on the files if no node holds them, else by the running node."""
    from leveret.storage.lock import DirectoryLock  # `leveret --help` is instant

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

    with lock:
        try:
            return asyncio.run(
                _perform_on_files(
                    data_dir, {"operation": operation, "parameters": parameters}, key_file
                )
            )
        except* LeveretError as group:
            raise group.exceptions[0] from None


async def _perform_on_files(
    data_dir: Path, request: dict[str, Any], key_file: Path | None
) -> dict[str, Any]:
    import asyncio
    import secrets

    from leveret.core.definitions.model import Model
    from leveret.mgmt_ui.control import COMMAND_LINE
    from leveret.mgmt_ui.operations.access import create_defaults
    from leveret.mgmt_ui.operations.audit import Audit
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.mgmt_ui.operations.dispatcher import perform
    from leveret.storage.audit import SqliteAuditStore
    from leveret.storage.files import RealFileSystem
    from leveret.storage.lineage import open_definitions
    from leveret.storage.losses import LossLedger
    from leveret.storage.usage import SqliteUsageStore

    if request["operation"].startswith("loss."):  # even where the definitions are what is lost
        return await _perform_on_ledger(data_dir, request)
    of_keys = request["operation"].startswith("encryption.")
    encryption = _keys(data_dir, key_file) if of_keys else None
    async with asyncio.TaskGroup() as group:
        losses = LossLedger(RealFileSystem(), data_dir, _wall_ms, _complain)
        store = await open_definitions(data_dir, group.create_task, losses)
        usage = SqliteUsageStore(data_dir / "usage.db", losses)
        audited = SqliteAuditStore(data_dir / "audit.db", losses)
        try:
            is_first_start = await store.is_new()
            model = Model(await store.load(), store, lambda: secrets.token_urlsafe(16))
            if is_first_start:
                await create_defaults(model.administration)
            context = AdminContext(
                model.administration,
                model.vhosts,
                usage=usage,
                encryption=encryption,
                audit=Audit(audited, _wall_ms),
                losses=losses,
            )
            return await perform(context, request, COMMAND_LINE)
        finally:
            await audited.close()
            await usage.close()
            await store.close()


async def _perform_on_ledger(data_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Perform an operation on the ledger of losses, which needs no definitions."""
    from leveret.core.definitions.model import Model, NullStore
    from leveret.mgmt_ui.control import COMMAND_LINE
    from leveret.mgmt_ui.operations.audit import Audit
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.mgmt_ui.operations.dispatcher import perform
    from leveret.ports.definitions import Definitions
    from leveret.storage.audit import SqliteAuditStore
    from leveret.storage.files import RealFileSystem
    from leveret.storage.losses import LossLedger

    losses = LossLedger(RealFileSystem(), data_dir, _wall_ms, _complain)
    audited = SqliteAuditStore(data_dir / "audit.db", losses)
    try:
        context = AdminContext(
            Model(Definitions(), NullStore(), str).administration,
            {},
            audit=Audit(audited, _wall_ms),
            losses=losses,
        )
        return await perform(context, request, COMMAND_LINE)
    finally:
        await audited.close()


def _keys(data_dir: Path, key_file: Path | None) -> KeyAdministration:
    """Return the keys of a stopped node. Raises StorageError."""
    from leveret.storage.files import RealFileSystem
    from leveret.storage.key_administration import KeyAdministration
    from leveret.storage.keyring import Keyring
    from leveret.storage.master_key import read_master_key

    files = RealFileSystem()
    master = read_master_key(key_file, os.environ.get("LEVERET_ENCRYPTION_KEY", ""))
    keyring = Keyring(files, data_dir, master)
    return KeyAdministration(keyring, files, data_dir, _wall_ms)


def _complain(text: str) -> None:
    typer.echo(f"leveret: {text}", err=True)


def _wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000
