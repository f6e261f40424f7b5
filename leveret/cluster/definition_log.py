"""The log of definitions: what a node makes its database of when it takes over.

    a record      one definition that has changed; a batch for each commit of the database, unless
                  it has more than BATCH_BYTES_MAX
    header        `x-partition-key`, JSON: ["queues", "/", "orders"], a table and a natural key
    body          JSON: {"vhost": "/", "name": "orders", …}, the columns; empty if it was removed

    ["complete"]  with body {}: all definitions of the first node were committed before this record

The log is replicated as all others, and compacted by key. A change is written to the database once
it is committed here: so the database of the node that leads is never ahead of the cluster. Only the
first node's is, until the log is complete: its first start may end at any moment before.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.errors import LeveretError, StorageError
from leveret.ports import Compaction, Retention
from leveret.ports.contents import decode_properties, encode_properties
from leveret.ports.partitioner import KEY_HEADER
from leveret.ports.records import RecordFlag
from leveret.storage.lineage import DEFINITIONS_LOG, DefinitionsLostError
from leveret.storage.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports import TopicLog, TopicStore
    from leveret.storage.metadata import DefinitionKey, DefinitionRows, SqliteMetadataStore
    from leveret.storage.schema import Row

__all__ = [
    "DefinitionLog",
    "open_definition_log",
    "share_definitions",
    "take_definitions",
]

# Nobody reads the log but from its beginning, so that tombstones need not stay for anybody.
DEFINITIONS_RETENTION = Retention(compaction=Compaction(tombstones_ms=60_000))
READ_BYTES = 1 << 20
# Of one batch, which is there as a whole or not at all: some ten thousand definitions, or several
# times as many that are removed. The log itself would write more than 16 MiB as several.
BATCH_BYTES_MAX = 8 << 20
ROWS_AT_ONCE = 500  # then other tasks run, the one that renews the lease among them
TABLES_BY_NAME = {table.name: table for table in TABLES.values()}
COMPLETE = "complete"  # in place of a table

SOME_DEFINITIONS = (
    "the log of definitions holds only some of the definitions of the first node of a cluster, "
    "whose first start in it was interrupted, and leveret.db, which had all of them, is empty: "
    "restore it from a backup, or from the file that was quarantined"
)


class LoggedDefinitions(NamedTuple):
    """Rows of definitions in a log; unless it `is_complete`, the first node has others."""

    rows: dict[DefinitionKey, Row]
    is_complete: bool


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
        """Return once changes are committed. Raises StorageError.

        Where that fails, or the process ends, the log has all of them or none; of those that need
        several batches it may have the first ones.
        """
        try:
            for number, ((kind, key), row) in enumerate(changes.items(), start=1):
                table = TABLES[kind]
                body = b"" if row is None else json.dumps(table.to_fields(row)).encode()
                self._add([table.name, *key], body)
                if self._log.builder.size > BATCH_BYTES_MAX:
                    self._write()
                if number % ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._write()
        except BaseException:
            self._log.builder.clear()  # the next changes are not to follow a part of these
            raise
        await self._until_committed()

    async def complete(self, changes: DefinitionRows) -> None:
        """Return once changes are committed, and the log is known to be complete with them.

        Raises StorageError.
        """
        await self.append(changes)
        self._add([COMPLETE], b"{}")
        self._write()
        await self._until_committed()

    async def _until_committed(self) -> None:
        """Return once all that was written is committed. Raises StorageError."""
        if self._log.committed < self._log.end:
            end = asyncio.get_running_loop().create_future()
            self._waiting.append((self._log.end, end))
            await end

    def _add(self, key: list[Any], body: bytes) -> None:
        named = {"headers": {KEY_HEADER: json.dumps(key)}}
        header = encode_properties(named, len(body))
        flags = RecordFlag.PERSISTENT
        self._log.builder.add(flags, self._wall_ms(), b"", b"", header, body)

    def _write(self) -> None:
        if self._log.builder.count:
            self._log.append()

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

    async def read(self) -> LoggedDefinitions:
        """Return what is committed. Raises StorageError, CorruptBatchError."""
        found: dict[DefinitionKey, Row] = {}
        is_complete = False
        log = self._log
        for first, stop in log.settled.gaps(log.first, log.committed):
            offset = first
            while offset < stop:
                batches = log.read(offset, READ_BYTES)
                if batches is None:
                    batches = await log.fetch(offset, READ_BYTES)
                for batch in batches:
                    for number, (*_, header, body) in enumerate(batch.records(), start=1):
                        is_complete |= _take(found, header, body)
                        if number % ROWS_AT_ONCE == 0:
                            await asyncio.sleep(0)
                offset = batches[-1].stop_offset
                await asyncio.sleep(0)
        return LoggedDefinitions(found, is_complete)


def _take(found: dict[DefinitionKey, Row], header: bytes, body: bytes) -> bool:
    """Apply the change of a record; return whether it says that the log is complete.

    Raises StorageError.
    """
    try:
        name, *key = _key_in(header)
        table = TABLES_BY_NAME.get(name)
        if table is None:  # of a later release, or none
            return bool(name == COMPLETE)
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
    return False


def _key_in(header: bytes) -> list[Any]:
    found: list[Any] = json.loads(decode_properties(header)["headers"][KEY_HEADER])
    return found


async def open_definition_log(topics: TopicStore) -> TopicLog:
    """Open the log. Raises StorageError."""
    await topics.recover([DEFINITIONS_LOG])
    return topics.open(*DEFINITIONS_LOG[:5], retention=DEFINITIONS_RETENTION)


async def share_definitions(metadata: SqliteMetadataStore, log: DefinitionLog) -> None:
    """Make the database what the log says, and have all its changes go through the log.

    The first node of a cluster has them in its database: they become those of the cluster. Until
    the log is complete the database counts, which alone has all. Raises StorageError,
    DefinitionsLostError.
    """
    logged = await log.read()
    if logged.is_complete:
        await metadata.replace(logged.rows)
    else:
        await _check_database(metadata, logged)
        rows = await metadata.rows()
        gone = dict.fromkeys(logged.rows.keys() - rows.keys())
        await log.complete(gone | rows)
    metadata.write_ahead = log.append


async def take_definitions(metadata: SqliteMetadataStore, log: DefinitionLog) -> None:
    """Make the database what the log says, for a node that has left its cluster.

    It stays as it is if the log is not complete. Raises StorageError, DefinitionsLostError.
    """
    logged = await log.read()
    if logged.is_complete:
        await metadata.replace(logged.rows)
    else:
        await _check_database(metadata, logged)


async def _check_database(metadata: SqliteMetadataStore, logged: LoggedDefinitions) -> None:
    """Raise DefinitionsLostError if the database is not the one of which the log has a part."""
    if logged.rows and await metadata.is_new():
        raise DefinitionsLostError(SOME_DEFINITIONS)
