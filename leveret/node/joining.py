"""`leveret cluster join`: the data directory of a node by itself becomes the first of a cluster.

Its definitions are written to the coordinator, each partition with this node as its only replica,
which has everything; the logs stay as they are. The cluster must have no definitions yet. If it is
interrupted, `JOINING_KEY` keeps nodes from starting until it is run again, to its end.

The file with the definitions is kept under another name: a cluster's nodes have none of their own.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.clustering.definitions.placing import PartitionPlacing
from leveret.clustering.side_logs import side_log_names
from leveret.errors import LeveretError, StorageError
from leveret.node.cluster import JOINING_KEY, open_cluster
from leveret.node.process import Process
from leveret.ports.coordination import CoordinatorError, KeyChange
from leveret.ports.definitions import QueueDefinition
from leveret.replication.cluster_definitions import DEFINITIONS_PREFIX, ClusterDefinitions
from leveret.storage.files import RealFileSystem, storage_error
from leveret.storage.lineage import check_lineage, lineage_note, open_definitions
from leveret.storage.lock import DirectoryLock
from leveret.storage.losses import LossLedger
from leveret.storage.metadata import SqliteMetadataStore
from leveret.storage.names import log_key
from leveret.storage.node_file import FILE_NAME
from leveret.storage.schema import TABLES
from leveret.storage.state import LmdbStateStore

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.config import Configuration
    from leveret.node.cluster import ClusterMembership
    from leveret.ports.definitions import Definitions

__all__ = ["JoinedCluster", "join_cluster"]

logger = logging.getLogger(__package__)

CONTROLLER_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.02
SUFFIX: Final = ".before-cluster"
JOURNALS: Final = ("-wal", "-shm", "")  # the database last: without it the others mean nothing


class JoinedCluster(NamedTuple):
    """Numbers of what has come into the cluster."""

    cluster: str
    queues: int
    users: int
    vhosts: int


def join_cluster(configuration: Configuration) -> JoinedCluster:
    """Make the data directory, whose node is stopped, the first of a cluster. Raises LeveretError.

    The settings are those with which the node is to be started.
    """
    try:
        return asyncio.run(_run(configuration))
    except* LeveretError as errors:
        failure: BaseException = errors
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None


async def _run(configuration: Configuration) -> JoinedCluster:
    data = configuration.data_dir
    if not (data / "leveret.db").exists() and not _aside(data).exists():
        raise StorageError(f"{data} is no data directory of a node")
    with DirectoryLock(data):
        async with asyncio.TaskGroup() as tasks:
            process = Process(configuration, tasks)
            definitions = await _read(process)
            was_alone = not (data / FILE_NAME).exists()
            try:
                async with open_cluster(process, joins=True) as membership:
                    joined = await _join(process, membership, definitions, was_alone=was_alone)
            except LeveretError:
                if was_alone and not process.stopping.is_set():
                    (data / FILE_NAME).unlink(missing_ok=True)  # it may go on by itself
                raise
            process.cancel_tasks()
    return joined


def _aside(data: Path) -> Path:
    return data / f"leveret.db{SUFFIX}"


async def _read(process: Process) -> Definitions:
    """Return the definitions of the directory, in whichever file they are."""
    data = process.configuration.data_dir
    aside = _aside(data)
    if aside.exists():  # an earlier attempt has come that far
        store = await SqliteMetadataStore.open(aside, process.spawn)
    else:
        losses = LossLedger(RealFileSystem(), data, process.clock.wall_ms, logger.error)
        store = await open_definitions(data, process.spawn, losses)
    try:
        if not aside.exists():
            state = LmdbStateStore(data / "state.lmdb", logger.warning)
            try:
                check_lineage(store, state, data / "leveret.db", losses)
            finally:
                state.close()
            if await store.is_new():
                raise StorageError(
                    f"{data} has no definitions: a new node needs no join, start it with --cluster"
                )
        return await store.load()
    finally:
        await store.close()


async def _join(
    process: Process,
    membership: ClusterMembership,
    definitions: Definitions,
    *,
    was_alone: bool,
) -> JoinedCluster:
    coordinator = membership.coordinator
    directory = str(membership.node).encode()
    held = coordinator.entries.get(JOINING_KEY)
    if held is None:
        await _refuse_others(membership, is_new=was_alone)
        await _become_controller(membership)
        await coordinator.write_as_controller([KeyChange(JOINING_KEY, directory, 0)])
    else:
        await _become_controller(membership)
    process.stopping.set()  # from now on there is no way back
    store = ClusterDefinitions(coordinator, process.spawn)
    # Nobody else is there, so that each partition has one replica, here.
    topics = process.configuration.data_dir / "topics"
    store.companions = PartitionPlacing(coordinator, lambda _: 1, partial(_side_logs, topics))
    for table in TABLES.values():
        for definition in getattr(definitions, table.name):
            assert not isinstance(definition, QueueDefinition) or definition.home is None
            store.put(definition)
    await store.flush()
    await _set_definitions_aside(process)
    await coordinator.write_as_controller([KeyChange(JOINING_KEY, None)])
    return JoinedCluster(
        coordinator.cluster_id,
        len(definitions.queues),
        len(definitions.users),
        len(definitions.vhosts),
    )


def _side_logs(topics: Path, queue: QueueDefinition, number: int) -> frozenset[str]:
    """Return the side logs that a partition has in a directory of topics."""
    names = side_log_names(queue.topic, number)
    return frozenset(
        name
        for name in names
        if (topics / log_key(queue.vhost, name, queue.incarnation, 0)).is_dir()
    )


async def _refuse_others(membership: ClusterMembership, *, is_new: bool) -> None:
    """Raise LeveretError unless the cluster is empty; leave no trace of this node then."""
    coordinator = membership.coordinator
    others = [node for node in coordinator.nodes if node != membership.node]
    has_definitions = next(coordinator.entries.keys(DEFINITIONS_PREFIX), None) is not None
    if not others and not has_definitions:
        return
    if is_new:
        await membership.forget_directory()
    raise LeveretError(
        "the cluster has definitions of its own already: name a new path of ZooKeeper"
        if has_definitions
        else f"node {others[0]} runs in the cluster: stop it until this one has joined"
    )


async def _become_controller(membership: ClusterMembership) -> None:
    try:
        async with asyncio.timeout(CONTROLLER_SECONDS_MAX):
            while not membership.coordinator.is_controller:  # noqa: ASYNC110  # once
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise CoordinatorError(
            "this node is not elected as the controller of the cluster: try again"
        ) from None


async def _set_definitions_aside(process: Process) -> None:
    """Leave the directory as that of a cluster's node: with an empty file of definitions."""
    data = process.configuration.data_dir
    path, aside = data / "leveret.db", _aside(data)
    try:
        if not aside.exists():
            for suffix in JOURNALS:
                part = path.with_name(path.name + suffix)
                if part.exists():
                    part.rename(aside.with_name(aside.name + suffix))
            RealFileSystem().sync_directory(data)
    except OSError as error:
        raise storage_error("rename", path, error) from error
    store = await SqliteMetadataStore.open(path, process.spawn)
    try:
        state = LmdbStateStore(data / "state.lmdb", logger.warning)
        try:
            state.write([lineage_note(store)], durable=True)
        finally:
            state.close()
    finally:
        await store.close()
