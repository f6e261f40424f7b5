"""The node's stores: definitions, logs and their state, keys, usage, the audit log."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.config.storage import AcceptedLoss
from leveret.errors import StorageError
from leveret.ports.losses import LossKind
from leveret.storage.audit import SqliteAuditStore
from leveret.storage.files import RealFileSystem
from leveret.storage.held_files import HeldFiles
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.keyring import Keyring
from leveret.storage.lineage import (
    check_lineage,
    lineage_note,
    noted_changes,
    open_definitions,
    records_note,
)
from leveret.storage.losses import LossLedger
from leveret.storage.master_key import read_master_key
from leveret.storage.node_file import check_alone
from leveret.storage.snapshot import Snapshots, remove_snapshot
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from leveret.storage.usage import SqliteUsageStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.config import Configuration
    from leveret.node.process import Process
    from leveret.storage.lock import DirectoryLock
    from leveret.storage.metadata import SqliteMetadataStore
    from leveret.storage.sqlite_file import SqliteFile

__all__ = ["Stores", "open_stores"]

logger = logging.getLogger(__package__)


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
async def open_stores(process: Process, lock: DirectoryLock) -> AsyncIterator[Stores]:
    """Open all stores in the data directory, whose lock is `lock`. Raises LeveretError."""
    configuration = process.configuration
    data_dir = configuration.data_dir
    async with contextlib.AsyncExitStack() as stack:
        accept = AcceptedLoss.DEFINITIONS in configuration.accept_loss
        losses = LossLedger(RealFileSystem(), data_dir, process.clock.wall_ms, logger.error)
        before = losses.has(LossKind.DEFINITIONS)
        in_cluster = bool(configuration.cluster)
        if not in_cluster:
            check_alone(data_dir)
        metadata = await open_definitions(
            data_dir, process.spawn, losses, accept=accept, in_cluster=in_cluster
        )
        is_accepted = losses.has(LossKind.DEFINITIONS) is not before
        stack.push_async_callback(metadata.close)
        state = LmdbStateStore(data_dir / "state.lmdb", logger.warning)
        stack.callback(_close_state, state)
        check_lineage(
            metadata,
            state,
            configuration.database_path,
            losses,
            accept=accept,
            is_accepted=is_accepted,
        )
        keyring = _open_keyring(configuration)
        remove_snapshot(data_dir)
        files = HeldFiles()
        topics = _open_topics(process, state, lock, keyring, files, losses)
        metadata.on_change = lambda: topics.note(*lineage_note(metadata))
        stack.push_async_callback(topics.close)
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
    state: LmdbStateStore,
    lock: DirectoryLock,
    keyring: Keyring,
    files: HeldFiles,
    losses: LossLedger,
) -> FileTopicStore:
    configuration = process.configuration
    return FileTopicStore(
        configuration.data_dir,
        files,
        state,
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
        losses=losses,
        durability=configuration.durability,
    )
