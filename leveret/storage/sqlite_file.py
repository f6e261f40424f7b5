"""A SQLite file of records beside the definitions, so that neither waits for the other.

It is opened when it is first used. Used by the stores of usage and of the audit log.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiosqlite

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["SqliteFile", "make_private"]

BUSY_TIMEOUT_SECONDS = 5.0
JOURNALS = ("-wal", "-shm")  # what SQLite puts beside a database, by the ends of its names
OTHERS = 0o077  # the rights of everybody but the owner


def make_private(path: Path) -> None:
    """Create a database for its owner alone, or make it and its journal so. Raises StorageError.

    Files that SQLite makes beside it later have its mode.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for file in (path, *(path.with_name(path.name + end) for end in JOURNALS)):
            with suppress(FileNotFoundError, PermissionError):  # of another owner: his to change
                if file.stat().st_mode & OTHERS:
                    file.chmod(0o600)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from error


class SqliteFile:
    """The tables of `schema` in one file. Raises StorageError where it cannot be used."""

    def __init__(self, path: Path, schema: Sequence[str]) -> None:
        self._path = path
        self._schema = schema
        self._database: aiosqlite.Connection | None = None
        self._alone = asyncio.Lock()  # one transaction at a time

    async def close(self) -> None:
        """Release the file; the next use opens it again."""
        async with self._alone:
            if self._database is not None:
                await self._database.close()
                self._database = None

    async def write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Execute a statement with each of the rows; durable on return."""
        async with self._alone:
            try:
                database = await self._opened()
                if database.in_transaction:  # an earlier write was cancelled half way
                    await database.rollback()
                await database.executemany(statement, rows)
                await database.commit()
            except sqlite3.Error as error:
                raise StorageError(f"{self._path}: {error}") from error

    async def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """What a query finds."""
        async with self._alone:
            try:
                database = await self._opened()
                return [
                    tuple(row) for row in await database.execute_fetchall(statement, tuple(values))
                ]
            except sqlite3.Error as error:
                raise StorageError(f"{self._path}: {error}") from error

    async def _opened(self) -> aiosqlite.Connection:
        if self._database is None:
            make_private(self._path)
            database = await aiosqlite.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS)
            try:
                await database.execute("PRAGMA journal_mode = WAL")
                for statement in self._schema:
                    await database.execute(statement)
                await database.commit()
            except BaseException:
                await database.close()
                raise
            self._database = database
        return self._database
