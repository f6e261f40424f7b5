"""Copies of a cluster's definitions for backups: `leveret.db` as a node by itself would have it.

A cluster's node has an empty `leveret.db`, because the coordinator has its definitions. The copy in
a backup is that file, with the identity that the state store beside it has noted (see lineage), and
the cluster's definitions put into it: so a node by itself starts on what is restored.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from leveret.errors import StorageError
from leveret.ports.definitions import Definitions
from leveret.storage.metadata import SqliteMetadataStore
from leveret.storage.sqlite_file import make_private, read_only_uri

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from leveret.ports.definitions import ExchangeDefinition, QueueDefinition
    from leveret.storage.metadata import Spawn

__all__ = ["copy_definitions", "durable_only", "has_definitions"]

BUSY_SECONDS = 5.0


def durable_only(definitions: Definitions) -> Definitions:
    """Return what outlives a node by itself: no transient or exclusive queue, nothing of theirs."""
    exchanges = [each for each in definitions.exchanges if each.durable]
    queues = [
        each
        for each in definitions.queues
        if each.durable and not each.exclusive and each.home is None
    ]
    transient = _ends(definitions.exchanges, definitions.queues) - _ends(exchanges, queues)
    incarnations = {each.incarnation for each in queues}
    return replace(
        definitions,
        exchanges=exchanges,
        queues=queues,
        groups=[each for each in definitions.groups if each.queue in incarnations],
        bindings=[
            each
            for each in definitions.bindings
            if ("exchange", each.vhost, each.source) not in transient
            and (each.destination_type, each.vhost, each.destination) not in transient
        ],
    )


def _ends(
    exchanges: Iterable[ExchangeDefinition], queues: Iterable[QueueDefinition]
) -> set[tuple[str, str, str]]:
    """Return the ends of bindings by their type, virtual host and name."""
    return {
        *(("exchange", each.vhost, each.name) for each in exchanges),
        *(("queue", each.vhost, each.name) for each in queues),
    }


async def copy_definitions(
    definitions: Definitions, original: Path, made: Path, spawn: Spawn
) -> None:
    """Copy the database `original` to `made`, and put `definitions` into it. Raises StorageError.

    `made` does not exist yet. `spawn` starts a task.
    """
    await asyncio.to_thread(_copy, original, made)
    store = await SqliteMetadataStore.open(made, spawn, as_it_is=True)
    try:
        for field in fields(Definitions):
            each_of_kind: list[Any] = getattr(definitions, field.name)
            for definition in each_of_kind:
                store.put(definition)
        await store.flush()
    finally:
        await store.close()


def _copy(original: Path, made: Path) -> None:
    make_private(made)
    try:
        with (
            closing(sqlite3.connect(original, timeout=BUSY_SECONDS)) as source,
            closing(sqlite3.connect(made)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise StorageError(f"cannot copy {original}: {error}") from error


def has_definitions(path: Path) -> bool:
    """Return whether a database holds a virtual host, as that of every node that ran does.

    False where it is missing or no such database.
    """
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(read_only_uri(path), uri=True)) as database:
            return database.execute("SELECT 1 FROM vhosts").fetchone() is not None
    except sqlite3.Error:
        return False
