"""Backup and restore of a data directory. Synchronous: for a process of its own.

    TARGET/20261123T010203Z/manifest.json      written last: without it there is no backup
    TARGET/20261123T010203Z/leveret.db …       the files of a data directory
    TARGET/20261123T010203Z/topics/…
    TARGET/latest                              a link to the newest

Each backup is whole by itself. A segment that an earlier backup in TARGET holds unchanged is linked
from there and costs neither space nor time.

The order in which a running node is copied makes what is copied look like a crash: first the state
store, which is always behind the logs; then the logs, all cut at one instant; then the definitions.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb
from crc32c import crc32c

from leveret import __version__
from leveret.errors import StorageError
from leveret.storage.files import RealFileSystem, storage_error
from leveret.storage.lock import DirectoryLock
from leveret.storage.manifest import MANIFEST, BackedUpFile, Manifest, read_manifest
from leveret.storage.node_file import cluster_of
from leveret.storage.snapshot import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Backup", "list_backups", "restore", "verify", "write_backup"]

COPY_BYTES = 1 << 20
PARTIAL: Final = ".partial"
LATEST: Final = "latest"
TOPICS: Final = "topics"
STATE: Final = "state.lmdb"
DATABASES: Final = ("leveret.db", "audit.db", "usage.db")
# Beside the databases; what is not named anywhere here is made anew by each start.
PLAIN: Final = ("keyring.json", "losses.jsonl")
DEFINITIONS: Final = "leveret.db"
BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup. `linked_bytes` is the size of files linked from an earlier one."""

    path: Path
    manifest: Manifest
    linked_bytes: int = 0


def write_backup(
    data: Path,
    target: Path,
    snapshot: Callable[[], Path | None],
    node: str,
    advance: Callable[[int], None] = lambda _: None,
) -> Backup:
    """Back up a data directory into a new directory of `target`.

    `snapshot()` is called between the state store and the definitions, and returns where the logs
    of a running node are linked; None if no node runs, and the caller holds the directory's lock.
    `advance` is called with the number of bytes copied. Raises StorageError; the next backup
    removes what a failed one leaves.
    """
    target = target.absolute()
    if target.is_relative_to(data.absolute()) or data.absolute().is_relative_to(target):
        raise StorageError(f"{target} and the data directory {data} may not contain each other")
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        with DirectoryLock(target):
            return _Writer(data, target, node, advance).write(snapshot)
    except OSError as error:
        raise storage_error("write the backup to", target, error) from error


class _Writer:
    """A backup in progress."""

    def __init__(self, data: Path, target: Path, node: str, advance: Callable[[int], None]) -> None:
        _remove_partial(target)
        self._earlier, self._known = _newest(target)
        self._began = time.time()
        name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._began))
        self._final = _unused(target, name)
        self._target = self._final.with_name(self._final.name + PARTIAL)
        self._target.mkdir(mode=0o700)
        self._data = data
        self._node = node
        self._advance = advance
        self._files: list[BackedUpFile] = []
        self._linked_bytes = 0

    def write(self, snapshot: Callable[[], Path | None]) -> Backup:
        self._copy_state()
        linked = snapshot()
        self._copy_topics(linked or self._data)
        for name in PLAIN:
            source = self._held(linked, name)
            if source.exists():
                self._copy(source, name, source.stat().st_size)
        for name in DATABASES:
            self._copy_database(self._held(linked, name), name)
        taken_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began))
        cluster = cluster_of(self._data)
        manifest = Manifest(__version__, self._node, taken_at, self._files, cluster)
        (self._target / MANIFEST).write_text(manifest.to_json())
        os.sync()  # one call for thousands of files
        self._target.rename(self._final)
        _name_latest(self._final)
        RealFileSystem().sync_directory(self._final.parent)
        return Backup(self._final, manifest, self._linked_bytes)

    def _held(self, linked: Path | None, name: str) -> Path:
        """Return where a file is to be copied from: the snapshot's, if that has it."""
        held = None if linked is None else linked / name
        return held if held is not None and held.exists() else self._data / name

    def _copy_state(self) -> None:
        """Copy the state store as of one transaction."""
        if not (self._data / STATE / "data.mdb").exists():
            return
        made = self._target / STATE
        made.mkdir(mode=0o750)
        try:
            with closing(_opened_state(self._data / STATE)) as environment:
                environment.copy(str(made), compact=True)
        except lmdb.Error as error:
            raise StorageError(f"cannot copy {self._data / STATE}: {error}") from error
        self._note(made / "data.mdb", f"{STATE}/data.mdb", 0)

    def _copy_topics(self, source: Path) -> None:
        lengths: dict[str, int] = {}
        with suppress(FileNotFoundError):
            lengths = json.loads((source / LENGTHS).read_text())
        for path in _files_below(source / TOPICS):
            relative = path.relative_to(source).as_posix()
            size = path.stat().st_size
            size = min(size, lengths.get(relative, size))
            if not self._link(path, relative, size):
                self._copy(path, relative, size)

    def _link(self, path: Path, relative: str, size: int) -> bool:
        """Link a file from the previous backup, if it is unchanged there."""
        known = self._known.get(relative)
        if known is None or (known.bytes, known.mtime_ns) != (size, path.stat().st_mtime_ns):
            return False
        made = self._made(relative)
        try:
            os.link(self._earlier / relative, made)
        except OSError:  # removed meanwhile, or a file system without links
            return False
        self._files.append(known)
        self._linked_bytes += size
        self._advance(size)
        return True

    def _copy(self, path: Path, relative: str, size: int) -> None:
        """Copy the first `size` bytes of a file."""
        made = self._made(relative)
        with path.open("rb") as source, made.open("xb") as file:
            checksum = _copy_bytes(source.read, file.write, size, self._advance)
        made.chmod(0o640 if relative.startswith(TOPICS) else 0o600)
        self._files.append(BackedUpFile(relative, size, checksum, path.stat().st_mtime_ns))

    def _copy_database(self, source: Path, name: str) -> None:
        """Copy a database as of one transaction, even while others write to it."""
        made = self._target / name
        if not source.exists():
            return
        try:
            with (
                closing(sqlite3.connect(source, timeout=BUSY_SECONDS)) as database,
                closing(sqlite3.connect(made)) as copy,
            ):
                database.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise StorageError(f"cannot copy {source}: {error}") from error
        made.chmod(0o600)
        self._note(made, name, source.stat().st_mtime_ns)

    def _note(self, made: Path, relative: str, mtime_ns: int) -> None:
        size = made.stat().st_size
        self._files.append(BackedUpFile(relative, size, _checksum(made), mtime_ns))
        self._advance(size)

    def _made(self, relative: str) -> Path:
        made = self._target / relative
        made.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        return made


def list_backups(target: Path) -> list[Backup]:
    """Return the complete backups in a directory, oldest first. Raises StorageError."""
    try:
        found = sorted(
            path
            for path in target.iterdir()
            if (path / MANIFEST).exists() and not path.is_symlink()
        )
    except OSError as error:
        raise storage_error("list", target, error) from error
    return [Backup(path, read_manifest(path)) for path in found if path.suffix != PARTIAL]


def verify(backup: Path, advance: Callable[[int], None] = lambda _: None) -> list[str]:
    """Return the faults of a backup's files, as sentences. Raises StorageError."""
    wrong = []
    for file in read_manifest(backup).files:
        path = backup / file.path
        try:
            if path.stat().st_size != file.bytes:
                wrong.append(f"{file.path}: {path.stat().st_size} bytes instead of {file.bytes}")
            elif _checksum(path, advance) != file.crc32c:
                wrong.append(f"{file.path}: its checksum is another one")
        except OSError as error:
            wrong.append(f"{file.path}: {error.strerror}")
    return wrong


def restore(backup: Path, data: Path, advance: Callable[[int], None] = lambda _: None) -> Manifest:
    """Copy a backup into an empty or missing data directory, and check every file.

    The definitions are copied last: a node does not start without them beside logs, so that half of
    a backup is never served. Raises StorageError.
    """
    manifest = read_manifest(backup)
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.name != "lost+found" for path in data.iterdir()):
            raise StorageError(
                f"{data} is not empty: a backup is not mixed with other data; move that away first"
            )
        for file in sorted(manifest.files, key=lambda each: each.path == DEFINITIONS):
            if file.path == DEFINITIONS:
                os.sync()
            _restore_file(backup, data, file, advance)
        os.sync()
    except OSError as error:
        raise storage_error("restore to", data, error) from error
    return manifest


def _restore_file(
    backup: Path, data: Path, file: BackedUpFile, advance: Callable[[int], None]
) -> None:
    made = data / file.path
    made.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with (backup / file.path).open("rb") as source, made.open("xb") as target:
        checksum = _copy_bytes(source.read, target.write, file.bytes, advance)
        longer = bool(source.read(1))
    if checksum != file.crc32c or longer:
        raise StorageError(
            f"{backup / file.path} is not what the manifest says: the backup is damaged, "
            f"{data} is not complete; restore another one into an empty directory"
        )
    made.chmod(0o640 if file.path.startswith(TOPICS) else 0o600)


def _opened_state(path: Path) -> lmdb.Environment:
    try:
        return lmdb.open(str(path), readonly=True, create=False, max_spare_txns=0)
    except lmdb.Error as error:
        raise StorageError(f"cannot open {path}: {error}") from error


def _files_below(directory: Path) -> Iterator[Path]:
    """Yield the regular files of a directory tree, in order; hidden directories are left out."""
    if not directory.is_dir():
        return
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files_below(entry)
        elif entry.is_file():
            yield entry


def _newest(target: Path) -> tuple[Path, dict[str, BackedUpFile]]:
    """Return the newest complete backup's path, and its files by path; none if there is none."""
    backups = list_backups(target)
    if not backups:
        return target, {}
    files = {file.path: file for file in backups[-1].manifest.files}
    return backups[-1].path, files


def _unused(target: Path, name: str) -> Path:
    """Return an unused directory name: two backups may be taken in one second."""
    path, number = target / name, 1
    while path.exists():
        number += 1
        path = target / f"{name}-{number}"
    return path


def _name_latest(backup: Path) -> None:
    """Point the link `latest` at this backup, where the file system has symbolic links."""
    draft = backup.with_name(LATEST + PARTIAL)
    with suppress(OSError):
        draft.unlink(missing_ok=True)
        draft.symlink_to(backup.name)
        draft.rename(backup.with_name(LATEST))


def _remove_partial(target: Path) -> None:
    """Remove what interrupted backups have left."""
    for path in target.glob(f"*{PARTIAL}"):
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)


def _copy_bytes(
    read: Callable[[int], bytes],
    write: Callable[[bytes], int],
    size: int,
    advance: Callable[[int], None],
) -> int:
    """Copy `size` bytes; returns their CRC-32C. Raises OSError where there are fewer."""
    checksum, rest = 0, size
    while rest:
        piece = read(min(COPY_BYTES, rest))
        if not piece:
            raise OSError(f"a file is {rest} bytes shorter than it was")
        write(piece)
        checksum = crc32c(piece, checksum)
        rest -= len(piece)
        advance(len(piece))
    return checksum


def _checksum(path: Path, advance: Callable[[int], None] = lambda _: None) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        return _copy_bytes(file.read, len, size, advance)
