"""`leveret backup …` and `leveret restore`: backups of a data directory."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leveret.cli.group import JSON, Group, with_common
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_json, show_warnings
from leveret.cli.progress import progress
from leveret.cli.session import as_json, ask, data_directory, fail
from leveret.errors import LeveretError, NodeRunningError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leveret.storage.backup import Backup

__all__ = ["app", "restore"]

app = Group("Backups of a node's data directory, taken while the node runs.")

COLUMNS = ["backup", "taken_at", "release", "files", "bytes"]

WITHOUT_DEFINITIONS: Final = (
    "it is of a cluster's node that was stopped, and ZooKeeper has them. To restore it, start a "
    "node with `leveret serve --accept-loss definitions`, make queues of the logs with `leveret "
    "adopt`, and import definitions that were exported. A backup of a running node has them"
)
OF_A_CLUSTER: Final = (
    "It was a node of a cluster: queues without a replica on it are empty. `leveret cluster join` "
    "makes the node the first of a new cluster, once it is stopped again"
)

Target = Annotated[Path, typer.Argument(help="The directory that holds the backups.")]
Taken = Annotated[Path, typer.Argument(help="One backup: a directory in that of the backups.")]


@app.command("create")
def create(target: Target) -> None:
    """Back up a node, running or stopped, into a new directory of TARGET.

    Segments that the backup before holds already are linked from it: a second backup takes the time
    and the space of what is new. The master key of encrypted virtual hosts is not in it.
    """
    from leveret.node.process import node_name
    from leveret.storage.backup import write_backup
    from leveret.storage.definitions_copy import has_definitions

    data_dir = data_directory()
    if not data_dir.is_dir():
        fail(f"{data_dir} is not a data directory")
    try:
        with _snapshot_of(data_dir) as snapshot, progress("Copying") as bar:
            made = write_backup(data_dir, target, snapshot, node_name(), bar.advance)
    except LeveretError as error:
        fail(str(error))
    _show(made)
    if made.manifest.cluster and not has_definitions(made.path / "leveret.db"):
        show_warnings([f"no definitions are in it: {WITHOUT_DEFINITIONS}"])


@app.command("list", common=JSON)
@with_options_of(Listing)
def list_(*, target: Target, **options: Any) -> None:
    """List the backups in TARGET that are whole, the oldest first."""
    from leveret.storage.backup import list_backups

    try:
        rows = [_row(backup) for backup in list_backups(target)]
    except LeveretError as error:
        fail(str(error))
    show_list(whole(rows), COLUMNS, options)


@app.command("verify", common=JSON)
def verify(backup: Taken) -> None:
    """Read a whole backup and compare each file with its checksum; exit status 1 if one differs."""
    from leveret.storage.backup import verify as verify_files
    from leveret.storage.manifest import read_manifest

    try:
        manifest = read_manifest(backup)
        with progress("Reading") as bar:
            bar.total(manifest.bytes)
            wrong = verify_files(backup, bar.advance)
    except LeveretError as error:
        fail(str(error))
    if as_json():
        show_json({"ok": not wrong, "files": len(manifest.files), "wrong": wrong})
    elif not wrong:
        typer.echo(f"{backup}: {len(manifest.files)} files are as they were written")
    for each in wrong:
        typer.echo(f"leveret: {each}", err=True)
    if wrong:
        raise typer.Exit(1)


@with_common
def restore(backup: Taken) -> None:
    """Copy a backup into a data directory that is empty or not there yet.

    A node started on it then serves everything up to the moment of the backup. Messages that were
    consumed after it come again. A backup of a cluster's node becomes a node by itself, which
    `leveret cluster join` makes the first of a new cluster.
    """
    from leveret.storage.backup import restore as restore_files
    from leveret.storage.definitions_copy import has_definitions
    from leveret.storage.manifest import read_manifest

    data_dir = data_directory()
    try:
        with progress("Restoring") as bar:
            bar.total(read_manifest(backup).bytes)
            manifest = restore_files(backup, data_dir, bar.advance)
    except LeveretError as error:
        fail(str(error))
    is_whole = has_definitions(data_dir / "leveret.db")
    if as_json():
        show_json(
            {
                "ok": True,
                "files": len(manifest.files),
                "bytes": manifest.bytes,
                "cluster": manifest.cluster,
                "definitions": is_whole,
            }
        )
        return
    holds = f"{data_dir} holds the backup of {manifest.taken_at}"
    if not is_whole:
        typer.echo(holds)
        show_warnings([f"it has no definitions: {WITHOUT_DEFINITIONS}"])
        return
    typer.echo(f"{holds}: `leveret serve --data-dir {data_dir}` starts a node on it")
    if manifest.cluster:
        typer.echo(OF_A_CLUSTER)


@contextmanager
def _snapshot_of(data_dir: Path) -> Iterator[Callable[[], Path | None]]:
    """Yield a function that takes a snapshot of a running node; a stopped one is locked."""
    from leveret.storage.lock import DirectoryLock

    try:
        lock = DirectoryLock(data_dir)
    except NodeRunningError:
        taken = False

        def take() -> Path:
            nonlocal taken
            taken = True
            return Path(ask("snapshot.take"))

        try:
            yield take
        finally:
            if taken:
                ask("snapshot.release")
        return
    with lock:
        yield lambda: None


def _row(backup: Backup) -> dict[str, Any]:
    manifest = backup.manifest
    return {
        "backup": str(backup.path),
        "taken_at": manifest.taken_at,
        "release": manifest.release,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
    }


def _show(made: Backup) -> None:
    row = {**_row(made), "linked_bytes": made.linked_bytes}
    if as_json():
        show_json(row)
        return
    typer.echo(
        f"{made.path} holds {row['files']} files, {row['bytes']} bytes, of which "
        f"{made.linked_bytes} are linked from the backup before"
    )
