"""A SQLite file of records beside the definitions, so that neither waits for the other.

It is opened on first use. Used by the stores of usage and of the audit log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import aiosqlite

from leveret.errors import NewerFormatError, StorageError
from leveret.ports.losses import Loss, LossKind
from leveret.storage.database_checksum import remove_checksum, verify_checksum, write_checksum

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from leveret.storage.losses import LossLedger

    Writes: TypeAlias = Sequence[tuple[str, Sequence[tuple[object, ...]]]]  # statements, their rows

__all__ = [
    "SqliteFile",
    "check_pages",
    "is_damage",
    "make_private",
    "read_only_uri",
    "set_aside_database",
]

log = logging.getLogger(__name__)

VERSION = 1  # of a file's tables, where it has no other; a change of them takes the next number
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})  # of primary result codes
ASIDE_MAX = 1000  # damaged files kept beside a store before something is surely wrong
STORE = (
    "CREATE TABLE IF NOT EXISTS store (changes INTEGER NOT NULL)",
    "INSERT INTO store SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM store)",
)

_T = TypeVar("_T")

BUSY_TIMEOUT_SECONDS = 5.0
JOURNALS = ("-wal", "-shm")  # suffixes of SQLite's files beside a database
OTHERS = 0o077  # permissions of all but the owner


def make_private(path: Path) -> None:
    """Create a database for its owner alone, or restrict it and its journal. Raises StorageError.

    Files that SQLite creates beside it later have its mode.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for file in (path, *(path.with_name(path.name + end) for end in JOURNALS)):
            with suppress(FileNotFoundError, PermissionError):  # of another owner
                if file.stat().st_mode & OTHERS:
                    file.chmod(0o600)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from error


def set_aside_database(path: Path) -> Path | None:
    """Rename a damaged database with its journal, so that SQLite's tools still open the pair.

    Returns the new path, None if neither exists. Raises StorageError.
    """
    for number in range(1, ASIDE_MAX):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    else:
        raise StorageError(f"too many damaged databases beside {path}: move them away")
    moved = False
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
            moved = True
    return aside if moved else None


def read_only_uri(path: Path) -> str:
    """Return a URI that opens a database without changing it; an existing journal is read."""
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    return f"{path.absolute().as_uri()}?{mode}"


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means that the file is damaged, not that the statement is wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in DAMAGE


class SqliteFile:
    """Tables of `schema` in one file. Raises StorageError where it cannot be used.

    A damaged file is quarantined and a new one begun: new records are kept, and `losses` records
    the loss. `on_change(count)` is called after each write with the number of all writes.
    """

    def __init__(
        self,
        path: Path,
        schema: Sequence[str],
        losses: LossLedger | None = None,
        *,
        version: int = VERSION,
    ) -> None:
        self.changes = 0
        self.on_change: Callable[[int], None] = lambda _: None
        self._path = path
        self._schema = (*schema, *STORE, f"PRAGMA user_version = {version}")
        self._version = version
        self._losses = losses
        self._database: aiosqlite.Connection | None = None
        self._alone = asyncio.Lock()  # one transaction at a time
        self._begun_anew = False  # the loss was reported

    async def check(self, changes_noted: int) -> None:
        """Check at the start that the file exists and has all changes that were noted of it."""
        if self._path.exists():
            async with self._alone:
                try:
                    await self._opened()
                except NewerFormatError:
                    raise
                except (sqlite3.Error, StorageError) as error:
                    # A full disk, say: no reason not to start, and the next use tries again.
                    log.warning("%s cannot be looked at now: %s", self._path, error)
                    return
        if self.changes < changes_noted and not self._begun_anew:
            missing = changes_noted - self.changes
            there = "older than it was" if self._path.exists() else "missing"
            self._tell(f"{self._path} is {there}: its last {missing} records are lost")

    async def close(self) -> None:
        """Release the file; the next use opens it again."""
        async with self._alone:
            if self._database is not None:
                await self._database.close()
                self._database = None
                with suppress(OSError):  # without it, nothing is compared at the next start
                    await asyncio.to_thread(write_checksum, self._path)

    async def write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Execute a statement with each of the rows; durable on return."""
        await self.write_all([(statement, rows)])

    async def write_all(self, writes: Writes) -> None:
        """Execute statements, each with each of its rows: all or none. Durable on return."""
        async with self._alone:
            await self._patiently(partial(self._write, writes))
        self.on_change(self.changes)

    async def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        async with self._alone:
            return await self._patiently(partial(self._rows, statement, values))

    async def _patiently(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """Run `act` on the file, and once more on a new one if it turns out to be damaged."""
        try:
            try:
                return await act()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                await self._begin_anew(error)
                return await act()
        except sqlite3.Error as error:
            raise StorageError(f"{self._path}: {error}") from error

    async def _write(self, writes: Writes) -> None:
        database = await self._opened()
        if database.in_transaction:  # an earlier write was cancelled half way
            await database.rollback()
        for statement, rows in writes:
            await database.executemany(statement, rows)
        await database.execute("UPDATE store SET changes = changes + 1")
        await database.commit()
        self.changes += 1

    async def _rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        database = await self._opened()
        return [tuple(row) for row in await database.execute_fetchall(statement, tuple(values))]

    async def _opened(self) -> aiosqlite.Connection:
        if self._database is None:
            is_changed = not await asyncio.to_thread(verify_checksum, self._path)
            if is_changed:
                self._tell(f"{self._path} is not the file that the last stop has left")
            try:
                self._database = await self._open(deep=is_changed)
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                await self._begin_anew(error)
                self._database = await self._open(deep=False)
        return self._database

    async def _open(self, *, deep: bool) -> aiosqlite.Connection:
        make_private(self._path)
        database = await aiosqlite.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS)
        try:
            await self._refuse_newer(database)
            await database.execute("PRAGMA journal_mode = WAL")
            if deep:
                await check_pages(database)
            await asyncio.to_thread(remove_checksum, self._path)
            for statement in self._schema:
                await database.execute(statement)
            await database.commit()
            found = await database.execute_fetchall("SELECT changes FROM store")
            self.changes = max(row[0] for row in found)
        except BaseException:
            await database.close()
            raise
        return database

    async def _refuse_newer(self, database: aiosqlite.Connection) -> None:
        found = await database.execute_fetchall("PRAGMA user_version")
        version = max((row[0] for row in found), default=0)
        if version > self._version:
            raise NewerFormatError(f"{self._path} (schema {version})")

    async def _begin_anew(self, error: sqlite3.Error) -> None:
        """Quarantine the damaged file; the next use creates another."""
        if self._database is not None:
            database, self._database = self._database, None
            await database.close()
        aside = set_aside_database(self._path)
        self._begun_anew = True
        self._tell(f"{self._path} is damaged ({error}): it was kept as {aside}, a new one is begun")

    def _tell(self, what: str) -> None:
        log.error("%s", what)
        if self._losses is not None:
            self._losses.note(Loss(LossKind.RECORDS, str(self._path), what))


async def check_pages(database: aiosqlite.Connection) -> None:
    """Raise SQLite's own error for damage that opening the file does not show."""
    async with database.execute("PRAGMA quick_check(1)") as rows:
        row = await rows.fetchone()
    if row is None or row[0] != "ok":
        damage = sqlite3.DatabaseError(row[0] if row else "no answer from quick_check")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage
