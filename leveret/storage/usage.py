"""Usage by the hour in a SQLite file of its own, so that counting never waits for definitions."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any

import aiosqlite

from leveret.errors import StorageError
from leveret.ports.usage import Account, Subject, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["SqliteUsageStore"]

BUSY_TIMEOUT_SECONDS = 5.0
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS usage (
        hour INTEGER, subject TEXT, vhost TEXT, name TEXT,
        messages_in INTEGER NOT NULL, bytes_in INTEGER NOT NULL,
        messages_out INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
        PRIMARY KEY (hour, subject, vhost, name)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS published (hour INTEGER PRIMARY KEY)",
)
ADD = """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (hour, subject, vhost, name) DO UPDATE SET
        messages_in = messages_in + excluded.messages_in,
        bytes_in = bytes_in + excluded.bytes_in,
        messages_out = messages_out + excluded.messages_out,
        bytes_out = bytes_out + excluded.bytes_out"""
READ = "SELECT * FROM usage WHERE hour >= ? AND hour < ? ORDER BY hour, subject, vhost, name"
UNPUBLISHED = """SELECT DISTINCT hour FROM usage
    WHERE hour < ? AND hour NOT IN (SELECT hour FROM published) ORDER BY hour"""


class SqliteUsageStore:
    """`ports.usage.UsageStore` in one file, which is opened when it is first used.

    Everything raises StorageError where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: aiosqlite.Connection | None = None
        self._alone = asyncio.Lock()  # one transaction at a time

    async def add(self, hour: int, used: Mapping[Account, Usage]) -> None:
        """See ports.usage."""
        rows = [(hour, *account, *usage) for account, usage in used.items()]
        await self._write(ADD, rows)

    async def read(self, since: int, until: int) -> Sequence[tuple[int, Account, Usage]]:
        """See ports.usage."""
        rows = await self._rows(READ, (since, until))
        return [
            (hour, Account(Subject(subject), vhost, name), Usage(*counts))
            for hour, subject, vhost, name, *counts in rows
        ]

    async def unpublished(self, before: int) -> Sequence[int]:
        """See ports.usage."""
        return [hour for (hour,) in await self._rows(UNPUBLISHED, (before,))]

    async def mark_published(self, hour: int) -> None:
        """See ports.usage."""
        await self._write("INSERT OR IGNORE INTO published VALUES (?)", [(hour,)])

    async def forget(self, before: int) -> None:
        """See ports.usage."""
        for table in ("usage", "published"):
            await self._write(f"DELETE FROM {table} WHERE hour < ?", [(before,)])  # noqa: S608  # ours

    async def close(self) -> None:
        """See ports.usage."""
        async with self._alone:
            if self._database is not None:
                await self._database.close()
                self._database = None

    async def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        async with self._alone:
            try:
                database = await self._opened()
                if database.in_transaction:  # an earlier write was cancelled half way
                    await database.rollback()
                await database.executemany(statement, rows)
                await database.commit()
            except sqlite3.Error as error:
                raise StorageError(f"{self._path}: {error}") from error

    async def _rows(self, statement: str, values: tuple[int, ...]) -> list[tuple[Any, ...]]:
        async with self._alone:
            try:
                database = await self._opened()
                return [tuple(row) for row in await database.execute_fetchall(statement, values)]
            except sqlite3.Error as error:
                raise StorageError(f"{self._path}: {error}") from error

    async def _opened(self) -> aiosqlite.Connection:
        if self._database is None:
            database = await aiosqlite.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS)
            try:
                await database.execute("PRAGMA journal_mode = WAL")
                for statement in SCHEMA:
                    await database.execute(statement)
                await database.commit()
            except BaseException:
                await database.close()
                raise
            self._database = database
        return self._database
