"""Store of the audit log, in a SQLite file of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leveret.ports.audit import Actor, AuditRecord, Way
from leveret.storage.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.ports.audit import AuditQuery
    from leveret.storage.losses import LossLedger

__all__ = ["SqliteAuditStore"]

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL,
        user TEXT NOT NULL, peer TEXT NOT NULL, way TEXT NOT NULL,
        operation TEXT NOT NULL, parameters TEXT NOT NULL,
        error TEXT NOT NULL, explanation TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS audit_by_time ON audit (at_ms)",
)
ADD = """INSERT INTO audit
    (at_ms, user, peer, way, operation, parameters, error, explanation)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
# A parameter that is NULL asks for nothing; LIKE would take upper case for lower.
READ = """SELECT number, at_ms, user, peer, way, operation, parameters, error, explanation
    FROM audit
    WHERE (?1 IS NULL OR at_ms >= ?1) AND (?2 IS NULL OR at_ms < ?2)
        AND (?3 IS NULL OR user = ?3)
        AND (?4 IS NULL OR substr(operation, 1, length(?4)) = ?4)
        AND (?5 IS NULL OR number < ?5)
    ORDER BY number DESC LIMIT ?6"""
FORGET = "DELETE FROM audit WHERE at_ms < ?"


class SqliteAuditStore:
    """`ports.audit.AuditStore` in SQLite. Raises StorageError where the file cannot be used."""

    def __init__(self, path: Path, losses: LossLedger | None = None) -> None:
        self.file = SqliteFile(path, SCHEMA, losses)

    async def add(self, record: AuditRecord) -> None:
        """Add a record (see ports.audit)."""
        actor = record.actor
        row = (
            record.at_ms,
            actor.user,
            actor.peer,
            actor.way.value,
            record.operation,
            json.dumps(record.parameters),
            record.error,
            record.explanation,
        )
        await self.file.write(ADD, [row])

    async def read(self, query: AuditQuery, count_max: int) -> Sequence[AuditRecord]:
        """Return the records that match a query (see ports.audit)."""
        asked = (query.since_ms, query.until_ms, query.user, query.operation, query.before)
        found = await self.file.rows(READ, (*asked, count_max))
        return [
            AuditRecord(
                at_ms,
                Actor(user, peer, Way(way)),
                operation,
                json.loads(parameters),
                error,
                explanation,
                number,
            )
            for number, at_ms, user, peer, way, operation, parameters, error, explanation in found
        ]

    async def forget(self, before_ms: int) -> None:
        """Delete records older than `before_ms` (see ports.audit)."""
        await self.file.write(FORGET, [(before_ms,)])

    async def close(self) -> None:
        """Close the file (see ports.audit)."""
        await self.file.close()
