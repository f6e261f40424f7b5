"""Operations for backups, and for logs whose queue was lost.

`leveret backup` itself copies the files of a snapshot.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.logs.internal_topics import INCARNATION
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.mgmt_ui.operations.context import not_running
from leveret.mgmt_ui.operations.topology import check_short, table_arguments, vhost_of
from leveret.ports.definitions import QueueDefinition
from leveret.storage.files import ReadOnlyFiles
from leveret.storage.orphans import Orphan, read_orphan

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters
    from leveret.storage.snapshot import Snapshots
    from leveret.storage.store import FileTopicStore

__all__ = ["BACKUP"]


def _snapshots(node: AdminContext) -> Snapshots:
    if node.snapshots is None:
        raise not_running()
    return node.snapshots


def _topics(node: AdminContext) -> FileTopicStore:
    if node.topics is None:
        raise not_running()
    return node.topics


async def _take(node: AdminContext, _: Parameters) -> str:
    """Take a snapshot; return its directory."""
    return str(await _snapshots(node).take())


async def _release(node: AdminContext, _: Parameters) -> None:
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


async def _list(node: AdminContext, _: Parameters) -> list[dict[str, Any]]:
    return [asdict(orphan) for orphan in await _orphans(node)]


async def _adopt(node: AdminContext, parameters: Parameters) -> int:
    """Adopt an orphaned log as a queue; return the number of its messages."""
    name, log = parameters["queue"], parameters["log"]
    check_short("a queue's name", name)
    orphan = next((each for each in await _orphans(node) if each.log == log), None)
    if orphan is None:
        raise AdministrationError(
            "not_found", f"no log '{log}' is without a queue: `leveret adopt` lists those that are"
        )
    if orphan.incarnation == INCARNATION:
        raise AdministrationError(
            "invalid",
            f"'{log}' is a topic of the broker's own and no queue's: it is found again by itself "
            "when its virtual host and its queue are there",
        )
    parameters = {**parameters, "vhost": parameters["vhost"] or orphan.vhost or ""}
    vhost = vhost_of(node, parameters)
    if vhost.find_queue(name) is not None:
        raise AdministrationError(
            "already_exists",
            f"queue '{name}' exists in vhost '{vhost.name}': adopt the log under another name, and "
            "move its messages with `leveret message move`",
        )
    arguments = table_arguments(parameters["arguments"])
    if parameters["type"] is not None:
        arguments.setdefault(QUEUE_TYPE, parameters["type"])
    definition = QueueDefinition(
        vhost.name,
        name,
        arguments=arguments,
        incarnation=orphan.incarnation,
        log_name=_log_name(orphan, vhost.name, name),
    )
    return vhost.adopt_queue(definition).message_count


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


BACKUP: Final[Operations] = {
    "snapshot.take": (_take, {}),
    "snapshot.release": (_release, {}),
    "orphan.list": (_list, {}),
    "orphan.adopt": (
        _adopt,
        {"log": str, "queue": str, "vhost": None, "type": None, "arguments": dict},
    ),
}
