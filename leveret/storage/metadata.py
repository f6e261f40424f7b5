"""The definitions store of a single node: SQLite, written in groups.

`put` and `remove` only note what is to be written; one transaction takes everything noted so far
to the disk. Ten thousand declarations in a burst therefore cost a few flushes, and of several
writes to one key only the last is made.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import aiosqlite

from leveret.errors import DiskFullError, NewerFormatError, StorageError
from leveret.ports.definitions import Definition, Definitions
from leveret.storage.database_checksum import remove_checksum, verify_checksum, write_checksum
from leveret.storage.files import storage_error
from leveret.storage.schema import MIGRATIONS, TABLES, Row
from leveret.storage.sqlite_file import check_pages, is_damage, make_private, read_only_uri

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ChangedDefinitionsError",
    "DamagedDefinitionsError",
    "DefinitionKey",
    "DefinitionRows",
    "SqliteMetadataStore",
]

log = logging.getLogger(__name__)

BUSY_TIMEOUT_SECONDS = 5.0  # the directory lock keeps others out; a backup tool may read meanwhile

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
DefinitionKey: TypeAlias = tuple[type[Definition], Row]  # a kind, and the natural key of one
DefinitionRows: TypeAlias = Mapping[DefinitionKey, Row | None]  # None: it is removed


class DamagedDefinitionsError(StorageError):
    """The file is no database, or one whose pages contradict each other."""


class ChangedDefinitionsError(StorageError):
    """The file is a sound database, but not the one that was closed last."""


class SqliteMetadataStore:
    """`MetadataStore` in one SQLite file (WAL, a flush with every commit).

    `identity` is unique to these definitions, `changes` counts the durable commits: with both
    noted, an older file can be recognized later. `on_change` is called after each commit. In a
    cluster `write_ahead` makes changes durable elsewhere before they are written here; it raises
    StorageError.
    """

    def __init__(
        self,
        database: aiosqlite.Connection,
        path: Path,
        spawn: Spawn,
        identity: bytes,
        changes: int,
    ) -> None:
        self.identity = identity
        self.changes = changes
        self.on_change: Callable[[], None] = lambda: None
        self.write_ahead: Callable[[DefinitionRows], Awaitable[None]] | None = None
        self._database = database
        self._path = path
        self._spawn = spawn
        # The last word on each key not yet durable; None removes. Insertion order is irrelevant:
        # everything in it is committed together.
        self._unwritten: dict[DefinitionKey, Row | None] = {}
        self._removed: set[str] = set()  # virtual hosts; rows of them that are unwritten came later
        self._committing = asyncio.Lock()
        self._commit_scheduled = False

    @classmethod
    async def open(cls, path: Path, spawn: Spawn, *, as_it_is: bool = False) -> Self:
        """Open or create the store at `path`; `spawn` starts a task that commits what was put.

        `as_it_is`: even if another program, or the disk, has changed it since it was closed. Raises
        DamagedDefinitionsError, ChangedDefinitionsError, NewerFormatError, and StorageError where
        the file cannot be opened. It is left unchanged then.
        """
        try:
            is_changed = not (as_it_is or await asyncio.to_thread(verify_checksum, path))
            database, identity, changes = await _open_checked(path, is_changed=is_changed)
        except OSError as error:
            raise storage_error("read", path, error) from error
        except sqlite3.Error as error:
            if is_damage(error):
                raise DamagedDefinitionsError(f"{path} is damaged ({error})") from error
            raise _storage_error(path, error) from error
        return cls(database, path, spawn, identity, changes)

    async def is_new(self) -> bool:
        """Return whether nothing was ever stored here. Raises StorageError."""
        if self.changes:
            return False
        definitions = await self.load()
        return not (definitions.vhosts or definitions.users)

    async def load(self) -> Definitions:
        """Return all definitions, ordered by key. Raises StorageError."""
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

    async def rows(self) -> dict[DefinitionKey, Row]:
        """Return the rows of all definitions by their keys. Raises StorageError."""
        await self.flush()
        found: dict[DefinitionKey, Row] = {}
        try:
            for table in TABLES.values():
                rows = await self._database.execute_fetchall(table.select_sql)
                found |= {(table.kind, table.key_in(row)): tuple(row) for row in rows}
        except sqlite3.Error as error:
            raise _storage_error(self._path, error) from error
        return found

    async def replace(self, wanted: Mapping[DefinitionKey, Row]) -> None:
        """Have exactly the definitions of these rows, before anything else is put.

        Raises StorageError.
        """
        found = await self.rows()
        gone = dict.fromkeys(found.keys() - wanted.keys())
        changed = {key: row for key, row in wanted.items() if found.get(key) != row}
        self._unwritten = gone | changed
        await self.flush()

    async def _removed_rows(self, vhosts: set[str]) -> dict[DefinitionKey, Row | None]:
        """Return what goes with some virtual hosts, themselves last. Raises sqlite3.Error.

        A deletion that is written ahead in several steps can be repeated while they are there.
        """
        found: dict[DefinitionKey, Row | None] = {}
        for table in reversed(TABLES.values()):
            if vhosts and table.vhost_column is not None:
                rows = await self._database.execute_fetchall(table.select_sql)
                keys = [table.key_in(row) for row in rows]
                found |= {(table.kind, key): None for key in keys if key[0] in vhosts}
        return found

    def put(self, definition: Definition) -> None:
        """Queue the insert or replacement of a definition, by its natural key."""
        table = TABLES[type(definition)]
        self._note((table.kind, table.key_of(definition)), table.row_of(definition))

    def remove(self, definition: Definition) -> None:
        """Queue the deletion of a definition, by its natural key; a missing one is no error."""
        table = TABLES[type(definition)]
        self._note((table.kind, table.key_of(definition)), None)

    def remove_vhost(self, name: str) -> None:
        """Queue the deletion of a virtual host with all its definitions."""
        self._unwritten = _removing(self._unwritten, {name})
        self._removed.add(name)
        self._schedule_commit()

    @property
    def pending(self) -> bool:
        """Whether anything queued is not durable yet."""
        return bool(self._unwritten or self._removed) or self._committing.locked()

    async def flush(self) -> None:
        """Wait until everything queued before this call is durable.

        Raises StorageError; what could not be written stays queued for the next attempt.
        """
        # Waiting for the lock is the group commit: the one that gets it writes for all who wait.
        async with self._committing:
            if self._unwritten or self._removed:
                await self._commit()

    async def close(self) -> None:
        """Flush, then close the file. It is closed even if the flush raises."""
        try:
            await self.flush()
        finally:
            await self._database.close()
        try:
            await asyncio.to_thread(write_checksum, self._path)
        except OSError as error:
            log.warning("%s", storage_error("write the checksum of", self._path, error))

    def _note(self, key: DefinitionKey, row: Row | None) -> None:
        self._unwritten[key] = row
        self._schedule_commit()

    def _schedule_commit(self) -> None:
        if not self._commit_scheduled:
            self._commit_scheduled = True
            self._spawn(self._commit_noted())

    async def _commit_noted(self) -> None:
        """Commit in the background: a failure is logged, and raised by the next `flush`."""
        self._commit_scheduled = False
        try:
            await self.flush()
        except StorageError as error:
            log.error("definitions are not durable yet: %s", error)  # noqa: TRY400  # the cause is in it

    async def _commit(self) -> None:
        """Commit all queued changes in one transaction; on failure they are queued again."""
        batch, self._unwritten = self._unwritten, {}
        removed, self._removed = self._removed, set()
        try:
            if self._database.in_transaction:  # an earlier commit was cancelled half way
                await self._database.rollback()
            if self.write_ahead is not None:
                await self.write_ahead(await self._removed_rows(removed) | batch)
            for statement, rows in [*_removals(removed), *_statements(batch)]:
                await self._database.executemany(statement, rows)
            await self._database.execute("UPDATE store SET changes = changes + 1")
            await self._database.commit()
        except BaseException as error:
            self._unwritten = _removing(batch, self._removed) | self._unwritten
            self._removed |= removed
            if isinstance(error, sqlite3.Error):
                raise _storage_error(self._path, error) from error
            raise
        self.changes += 1
        self.on_change()


def _removing(
    batch: dict[DefinitionKey, Row | None], vhosts: set[str]
) -> dict[DefinitionKey, Row | None]:
    """Return a batch that removes what it has of some virtual hosts.

    It is not left out: where a commit has failed half way, it was written ahead, but not here.
    """
    if not vhosts:
        return batch
    return {
        (kind, key): row if TABLES[kind].vhost_column is None or key[0] not in vhosts else None
        for (kind, key), row in batch.items()
    }


def _removals(vhosts: set[str]) -> list[tuple[str, list[Row]]]:
    """Return the statements that delete some virtual hosts and their definitions."""
    names: list[Row] = [(name,) for name in sorted(vhosts)]
    tables = [(table.name, table.vhost_column) for table in TABLES.values() if names]
    return [
        (f"DELETE FROM {table} WHERE {column} = ?", names)  # noqa: S608  # our own names
        for table, column in tables
        if column is not None
    ]


def _statements(batch: DefinitionRows) -> list[tuple[str, list[Row]]]:
    """Return the batch as at most two statements for each table, each with all its rows."""
    grouped: dict[str, list[Row]] = {}
    for (kind, key), row in batch.items():
        table = TABLES[kind]
        if row is None:
            grouped.setdefault(table.remove_sql, []).append(key)
        else:
            grouped.setdefault(table.put_sql, []).append(row)
    return list(grouped.items())


async def _open_checked(path: Path, *, is_changed: bool) -> tuple[aiosqlite.Connection, bytes, int]:
    """Open and migrate a database; return it with its identity and number of changes.

    A sound one that `is_changed` since it was closed is refused: ChangedDefinitionsError.
    """
    make_private(path)  # it holds password hashes
    version = await _look(path)
    if is_changed:
        raise ChangedDefinitionsError(f"{path} is not the file that the last stop has left")
    await asyncio.to_thread(remove_checksum, path)
    database = await aiosqlite.connect(path, timeout=BUSY_TIMEOUT_SECONDS)
    try:
        await database.execute("PRAGMA journal_mode = WAL")
        await database.execute("PRAGMA synchronous = FULL")
        await _migrate(database, version)
        identity, changes = await _which(database, path)
    except BaseException:
        await database.close()
        raise
    return database, identity, changes


async def _which(database: aiosqlite.Connection, path: Path) -> tuple[bytes, int]:
    """Return the database's identity and number of changes. Raises DamagedDefinitionsError."""
    async with database.execute("SELECT identity, changes FROM store") as rows:
        row = await rows.fetchone()
    if row is None:
        raise DamagedDefinitionsError(f"{path} is damaged (it does not say which it is)")
    return bytes(row[0]), int(row[1])


async def _look(path: Path) -> int:
    """Check all pages and return the schema version; nothing is written, not even by closing.

    Raises sqlite3.Error, NewerFormatError.
    """
    database = await aiosqlite.connect(read_only_uri(path), uri=True, timeout=BUSY_TIMEOUT_SECONDS)
    try:
        version = await _version(database, path)
        await check_pages(database)
    finally:
        await database.close()
    return version


async def _version(database: aiosqlite.Connection, path: Path) -> int:
    """Return the schema version. Raises NewerFormatError, before anything is changed."""
    async with database.execute("PRAGMA user_version") as rows:
        row = await rows.fetchone()
    version: int = row[0] if row else 0
    if version > len(MIGRATIONS):
        raise NewerFormatError(f"{path} (schema {version})")
    return version


async def _migrate(database: aiosqlite.Connection, version: int) -> None:
    """Apply the migrations the file has not seen, each in a transaction of its own."""
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        await database.execute("BEGIN")
        for statement in statements:
            await database.execute(statement)
        await database.execute(f"PRAGMA user_version = {number}")
        await database.commit()


def _storage_error(path: Path, error: sqlite3.Error) -> StorageError:
    """Return the StorageError for an error of SQLite, with the file's path."""
    code = getattr(error, "sqlite_errorcode", None)
    kind = DiskFullError if code == sqlite3.SQLITE_FULL else StorageError
    return kind(f"{path}: {error}")
