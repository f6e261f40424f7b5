"""Operations for backups, and for logs whose queue was lost.

`leveret backup` itself copies the files of a snapshot.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import not_running, vhost_of
from leveret.core.admin.shown import check_short
from leveret.core.definitions.administration import AdministrationError
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.core.settings.partitioning import PARTITIONS
from leveret.mgmt_ui.operations.topology import broker_of, table_arguments
from leveret.ports.definitions import PartitionLayout, QueueDefinition, is_internal
from leveret.storage.files import ReadOnlyFiles
from leveret.storage.orphans import Orphan, read_orphan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.storage.snapshot import Snapshots
    from leveret.storage.store import FileTopicStore


def _snapshots(node: AdminContext) -> Snapshots:
    if node.snapshots is None:
        raise not_running()
    return node.snapshots


def _topics(node: AdminContext) -> FileTopicStore:
    if node.topics is None:
        raise not_running()
    return node.topics


@command("snapshot.take")
async def snapshot_take(node: AdminContext) -> str:
    """Take a snapshot; return its directory."""
    return str(await _snapshots(node).take())


@command("snapshot.release")
async def snapshot_release(node: AdminContext) -> None:
    """Release the snapshot, so that its files may be deleted."""
    await _snapshots(node).release()


async def _orphans(node: AdminContext) -> list[Orphan]:
    topics = _topics(node)
    paths = topics.orphans()

    def read() -> list[Orphan]:
        files = ReadOnlyFiles()
        return [read_orphan(files, topics.directory, path) for path in paths]

    try:
        return await asyncio.to_thread(read)
    except OSError as error:
        text = f"cannot look at the logs in {topics.directory}: {error.strerror}"
        raise AdministrationError("storage", text) from error


@query("orphan.list")
async def orphan_list(node: AdminContext) -> list[dict[str, Any]]:
    """Return the logs without a queue."""
    return [asdict(orphan) for orphan in await _orphans(node)]


@command("orphan.adopt")
async def orphan_adopt(
    node: AdminContext,
    *,
    log: str,
    queue: str,
    vhost: str | None = None,
    type_: str | None = None,
    arguments: dict[str, Any],
) -> int:
    """Adopt an orphaned log, with the partitions beside it, as a queue.

    Returns the number of its messages.
    """
    check_short("a queue's name", queue)
    orphans = await _orphans(node)
    orphan = next((each for each in orphans if each.log == log), None)
    if orphan is None:
        raise _has_queue(log)
    if is_internal(orphan.incarnation):
        raise AdministrationError(
            "invalid",
            f"'{log}' is a topic of the broker's own and no queue's: its virtual host "
            "was deleted, or its definition lost: `leveret dump` shows what it holds",
        )
    found = _vhost_without(node, vhost or orphan.vhost or "", queue)
    table = table_arguments(arguments)
    if type_ is not None:
        table.setdefault(QUEUE_TYPE, type_)
    numbers = _partitions(orphan, orphans)
    layout = None
    if numbers != [0]:
        table.setdefault(PARTITIONS, len(numbers))
        layout = PartitionLayout(tuple(numbers), (), numbers[-1] + 1)
    definition = QueueDefinition(
        found.name,
        queue,
        arguments=table,
        incarnation=orphan.incarnation,
        log_name=_log_name(orphan, found.name, queue),
        layout=layout,
    )
    await broker_of(node).recover_queue(definition)
    # Meanwhile another command may have come first.
    found = _vhost_without(node, found.name, queue)
    topics = _topics(node)
    if topics.directory / log not in topics.orphans():
        raise _has_queue(log)
    return found.adopt_queue(definition).message_count


def _has_queue(log: str) -> AdministrationError:
    return AdministrationError(
        "not_found", f"no log '{log}' is without a queue: `leveret adopt` lists those that are"
    )


def _vhost_without(node: AdminContext, name: str, queue: str) -> Vhost:
    """Return a virtual host that has no queue of a name. Raises AdministrationError."""
    vhost = vhost_of(node, name)
    if vhost.find_queue(queue) is not None:
        raise AdministrationError(
            "already_exists",
            f"queue '{queue}' exists in vhost '{name}': adopt the log under another name, "
            "and move its messages with `leveret message move`",
        )
    return vhost


def _partitions(orphan: Orphan, orphans: Sequence[Orphan]) -> list[int]:
    """Return the numbers of the partitions that lie beside an orphaned one, itself included."""
    topic = orphan.log.rpartition("/")[0]
    places = (each.log.rpartition("/") for each in orphans)
    return sorted(int(number) for beside, _, number in places if beside == topic)


def _log_name(orphan: Orphan, vhost: str, queue: str) -> str:
    """Return the topic name of the log, empty if it is the queue's. AdministrationError."""
    topic = queue if orphan.topic is None else orphan.topic
    if not orphan.is_of(vhost, topic):
        text = "the queue's name was too long to be written whole: adopt it under that very name"
        if orphan.topic is not None:
            of = "another" if orphan.vhost is None else f"'{orphan.vhost}'"
            text = f"the log is of vhost {of}: name that, and make it again if it is gone"
        raise AdministrationError("invalid", text)
    return "" if topic == queue else topic
