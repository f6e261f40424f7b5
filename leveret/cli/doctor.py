"""`leveret doctor`: health checks of a node or of its files."""

from __future__ import annotations

import json as json_text
import os
import resource
import shutil
import socket
import stat
import time
from pathlib import Path  # read when the command is built
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli.group import with_keys
from leveret.cli.output import printable
from leveret.cli.progress import progress
from leveret.cli.session import as_json, data_directory, fail, master_key_file, patience, reason_of
from leveret.errors import LeveretError, NodeRunningError, StorageError
from leveret.mgmt_ui.control_client import CONTROL_SOCKET, request
from leveret.ports.check_results import CheckResult, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from leveret.config import Configuration
    from leveret.ports.definitions import Definitions

__all__ = ["doctor"]

WARNINGS_STATUS = 1
ERRORS_STATUS = 2
RECORDS = ("usage.db", "audit.db")
OTHERS = 0o077  # what the owner's group and all others may do
OPEN_FILES_MIN = 4096  # for connections and segments of even a small node
CLOCK_SECONDS_MAX = 60  # by which a file may be newer than now
EARLIEST_SECONDS = 1_735_689_600  # 2025: a clock before that was never set
SILENT_SECONDS = 30.0  # after which a node hangs: what it is asked takes a second
NEAR_DISK = 1.25  # times the limit: time to do something
IN_LOG = (
    ", and whose definitions are in its cluster's log, so that logs were not compared with queues"
)


@with_keys
def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file to its end, not samples.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="The TOML file that the node is started with.")
    ] = None,
) -> None:
    """Look for everything that is wrong with a running node, or with a stopped one's directory.

    Changes nothing. Ends with status 0 where nothing is found, 1 with warnings, 2 with errors.
    """
    data_dir, key_file = data_directory(), master_key_file()
    if not data_dir.is_dir():
        fail(f"{data_dir} is not a data directory; `leveret serve` makes one")
    try:
        configuration = _configuration(config, data_dir)
        found, subject = _examine(data_dir, configuration, key_file, deep=deep)
    except LeveretError as error:
        fail(str(error))
    found.sort(key=lambda result: result.severity is not Severity.ERROR)
    if as_json():
        rows = [result.as_json() for result in found]
        text = json_text.dumps(rows, ensure_ascii=False)
        typer.echo(text.encode(errors="backslashreplace").decode())  # names of files are bytes
    else:
        _show(found, subject)
    if found:
        worst = found[0].severity
        raise typer.Exit(ERRORS_STATUS if worst is Severity.ERROR else WARNINGS_STATUS)


def _configuration(file: Path | None, data_dir: Path) -> Configuration:
    """Return the configuration that the node would start with. Raises ConfigurationError."""
    from leveret.config import load_configuration  # `leveret --help` is instant

    return load_configuration(file, {"data_dir": data_dir})


def _examine(
    data_dir: Path, configuration: Configuration, key_file: Path | None, *, deep: bool
) -> tuple[list[CheckResult], str]:
    """Return the findings, and a description of what was checked. Raises StorageError."""
    from leveret.storage.health_checks import (
        check_cluster_file,
        check_set_aside,
        has_definitions_in_log,
        readable,
    )
    from leveret.storage.lock import DirectoryLock

    found = [
        result
        for check in (_check_permissions, check_set_aside, check_cluster_file, _check_clock)
        for result in readable(data_dir, check(data_dir))
    ]
    try:
        lock = DirectoryLock(data_dir, looking=True)
    except NodeRunningError as running:
        found += _check_running(data_dir, running)
        if deep:
            logs = _check_logs(data_dir, key_file, configuration, deep=True, last=False)
            found += readable(data_dir, logs)
        return found, f"the node on {data_dir}"
    except StorageError as error:
        found.append(_unlockable(data_dir, str(error)))
        return found, f"{data_dir}"
    with lock:
        if not _is_writable(data_dir):
            found.append(_unlockable(data_dir, "its lock cannot be written to"))
        logs = _check_logs(data_dir, key_file, configuration, deep=deep, last=True)
        found += readable(data_dir, logs)
        found += readable(data_dir, _check_machine(data_dir, configuration))
    subject = f"{data_dir}, whose node is stopped"
    return found, subject + IN_LOG if has_definitions_in_log(data_dir) else subject


def _unlockable(data_dir: Path, what: str) -> CheckResult:
    remedy = f"give its user the right: `chmod u+rwX {quote(str(data_dir))}`"
    return _error("directory.lock", data_dir, what, "no node can start here", remedy)


def _is_writable(data_dir: Path) -> bool:
    """Whether a node could write its lock."""
    lock = data_dir / "lock"
    if lock.exists():
        return lock.is_file() and os.access(lock, os.R_OK | os.W_OK)
    return not lock.is_symlink() and os.access(data_dir, os.W_OK | os.X_OK)


# -- a running node


def _check_running(data_dir: Path, running: NodeRunningError) -> Iterator[CheckResult]:
    try:
        answer = request(
            data_dir / CONTROL_SOCKET,
            "node.diagnose",
            {},
            seconds_max=patience(SILENT_SECONDS),
        )
    except StorageError as error:
        yield _error(
            "node.silent",
            data_dir,
            f"{running}, which does not answer: {error}",
            "it is starting or stopping, it hangs, or another program holds the lock",
            "look at its log; if it hangs, send it SIGTERM, and SIGKILL if it does not end",
        )
        return
    if not answer["ok"]:
        fail(reason_of(answer))
    for row in answer["result"]:
        yield CheckResult(**{**row, "severity": Severity(row["severity"])})


# -- files


def _check_logs(
    data_dir: Path,
    key_file: Path | None,
    configuration: Configuration,
    *,
    deep: bool,
    last: bool,
) -> Iterator[CheckResult]:
    """Check definitions, state, keys and logs; without `last` only files that no node writes to."""
    from leveret.mgmt_ui.operations.health_checks import (
        check_certificates,
        check_losses,
        check_passwords,
    )
    from leveret.storage.files import ReadOnlyFiles
    from leveret.storage.health_checks import (
        LogCheck,
        check_definitions_age,
        check_records,
        check_records_age,
        check_state,
    )
    from leveret.storage.losses import read_losses
    from leveret.storage.state import MemoryStateStore

    database = data_dir / "leveret.db"
    found, definitions = _check_definitions(data_dir, database, deep=deep)
    yield from found
    state = None
    for name in RECORDS:
        yield from check_records(data_dir / name, deep=deep)
    if last:
        yield from check_losses(read_losses(ReadOnlyFiles(), data_dir))
        found, entries = check_state(data_dir / "state.lmdb", deep=deep)
        yield from found
        state = MemoryStateStore()
        state.write(list(entries.items()), durable=True)
        yield from check_definitions_age(database, state)
        if deep and not found:
            from leveret.cli.cache_checks import check_caches

            yield from check_caches(data_dir, definitions, entries)
        for name in RECORDS:
            yield from check_records_age(data_dir / name, state)
        yield from check_certificates(configuration, time.time_ns() // 1_000_000)
        yield from check_passwords(definitions.users, configuration)
    found, key_ids = _check_keys(data_dir, key_file, needed=last)
    yield from found
    with progress("reading logs") as bar:
        check = LogCheck(
            ReadOnlyFiles(),
            data_dir,
            definitions,
            key_ids,
            deep=deep,
            last=last,
            state=state,
            advance=bar.advance,
        )
        bar.total(check.total_bytes)
        yield from check.run()


def _check_definitions(
    data_dir: Path, database: Path, *, deep: bool
) -> tuple[Iterable[CheckResult], Definitions]:
    """Return the findings about the definitions, and these; none where they cannot be read."""
    from leveret.ports.definitions import Definitions
    from leveret.storage.health_checks import check_database
    from leveret.storage.lineage import older_data

    traces = older_data(data_dir)
    if database.exists() and (database.stat().st_size or not database.is_file()):
        return check_database(database, deep=deep)
    if not traces:
        return [], Definitions()
    what = f"is {'empty' if database.exists() else 'missing'}, but there is {', '.join(traces)}"
    why = "no node starts here: its queues and users are unknown"
    remedy = "restore it from a backup; without one, `leveret serve --accept-loss definitions`"
    return [_error("definitions.missing", database, what, why, remedy)], Definitions()


def _check_keys(
    data_dir: Path, key_file: Path | None, *, needed: bool
) -> tuple[list[CheckResult], Collection[int]]:
    """Return findings about the keys of encrypted virtual hosts, and the ids of the keys."""
    from leveret.storage.files import ReadOnlyFiles
    from leveret.storage.keyring import FILE_NAME, Keyring
    from leveret.storage.master_key import read_master_key

    path = data_dir / FILE_NAME
    why = "a node does not start without the keys of its encrypted virtual hosts"
    try:
        keys = Keyring(ReadOnlyFiles(), data_dir, None)
        key_ids = {key.id for key in keys.keys}
    except StorageError as error:
        remedy = f"restore {path} from a backup"
        return [_error("keys.unreadable", path, str(error), why, remedy)], ()
    try:
        if needed:  # a running node has them
            master = read_master_key(key_file, os.environ.get("LEVERET_ENCRYPTION_KEY", ""))
            Keyring(ReadOnlyFiles(), data_dir, master).require_master()
    except StorageError as error:
        remedy = "name the master key's file: `leveret doctor --key-file FILE`"
        return [_error("keys.master", path, str(error), why, remedy)], key_ids
    return [], key_ids


def _check_permissions(data_dir: Path) -> Iterator[CheckResult]:
    """Report files with messages and password hashes that others may open, or that others own."""
    for path in (data_dir, *(data_dir / name for name in ("leveret.db", "keyring.json"))):
        if not path.exists():
            continue
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        if mode & OTHERS and (path != data_dir or mode & 0o007):
            yield CheckResult(
                "directory.mode",
                Severity.WARNING,
                str(path),
                f"has mode {mode:04o}: others than its owner may open it",
                "messages, password hashes and wrapped keys lie there",
                f"run `chmod {'700' if path.is_dir() else '600'} {quote(str(path))}`",
            )
        if os.geteuid() and status.st_uid != os.geteuid():
            what = f"belongs to user {status.st_uid}, not to you ({os.geteuid()})"
            why = "the node must own its files, and so must the user who runs this command"
            remedy = "run this as the node's user, or give it the directory (`chown -R`)"
            yield CheckResult("directory.owner", Severity.WARNING, str(path), what, why, remedy)


# -- the machine


def _check_machine(data_dir: Path, configuration: Configuration) -> Iterator[CheckResult]:
    free, least = shutil.disk_usage(data_dir).free, configuration.disk_free_bytes_min
    if free < least * NEAR_DISK:
        severity = Severity.ERROR if free < least else Severity.WARNING
        what = f"{free:,} bytes of its file system are free, {least:,} must be"
        why = "publishers are blocked below that"
        remedy = "free space, or lower disk_free_bytes_min"
        yield CheckResult("disk.space", severity, str(data_dir), what, why, remedy)
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max < OPEN_FILES_MIN:
        what = f"may have {files_max} files open"
        why = "each connection and each segment that is read is one"
        remedy = "raise the limit: `ulimit -n 65536`, LimitNOFILE=65536 in the unit"
        yield CheckResult("files.limit", Severity.WARNING, "this user", what, why, remedy)
    for host, port in _addresses(configuration):
        yield from _check_port(host, port)


def _addresses(configuration: Configuration) -> Iterable[tuple[str, int]]:
    """Return the addresses on which the node will listen, where they are configured."""
    found = [
        (configuration.http_host, configuration.http_port),
        (configuration.https_host or configuration.host, configuration.https_port),
        (configuration.prometheus_host, configuration.prometheus_port),
    ]
    if configuration.plain_listener:
        found.append((configuration.host, configuration.port))
    if configuration.tls_certificate_file is not None:
        found.append((configuration.host, configuration.tls_port))
    return [each for each in found if each[1] > 0]


def _check_port(host: str, port: int) -> Iterator[CheckResult]:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address[4])
    except OSError as error:
        what = f"cannot be listened on: {error.strerror}"
        remedy = f"see who has it with `ss -ltnp 'sport = :{port}'`, or choose another port"
        yield CheckResult(
            "port.taken", Severity.ERROR, f"{host}:{port}", what, "the node cannot start", remedy
        )


def _check_clock(data_dir: Path) -> Iterator[CheckResult]:
    """Report a clock that is earlier than the files."""
    now = time.time()
    # Of a link itself: it may lead nowhere.
    written = max((path.lstat().st_mtime for path in data_dir.iterdir()), default=0.0)
    why = "delayed messages, time-to-live and retention go by it"
    remedy = "set the clock: `timedatectl set-ntp true`"
    if now < EARLIEST_SECONDS:
        what = "is not set"
    elif written > now + CLOCK_SECONDS_MAX:
        what = f"is {written - now:,.0f} seconds behind a file in {data_dir}"
    else:
        return
    yield CheckResult("clock", Severity.ERROR, "this machine's clock", what, why, remedy)


# -- showing


def _show(found: list[CheckResult], subject: str) -> None:
    for result in found:
        typer.echo(f"{result.severity.upper()} {result.check}: {printable(result.subject)}")
        for line in (result.what, f"Why it matters: {result.why}", f"To do: {result.remedy}"):
            typer.echo(f"  {printable(line)}")
    errors = sum(result.severity is Severity.ERROR for result in found)
    counts = f"{_counted(errors, 'error')}, {_counted(len(found) - errors, 'warning')}"
    typer.echo(f"{subject}: {counts if found else 'nothing is wrong'}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _error(check: str, path: Path, what: str, why: str, remedy: str) -> CheckResult:
    return CheckResult(check, Severity.ERROR, str(path), what, why, remedy)
