"""The node's stores: definitions, logs and their state, keys, usage, the audit log."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from leveret.config.storage import AcceptedLoss
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.losses import LossKind
from leveret.storage.audit import SqliteAuditStore
from leveret.storage.files import RealFileSystem
from leveret.storage.held_files import HeldFiles
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.keyring import Keyring
from leveret.storage.lineage import (
    DEFINITIONS_LOG,
    DefinitionsLostError,
    check_lineage,
    has_shared_definitions,
    lineage_note,
    noted_changes,
    open_copied_definitions,
    open_definitions,
    records_note,
    refuse_without_definitions,
)
from leveret.storage.losses import LossLedger
from leveret.storage.master_key import read_master_key
from leveret.storage.names import TRASH, log_key
from leveret.storage.replica_notes import forget_replica
from leveret.storage.snapshot import Snapshots, remove_snapshot
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from leveret.storage.usage import SqliteUsageStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.config import Configuration
    from leveret.node.process import Process
    from leveret.storage.led_logs import LedLogs
    from leveret.storage.lock import DirectoryLock
    from leveret.storage.metadata import SqliteMetadataStore
    from leveret.storage.sqlite_file import SqliteFile
    from leveret.storage.threads import StorageThreads

__all__ = ["Databases", "LedShard", "Stores", "open_databases", "open_stores"]

logger = logging.getLogger(__package__)

DAMAGED_DEFINITIONS = (
    "the log of definitions in {} is damaged ({}): begin with another node's copy, or a backup. "
    "Where there is none, start once with `leveret serve --accept-loss definitions`: the node has "
    "the definitions of the time when it led last"
)


@dataclass(frozen=True, slots=True)
class Databases:
    """Databases that a node has open whether it leads or follows, and its known losses.

    Who follows has the definitions of the time when it led last.
    """

    metadata: SqliteMetadataStore
    state: LmdbStateStore
    losses: LossLedger


class LedShard(NamedTuple):
    """The shard that this node leads: its epoch, the logs as replication reads and commits them.

    `threads` are those of the logs.
    """

    epoch: int
    led_logs: LedLogs
    threads: StorageThreads


@dataclass(frozen=True, slots=True)
class Stores:
    """Open stores, usable until `open_stores` is left."""

    metadata: SqliteMetadataStore
    state: LmdbStateStore
    topics: FileTopicStore
    snapshots: Snapshots
    encryption: KeyAdministration
    usage: SqliteUsageStore
    audit: SqliteAuditStore
    losses: LossLedger


@contextlib.asynccontextmanager
async def open_databases(process: Process, *, is_member: bool = False) -> AsyncIterator[Databases]:
    """Open what a node has open whatever it does. Raises LeveretError.

    The definitions of one that `is_member` of a cluster, or was one, are a copy of those in the
    cluster's log.
    """
    configuration = process.configuration
    data_dir = configuration.data_dir
    losses = LossLedger(RealFileSystem(), data_dir, process.clock.wall_ms, logger.error)
    accept = AcceptedLoss.DEFINITIONS in configuration.accept_loss
    before = losses.has(LossKind.DEFINITIONS)
    is_copy = is_member or has_shared_definitions(data_dir)
    async with contextlib.AsyncExitStack() as stack:
        if is_copy:
            metadata = await open_copied_definitions(data_dir, process.spawn)
        else:
            metadata = await open_definitions(data_dir, process.spawn, losses, accept=accept)
        is_accepted = losses.has(LossKind.DEFINITIONS) is not before
        stack.push_async_callback(metadata.close)
        state = LmdbStateStore(data_dir / "state.lmdb", logger.warning)
        stack.callback(_close_state, state)
        if not is_copy:
            check_lineage(
                metadata,
                state,
                configuration.database_path,
                losses,
                accept=accept,
                is_accepted=is_accepted,
            )
        yield Databases(metadata, state, losses)


@contextlib.asynccontextmanager
async def open_stores(
    process: Process, lock: DirectoryLock, databases: Databases, led: LedShard | None = None
) -> AsyncIterator[Stores]:
    """Open all stores in the data directory, whose lock is `lock`. Raises LeveretError."""
    configuration = process.configuration
    data_dir = configuration.data_dir
    metadata, state, losses = databases.metadata, databases.state, databases.losses
    async with contextlib.AsyncExitStack() as stack:
        keyring = _open_keyring(configuration)
        if led is not None and keyring.vhosts:
            raise StorageError(
                f"virtual hosts are encrypted ({', '.join(keyring.vhosts)}) with keys of this node "
                "only, which the other nodes of a cluster lack: such a node cannot be a member"
            )
        remove_snapshot(data_dir)
        files = HeldFiles()
        topics = _open_topics(process, databases, lock, keyring, files, led)
        metadata.on_change = lambda: topics.note(*lineage_note(metadata))
        stack.push_async_callback(topics.close)
        if led is not None:
            await _share_definitions(process, metadata, topics)
            stack.push_async_callback(metadata.flush)  # while its log is open
        elif has_shared_definitions(data_dir):
            await _take_definitions(process, databases, topics)
        snapshots = Snapshots(data_dir, topics, files)
        encryption = KeyAdministration(
            keyring, RealFileSystem(), data_dir, process.clock.wall_ms, topics.use_key_of
        )
        usage = SqliteUsageStore(data_dir / "usage.db", losses)
        stack.push_async_callback(usage.close)
        audit = SqliteAuditStore(data_dir / "audit.db", losses)
        stack.push_async_callback(audit.close)
        await _check_records("usage.db", usage.file, state, topics)
        await _check_records("audit.db", audit.file, state, topics)
        yield Stores(metadata, state, topics, snapshots, encryption, usage, audit, losses)


async def _share_definitions(
    process: Process, metadata: SqliteMetadataStore, topics: FileTopicStore
) -> None:
    """Make the definitions those of the cluster, in whose log they are. Raises StorageError."""
    from leveret.cluster.definition_log import (  # noqa: PLC0415  # only in a cluster
        DefinitionLog,
        open_definition_log,
        share_definitions,
    )

    log = await open_definition_log(topics)
    if not log.end and await metadata.is_new():
        refuse_without_definitions(process.configuration.data_dir)
    await share_definitions(metadata, DefinitionLog(log, process.clock.wall_ms))


async def _take_definitions(process: Process, databases: Databases, topics: FileTopicStore) -> None:
    """Make the definitions of a cluster that this node was in its own, and delete their log.

    From then on the node changes them without the log. If that is damaged, they are as they were
    when the node led last, where the operator accepts that loss. Raises DefinitionsLostError,
    StorageError.
    """
    from leveret.cluster.definition_log import (  # noqa: PLC0415  # only after a cluster
        DefinitionLog,
        open_definition_log,
        take_definitions,
    )

    metadata, data_dir = databases.metadata, process.configuration.data_dir
    known = len(databases.losses.unacknowledged)
    log = await open_definition_log(topics)
    damage = "a part of it was lost" if len(databases.losses.unacknowledged) > known else ""
    try:
        if not damage:
            await take_definitions(metadata, DefinitionLog(log, process.clock.wall_ms))
    except CorruptBatchError as error:
        damage = str(error)
    if damage and AcceptedLoss.DEFINITIONS not in process.configuration.accept_loss:
        raise DefinitionsLostError(DAMAGED_DEFINITIONS.format(data_dir, damage))
    if await metadata.is_new():
        refuse_without_definitions(data_dir)
    databases.state.write([lineage_note(metadata)], durable=True)
    forget_replica(databases.state)
    logger.warning("this node was in a cluster: what it has copied is its own from now on")
    await log.delete()
    gone = data_dir / "topics" / log_key(*DEFINITIONS_LOG[:4])
    for directory in (gone.parent, gone.parent.parent, data_dir / "topics" / TRASH):
        with contextlib.suppress(FileNotFoundError):  # or it would be taken again one day
            RealFileSystem().sync_directory(directory)


async def _check_records(
    name: str, file: SqliteFile, state: LmdbStateStore, topics: FileTopicStore
) -> None:
    """Check that a file of records is complete, and note its further growth."""
    await file.check(noted_changes(state, name))
    file.on_change = lambda changes: topics.note(*records_note(name, changes))
    file.on_change(file.changes)


def _close_state(state: LmdbStateStore) -> None:
    try:
        state.close()
    except StorageError as error:
        logger.warning("%s; the logs have it, and the next start takes longer", error)


def _open_keyring(configuration: Configuration) -> Keyring:
    """Return the keyring. Raises StorageError unless its keys can be unwrapped."""
    master = read_master_key(
        configuration.encryption_key_file, configuration.encryption_key.get_secret_value()
    )
    keyring = Keyring(RealFileSystem(), configuration.data_dir, master)
    keyring.require_master()
    return keyring


def _open_topics(  # noqa: PLR0917  # a node has one of each
    process: Process,
    databases: Databases,
    lock: DirectoryLock,
    keyring: Keyring,
    files: HeldFiles,
    led: LedShard | None,
) -> FileTopicStore:
    configuration = process.configuration
    return FileTopicStore(
        configuration.data_dir,
        files,
        databases.state,
        process.loop,
        clock=process.clock,
        limits=StorageLimits(
            segment_bytes_max=configuration.segment_bytes_max,
            open_segments_max=configuration.open_segments_max,
            tail_cache_bytes_max=configuration.tail_cache_bytes_max,
            settle_flush_interval_ms=configuration.settle_flush_interval_ms,
            compaction_bytes_per_s=configuration.compaction_bytes_per_s,
            compaction_map_bytes_max=configuration.compaction_map_bytes_max,
        ),
        lock=lock,
        keyring=keyring,
        losses=databases.losses,
        durability=configuration.durability,
        **({} if led is None else led._asdict()),
    )
