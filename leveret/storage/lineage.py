"""Checks that definitions belong to the logs beside them; missing ones are not taken for empty.

A node whose definitions are gone, damaged, or older than its logs would let strangers in as guest,
and declare its queues anew beside the logs that hold their messages. So it does not start, unless
the operator accepts that loss by name.

    in the state store, big-endian: b"definitions"
     0  16 bytes   identity of the definitions (leveret.storage.schema)
    16  u64        how many changes of them were durable

    b"records/" + the name of a file of records, audit.db or usage.db
     0  u64        how many changes of it were durable
"""

from __future__ import annotations

import logging
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from leveret.errors import DiskFullError, StorageError
from leveret.ports import Durability, LogName
from leveret.ports.definitions import VhostDefinition
from leveret.ports.losses import Loss, LossKind
from leveret.storage.metadata import (
    ChangedDefinitionsError,
    DamagedDefinitionsError,
    SqliteMetadataStore,
)
from leveret.storage.names import log_key
from leveret.storage.sqlite_file import set_aside_database

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.ports import StateStore
    from leveret.storage.losses import LossLedger
    from leveret.storage.metadata import Spawn

__all__ = [
    "DEFINITIONS_LOG",
    "DefinitionsLostError",
    "check_lineage",
    "has_shared_definitions",
    "lineage_note",
    "noted_changes",
    "older_data",
    "older_than_noted",
    "open_copied_definitions",
    "open_definitions",
    "records_note",
    "refuse_without_definitions",
]

log = logging.getLogger(__name__)

# Log of the definitions of a cluster (cluster/definition_log.py). Beside it leveret.db is a copy.
DEFINITIONS_LOG = LogName("", "leveret.definitions", "cluster", 0, Durability.FSYNC)
KEY = b"definitions"
NOTE = struct.Struct(">16sQ")
RECORDS_PREFIX = b"records/"
CHANGES = struct.Struct(">Q")
FIRST_VHOST = "/"
# Files that a node creates beside its definitions, and only once it has them.
BESIDE = ("state.lmdb", "audit.db", "usage.db", "keyring.json", "leveret.db-wal")
# Files that exist only after the node was used: a first start that was killed has none of them.
USED = ("audit.db", "keyring.json")
ADVICE = (
    "Restore leveret.db from a backup; `leveret doctor` says more. Where there is no backup, start "
    "once with `leveret serve --accept-loss definitions`: {accepted}"
)
ANEW = (
    "a damaged file is quarantined, the node starts without users and queues, `leveret user add "
    "NAME --tag administrator` lets you in, and the logs stay for `leveret adopt`"
)
AS_IT_IS = (
    "the node takes the file as it is; logs whose queue is not defined in it stay for "
    "`leveret adopt`"
)


class DefinitionsLostError(StorageError):
    """Logs exist without definitions that belong to them."""


def older_data(data: Path) -> list[str]:
    """Return the names of files that earlier runs have left beside their definitions."""
    found = [name for name in BESIDE if (data / name).exists()]
    return found + _queue_logs(data)


def has_shared_definitions(data: Path) -> bool:
    """Whether the log of a cluster's definitions is there, of which leveret.db may lack the end.

    Without any leveret.db it does not count: what is there is half of a backup.
    """
    log_directory = data / "topics" / log_key(*DEFINITIONS_LOG[:4])
    return log_directory.exists() and (data / "leveret.db").exists()


def _queue_logs(data: Path) -> list[str]:
    """Return `topics/` if a log of a queue or virtual host exists; the node's own do not count.

    Logs that are being deleted do not count, either.
    """
    vhosts = (path for path in (data / "topics").glob("*") if path.name not in {".deleted", "%"})
    return ["topics/"] if any(next(vhost.glob("*/*/*.log"), None) for vhost in vhosts) else []


async def open_definitions(
    data: Path, spawn: Spawn, losses: LossLedger, *, accept: bool = False
) -> SqliteMetadataStore:
    """Open the definitions, or create them if nothing is lost by that.

    `accept`: begin anew where they are lost; the ledger notes it, and until that is acknowledged it
    is accepted only once. Raises DefinitionsLostError, StorageError; then nothing was changed.
    """
    path = data / "leveret.db"
    size = path.stat().st_size if path.exists() else None
    traces = [] if size else older_data(data)
    if traces:
        what = f"{path} is {'missing' if size is None else 'empty'}, but {_listed(traces)} there"
        return await _begin_anew(path, spawn, what, losses, accept=accept)
    try:
        store = await SqliteMetadataStore.open(path, spawn)
    except DamagedDefinitionsError as error:
        return await _begin_anew(path, spawn, str(error), losses, accept=accept)
    except ChangedDefinitionsError as error:
        what = f"{error}: an older one was put there, or the disk has changed it"
        _accept(what, AS_IT_IS, path, losses, accept=accept)
        return await SqliteMetadataStore.open(path, spawn, as_it_is=True)
    traces = [name for name in older_data(data) if name in USED or name == "topics/"]
    if traces and await store.is_new():
        what = f"{path} holds no definitions, but {_listed(traces)} there"
        try:
            _accept(what, ANEW, path, losses, accept=accept)
        except BaseException:
            await store.close()
            raise
        await _without_guest(store)
    return store


async def open_copied_definitions(data: Path, spawn: Spawn) -> SqliteMetadataStore:
    """Open definitions that are a copy of those in the log of a cluster's.

    Damaged ones are quarantined. Raises StorageError.
    """
    path = data / "leveret.db"
    try:
        return await SqliteMetadataStore.open(path, spawn, as_it_is=True)
    except DamagedDefinitionsError as error:
        aside = set_aside_database(path)
        log.warning("%s; it was quarantined as %s, and is made anew from the log", error, aside)
        return await SqliteMetadataStore.open(path, spawn, as_it_is=True)


def refuse_without_definitions(data: Path) -> None:
    """Raise DefinitionsLostError if there are logs of queues, for one who has no definitions."""
    if _queue_logs(data):
        raise DefinitionsLostError(
            f"{data} holds logs of queues, and no definitions, nor has the cluster any. "
            + ADVICE.format(accepted=ANEW)
        )


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


async def _begin_anew(
    path: Path, spawn: Spawn, what: str, losses: LossLedger, *, accept: bool
) -> SqliteMetadataStore:
    _accept(what, ANEW, path, losses, accept=accept)
    aside = set_aside_database(path)
    if aside is not None:
        log.error("%s was quarantined as %s", path, aside)
    store = await SqliteMetadataStore.open(path, spawn, as_it_is=True)
    await _without_guest(store)
    return store


async def _without_guest(store: SqliteMetadataStore) -> None:
    """Create the first virtual host without users: no guest beside older data."""
    store.put(VhostDefinition(FIRST_VHOST))
    await store.flush()


def _accept(what: str, accepted: str, path: Path, losses: LossLedger, *, accept: bool) -> None:
    """Accept a loss of definitions, log and record it. Raises DefinitionsLostError."""
    if not accept:
        raise DefinitionsLostError(f"{what}. {ADVICE.format(accepted=accepted)}")
    before = losses.has(LossKind.DEFINITIONS)
    if before is not None:
        raise DefinitionsLostError(
            f"{what}. Such a loss was accepted before and is not acknowledged, and accepting it "
            f"works once: `leveret loss acknowledge {before.number}`, and start again. Take "
            "accept_loss out of the settings when the node runs"
        )
    log.error("%s. That was accepted: %s", what, accepted)
    losses.note(Loss(LossKind.DEFINITIONS, str(path), f"{what}; accepted by the operator"))


def check_lineage(
    metadata: SqliteMetadataStore,
    state: StateStore,
    path: Path,
    losses: LossLedger,
    *,
    accept: bool = False,
    is_accepted: bool = False,
) -> None:
    """Compare definitions with what the state store has noted of them, and update the note.

    `is_accepted`: their loss was, in this start. Raises DefinitionsLostError, StorageError.
    """
    if state.get(KEY) is None and metadata.changes:
        log.warning(
            "the state store beside %s is new, while definitions and logs are older: all logs are "
            "read, and whether files of theirs are missing at the end cannot be told",
            path,
        )
    what = older_than_noted(state, metadata.identity, metadata.changes)
    if what is not None and not is_accepted:
        _accept(f"{path} {what}", AS_IT_IS, path, losses, accept=accept)
    with suppress(DiskFullError):  # it is noted with the next change
        state.write([lineage_note(metadata)], durable=True)


def older_than_noted(state: StateStore, identity: bytes, changes: int) -> str | None:
    """Return in words how definitions are older than the logs beside them; None if they are not."""
    noted = state.get(KEY)
    if noted is None or len(noted) != NOTE.size:
        return None
    identity_noted, changes_noted = NOTE.unpack(noted)
    if identity != identity_noted:
        return "is not the file that belongs to the logs beside it"
    if changes < changes_noted:
        missing = changes_noted - changes
        return f"is older than the logs beside it: it lacks its last {missing} changes"
    return None


def noted_changes(state: StateStore, name: str) -> int:
    """Return the number of changes noted of a file of records."""
    noted = state.get(RECORDS_PREFIX + name.encode())
    return 0 if noted is None or len(noted) != CHANGES.size else int(CHANGES.unpack(noted)[0])


def records_note(name: str, changes: int) -> tuple[bytes, bytes]:
    """Return key and value that note a file of records in the state store."""
    return RECORDS_PREFIX + name.encode(), CHANGES.pack(changes)


def lineage_note(metadata: SqliteMetadataStore) -> tuple[bytes, bytes]:
    """Return key and value that note the current definitions in the state store."""
    return KEY, NOTE.pack(metadata.identity, metadata.changes)
