"""The definitions store of a single node: SQLite, written in groups.

`put` and `remove` only note what is to be written; one transaction takes everything noted so far
to the disk. Ten thousand declarations in a burst therefore cost a few flushes, and of several
writes to one key only the last is made.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import aiosqlite

from leveret.errors import DiskFullError, StorageError
from leveret.ports.definitions import Definition, Definitions
from leveret.storage.schema import MIGRATIONS, TABLES, Row
from leveret.storage.sqlite_file import make_private

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SqliteMetadataStore"]

log = logging.getLogger(__name__)

BUSY_TIMEOUT_SECONDS = 5.0  # the directory lock keeps others out; a backup tool may read meanwhile
ASIDE_MAX = 1000  # damaged files kept beside the store before something is surely wrong

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
_Key = tuple[type[Definition], Row]


class SqliteMetadataStore:
    """`MetadataStore` in one SQLite file (WAL, a flush with every commit)."""

    def __init__(self, database: aiosqlite.Connection, path: Path, spawn: Spawn) -> None:
        self._database = database
        self._path = path
        self._spawn = spawn
        # The last word on each key not yet durable; None removes. Insertion order is irrelevant:
        # everything in it is committed together.
        self._unwritten: dict[_Key, Row | None] = {}
        self._committing = asyncio.Lock()
        self._commit_scheduled = False

    @classmethod
    async def open(cls, path: Path, spawn: Spawn) -> Self:
        """Open or create the store at `path`; `spawn` starts a task that commits what was put.

        A damaged file is set aside under another name and an empty store takes its place. Raises
        StorageError where the file cannot be opened or was written by a newer release.
        """
        try:
            return cls(await _open_sound(path), path, spawn)
        except sqlite3.Error as error:
            raise _storage_error(path, error) from error

    async def load(self) -> Definitions:
        """Everything that was kept, in the order of the keys."""
        await self.flush()
        definitions = Definitions()
        for table in TABLES.values():
            target: list[Any] = getattr(definitions, table.name)
            try:
                # All rows at once: an iteration that a bad row ends would stay suspended, and with
                # it the connection, until the collector comes by.
                rows = await self._database.execute_fetchall(table.select_sql)
                target.extend(table.definition_of(tuple(row)) for row in rows)
            except sqlite3.Error as error:
                raise _storage_error(self._path, error) from error
            except ValueError as error:
                raise StorageError(f"{self._path}: bad row in {table.name}: {error}") from error
        return definitions

    def put(self, definition: Definition) -> None:
        """Insert or replace by the definition's natural key. Returns at once."""
        table = TABLES[type(definition)]
        self._note((table.kind, table.key_of(definition)), table.row_of(definition))

    def remove(self, definition: Definition) -> None:
        """Delete by the definition's natural key; a missing one is no error. Returns at once."""
        table = TABLES[type(definition)]
        self._note((table.kind, table.key_of(definition)), None)

    @property
    def pending(self) -> bool:
        """Whether anything queued is not durable yet."""
        return bool(self._unwritten) or self._committing.locked()

    async def flush(self) -> None:
        """Wait until everything queued before this call is durable.

        Raises StorageError; what could not be written stays queued for the next attempt.
        """
        # Waiting for the lock is the group commit: whoever gets it writes for all who wait.
        async with self._committing:
            if self._unwritten:
                await self._commit()

    async def close(self) -> None:
        """Flush, then close the file. It is closed even if the flush raises."""
        try:
            await self.flush()
        finally:
            await self._database.close()

    def _note(self, key: _Key, row: Row | None) -> None:
        self._unwritten[key] = row
        if not self._commit_scheduled:
            self._commit_scheduled = True
            self._spawn(self._commit_noted())

    async def _commit_noted(self) -> None:
        """Commit on nobody's behalf: a failure is logged, and raised at whoever flushes next."""
        self._commit_scheduled = False
        try:
            await self.flush()
        except StorageError as error:
            log.error("definitions are not durable yet: %s", error)  # noqa: TRY400  # the cause is in it

    async def _commit(self) -> None:
        """One transaction with all that is unwritten; on any failure it is unwritten again."""
        batch, self._unwritten = self._unwritten, {}
        try:
            if self._database.in_transaction:  # an earlier commit was cancelled half way
                await self._database.rollback()
            for statement, rows in _statements(batch):
                await self._database.executemany(statement, rows)
            await self._database.commit()
        except BaseException as error:
            self._unwritten = batch | self._unwritten
            if isinstance(error, sqlite3.Error):
                raise _storage_error(self._path, error) from error
            raise


def _statements(batch: dict[_Key, Row | None]) -> list[tuple[str, list[Row]]]:
    """At most two statements for each table, each with all its rows."""
    grouped: dict[str, list[Row]] = {}
    for (kind, key), row in batch.items():
        table = TABLES[kind]
        if row is None:
            grouped.setdefault(table.remove_sql, []).append(key)
        else:
            grouped.setdefault(table.put_sql, []).append(row)
    return list(grouped.items())


async def _open_sound(path: Path) -> aiosqlite.Connection:
    """An open, migrated database at `path`, new if the one there is damaged."""
    try:
        return await _open_checked(path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise
        aside = _set_aside(path)
        log.error(  # noqa: TRY400  # nobody needs the stack of a damaged file
            "%s is damaged (%s): it was kept as %s, and the node starts without definitions",
            path,
            error,
            aside,
        )
        return await _open_checked(path)


async def _open_checked(path: Path) -> aiosqlite.Connection:
    make_private(path)  # it holds password hashes
    database = await aiosqlite.connect(path, timeout=BUSY_TIMEOUT_SECONDS)
    try:
        await database.execute("PRAGMA journal_mode = WAL")
        await database.execute("PRAGMA synchronous = FULL")
        await _check(database)
        await _migrate(database, path)
    except BaseException:
        await database.close()
        raise
    return database


async def _check(database: aiosqlite.Connection) -> None:
    """Raise SQLite's own error for damage that opening the file does not show."""
    async with database.execute("PRAGMA quick_check(1)") as rows:
        row = await rows.fetchone()
    if row is None or row[0] != "ok":
        damage = sqlite3.DatabaseError(row[0] if row else "no answer from quick_check")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage


async def _migrate(database: aiosqlite.Connection, path: Path) -> None:
    """Apply the migrations the file has not seen, each in a transaction of its own."""
    async with database.execute("PRAGMA user_version") as rows:
        row = await rows.fetchone()
    version: int = row[0] if row else 0
    if version > len(MIGRATIONS):
        raise StorageError(f"{path} was written by a newer release (schema {version})")
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        await database.execute("BEGIN")
        for statement in statements:
            await database.execute(statement)
        await database.execute(f"PRAGMA user_version = {number}")
        await database.commit()


def _set_aside(path: Path) -> Path:
    """Rename a damaged database with its journal, so that SQLite's tools still open the pair."""
    for number in range(1, ASIDE_MAX):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    else:
        raise StorageError(f"too many damaged databases beside {path}: move them away")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def _storage_error(path: Path, error: sqlite3.Error) -> StorageError:
    """Our error for SQLite's, with the file it is about."""
    code = getattr(error, "sqlite_errorcode", None)
    kind = DiskFullError if code == sqlite3.SQLITE_FULL else StorageError
    return kind(f"{path}: {error}")
