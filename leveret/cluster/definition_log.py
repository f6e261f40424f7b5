"""The log of definitions: what a node makes its database of when it takes over.

    a record      one definition that has changed; a batch for each commit of the database
    header        `x-partition-key`, JSON: ["queues", "/", "orders"], a table and a natural key
    body          JSON: {"vhost": "/", "name": "orders", …}, the columns; empty if it was removed

The log is replicated as all others, and compacted by key. A change is written to the database once
it is committed here: so the database of the node that leads is never ahead of the cluster.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from leveret.errors import LeveretError, StorageError
from leveret.ports import Compaction, Retention
from leveret.ports.contents import decode_properties, encode_properties
from leveret.ports.records import RecordFlag
from leveret.storage.lineage import DEFINITIONS_LOG
from leveret.storage.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.ports import TopicLog, TopicStore
    from leveret.ports.records import Batch
    from leveret.storage.metadata import DefinitionKey, DefinitionRows, SqliteMetadataStore
    from leveret.storage.schema import Row, Table

__all__ = [
    "DefinitionLog",
    "open_definition_log",
    "share_definitions",
    "take_definitions",
]

# Nobody reads the log but from its beginning, so that tombstones need not stay for anybody.
DEFINITIONS_RETENTION = Retention(compaction=Compaction(tombstones_ms=60_000))
KEY_HEADER = "x-partition-key"
READ_BYTES = 1 << 20
BATCH_BYTES_MAX = 1 << 20
TABLES_BY_NAME = {table.name: table for table in TABLES.values()}


class DefinitionLog:
    """Writes changes of definitions to their log, and reads what they have come to.

    The log was just opened by the node that leads.
    """

    def __init__(self, log: TopicLog, wall_ms: Callable[[], int]) -> None:
        self._log = log
        self._wall_ms = wall_ms
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # until so much is committed
        log.on_commit(self._committed)
        log.on_failure(self._failed)

    async def append(self, changes: DefinitionRows) -> None:
        """Return once changes are committed. Raises StorageError."""
        for (kind, key), row in changes.items():
            self._add(TABLES[kind], key, row)
            if self._log.builder.size > BATCH_BYTES_MAX:
                self._write()
        self._write()
        if self._log.committed < self._log.end:
            end = asyncio.get_running_loop().create_future()
            self._waiting.append((self._log.end, end))
            await end

    def _add(self, table: Table, key: Row, row: Row | None) -> None:
        body = b"" if row is None else json.dumps(table.to_fields(row)).encode()
        named = {"headers": {KEY_HEADER: json.dumps([table.name, *key])}}
        header = encode_properties(named, len(body))
        flags = RecordFlag.PERSISTENT
        self._log.builder.add(flags, self._wall_ms(), b"", b"", header, body)

    def _write(self) -> None:
        try:
            if self._log.builder.count:
                self._log.append()
        except StorageError:
            self._log.builder.clear()
            raise

    def _committed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for stop, end in waiting:
            if stop > self._log.committed:
                self._waiting.append((stop, end))
            elif not end.done():
                end.set_result(None)

    def _failed(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for _, end in waiting:
            if not end.done():
                end.set_exception(error)

    async def rows(self) -> dict[DefinitionKey, Row]:
        """Return the rows of all definitions. Raises StorageError, CorruptBatchError."""
        found: dict[DefinitionKey, Row] = {}
        log = self._log
        for first, stop in log.settled.gaps(log.first, log.committed):
            offset = first
            while offset < stop:
                batches = log.read(offset, READ_BYTES)
                if batches is None:
                    batches = await log.fetch(offset, READ_BYTES)
                for batch in batches:
                    _take(found, batch)
                offset = batches[-1].stop_offset
                await asyncio.sleep(0)
        return found


def _take(found: dict[DefinitionKey, Row], batch: Batch) -> None:
    """Apply the changes of a batch. Raises StorageError."""
    for _, _, _, _, _, header, body in batch.records():
        try:
            name, *key = _key_in(header)
            table = TABLES_BY_NAME.get(name)
            if table is None:
                continue  # of a later release
            row = table.row_in(json.loads(body)) if body else None
        except (KeyError, TypeError, ValueError, LeveretError) as error:
            raise StorageError(
                f"the log of definitions holds one that this release cannot read ({error!r}): is "
                "another node of a later release? Then upgrade this one"
            ) from error
        if row is None:
            found.pop((table.kind, tuple(key)), None)
        else:
            found[table.kind, tuple(key)] = row


def _key_in(header: bytes) -> list[Any]:
    found: list[Any] = json.loads(decode_properties(header)["headers"][KEY_HEADER])
    return found


async def open_definition_log(topics: TopicStore) -> TopicLog:
    """Open the log. Raises StorageError."""
    await topics.recover([DEFINITIONS_LOG])
    return topics.open(*DEFINITIONS_LOG[:5], retention=DEFINITIONS_RETENTION)


async def share_definitions(metadata: SqliteMetadataStore, log: DefinitionLog) -> None:
    """Make the database what the log says, and have all its changes go through the log.

    The first node of a cluster has none in the log, but perhaps in its database: they become those
    of the cluster. Raises StorageError.
    """
    wanted: Mapping[DefinitionKey, Row] = await log.rows()
    if wanted:
        await metadata.replace(wanted)
    else:
        await log.append(await metadata.rows())
    metadata.write_ahead = log.append


async def take_definitions(metadata: SqliteMetadataStore, log: DefinitionLog) -> None:
    """Make the database what the log says, for a node that has left its cluster.

    Raises StorageError.
    """
    wanted = await log.rows()
    if wanted:
        await metadata.replace(wanted)
