"""Store of hourly usage in a SQLite file, so that it does not wait for definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports.usage import (
    NOTHING_COUNTED,
    Account,
    CountedLog,
    CountedLogs,
    Subject,
    Usage,
)
from leveret.storage.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from leveret.storage.losses import LossLedger

__all__ = ["SqliteUsageStore"]

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS usage (
        hour INTEGER, subject TEXT, vhost TEXT, name TEXT,
        messages_in INTEGER NOT NULL, bytes_in INTEGER NOT NULL,
        messages_out INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
        PRIMARY KEY (hour, subject, vhost, name)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS published (hour INTEGER PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS counted (
        vhost TEXT, queue TEXT, incarnation TEXT, number INTEGER, stop INTEGER NOT NULL,
        PRIMARY KEY (vhost, queue, incarnation, number)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS counting (id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL)",
)
# Up to version 1 nothing was noted in `counted`: a release that does not know it must not add to
# the usage, since the next one would count the same messages again.
VERSION = 2
ADD = """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (hour, subject, vhost, name) DO UPDATE SET
        messages_in = messages_in + excluded.messages_in,
        bytes_in = bytes_in + excluded.bytes_in,
        messages_out = messages_out + excluded.messages_out,
        bytes_out = bytes_out + excluded.bytes_out"""
READ = "SELECT * FROM usage WHERE hour >= ? AND hour < ? ORDER BY hour, subject, vhost, name"
NOTE_LOG = "INSERT OR REPLACE INTO counted VALUES (?, ?, ?, ?, ?)"
NOTE_TIME = "INSERT OR REPLACE INTO counting VALUES (1, ?)"
FORGET_LOG = """DELETE FROM counted
    WHERE vhost = ? AND queue = ? AND incarnation = ? AND number = ?"""
UNPUBLISHED = """SELECT DISTINCT hour FROM usage
    WHERE hour < ? AND hour NOT IN (SELECT hour FROM published) ORDER BY hour"""


class SqliteUsageStore:
    """`ports.usage.UsageStore` in SQLite. Raises StorageError where the file cannot be used."""

    def __init__(self, path: Path, losses: LossLedger | None = None) -> None:
        self.file = SqliteFile(path, SCHEMA, losses, version=VERSION)

    async def add(
        self, hour: int, used: Mapping[Account, Usage], counted: CountedLogs = NOTHING_COUNTED
    ) -> None:
        """Add the usage of an hour (see ports.usage)."""
        times = [] if counted.at_ms is None else [(counted.at_ms,)]
        await self.file.write_all(
            [
                (ADD, [(hour, *account, *usage) for account, usage in used.items()]),
                (NOTE_LOG, [(*log, end) for log, end in counted.ends.items()]),
                (NOTE_TIME, times),
            ]
        )

    async def counted(self) -> CountedLogs:
        """Return how far logs were counted (see ports.usage)."""
        rows = await self.file.rows("SELECT * FROM counted", ())
        times = await self.file.rows("SELECT at_ms FROM counting", ())
        ends = {CountedLog(*log): end for *log, end in rows}
        return CountedLogs(ends, max((at_ms for (at_ms,) in times), default=None))

    async def forget_logs(self, logs: Collection[CountedLog]) -> None:
        """Delete what was noted of logs (see ports.usage)."""
        await self.file.write(FORGET_LOG, list(logs))

    async def forget_counted(self) -> None:
        """Delete what was noted of all logs (see ports.usage)."""
        once: list[tuple[object, ...]] = [()]
        await self.file.write_all([("DELETE FROM counted", once), ("DELETE FROM counting", once)])

    async def read(self, since: int, until: int) -> Sequence[tuple[int, Account, Usage]]:
        """Return the usage of a range of hours (see ports.usage)."""
        rows = await self.file.rows(READ, (since, until))
        return [
            (hour, Account(Subject(subject), vhost, name), Usage(*counts))
            for hour, subject, vhost, name, *counts in rows
        ]

    async def unpublished(self, before: int) -> Sequence[int]:
        """Return hours whose usage was not published yet (see ports.usage)."""
        return [hour for (hour,) in await self.file.rows(UNPUBLISHED, (before,))]

    async def mark_published(self, hour: int) -> None:
        """Mark an hour as published (see ports.usage)."""
        await self.file.write("INSERT OR IGNORE INTO published VALUES (?)", [(hour,)])

    async def forget(self, before: int) -> None:
        """Delete usage before an hour (see ports.usage)."""
        for table in ("usage", "published"):
            await self.file.write(f"DELETE FROM {table} WHERE hour < ?", [(before,)])  # noqa: S608  # ours

    async def close(self) -> None:
        """Close the file (see ports.usage)."""
        await self.file.close()
