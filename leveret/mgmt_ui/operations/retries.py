"""Operations on messages that wait to be tried again (see leveret.mgmt_ui.operations)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.routing.message import StoredMessage
from leveret.features import retry
from leveret.mgmt_ui.operations.shown import headers_of, integer, payload, properties

if TYPE_CHECKING:
    from leveret.core.queues.queue import Queue
    from leveret.core.waiting.room import Waiting
    from leveret.mgmt_ui.operations.administered import Administered, Operations, Parameters

__all__ = ["RETRIES"]

ROWS_MAX = 1000  # of one answer; whoever wants more asks for the next ones


async def _list(node: Administered, parameters: Parameters) -> dict[str, object]:
    topic = _queue(node, parameters).retry_topic
    limit = min(max(parameters["limit"], 1), ROWS_MAX)
    if topic is None:
        return {"rows": [], "after": None, "pending": 0}
    page = topic.room.scan(_after(parameters["after"]), None, limit)
    found = {record.offset: record for record in await topic.room.read([at for _, at in page])}
    return {
        "rows": [_row(found[offset]) for _, offset in page if offset in found],
        "after": list(page[-1]) if len(page) == limit else None,
        "pending": topic.pending_count,
    }


async def _show(node: Administered, parameters: Parameters) -> dict[str, object]:
    queue, id_ = _queue(node, parameters), parameters["id"]
    if queue.retry_topic is not None and id_.isascii() and id_.isdigit():
        for record in await queue.retry_topic.room.read([int(id_)]):
            told = properties(record.header, record.flags)
            return {**_row(record), **told, **payload(record.body)}
    raise AdministrationError("not_found", f"no message '{id_}' waits for queue '{queue.name}'")


async def _retry_now(node: Administered, parameters: Parameters) -> int:
    queue, offsets = _queue(node, parameters), _chosen(parameters)
    if queue.retry_topic is None:
        return 0
    count = await queue.retry_topic.bring_back(offsets)
    _tell(node, queue, "retries.brought_back", count)
    return count


async def _cancel(node: Administered, parameters: Parameters) -> int:
    queue, offsets = _queue(node, parameters), _chosen(parameters)
    if queue.retry_topic is None:
        return 0
    count = queue.retry_topic.cancel(offsets)
    _tell(node, queue, "retries.cancelled", count)
    return count


def _tell(node: Administered, queue: Queue, event: str, count: int) -> None:
    if node.redrives is not None:
        told = {"queue": queue.name, "vhost": queue.definition.vhost, "count": count}
        node.redrives.emit(event, told)


def _queue(node: Administered, parameters: Parameters) -> Queue:
    if node.redrives is None:
        raise AdministrationError("invalid", "no node runs here: only a running one has messages")
    return node.redrives.queue(parameters["vhost"], parameters["queue"])


def _chosen(parameters: Parameters) -> list[int] | None:
    """The offsets in the retry topic; None means all, which must be said."""
    ids = parameters["ids"]
    if parameters["all"] == bool(ids):
        raise AdministrationError("invalid", "state either ids, or that all are meant")
    if not all(id_.isascii() and id_.isdigit() and len(id_) < 20 for id_ in ids):
        raise AdministrationError("invalid", "an id is a number, as `retry list` shows it")
    return None if parameters["all"] else [int(id_) for id_ in ids]


def _after(value: object) -> tuple[int, int] | None:
    match value:
        case None:
            return None
        case [due_ms, offset]:
            return integer("after", due_ms), integer("after", offset)
    raise AdministrationError("invalid", "bad parameter 'after'")


def _row(record: Waiting) -> dict[str, object]:
    offset, due_ms, flags, exchange, routing_key, header, body = record
    noted = StoredMessage(exchange, routing_key, header, body, flags).headers
    first_at = noted.get(retry.FIRST_AT)
    return {
        "id": str(offset),
        "due_ms": due_ms,
        "retry_count": noted.get(retry.COUNT),
        "last_failure": noted.get(retry.REASON),
        "first_failure_at": int(first_at) if isinstance(first_at, int) else None,
        "exchange": exchange.decode(errors="replace"),
        "routing_key": routing_key.decode(errors="replace"),
        "payload_bytes": len(body),
        "headers": headers_of(header, flags),
    }


_QUEUE: Final = {"vhost": str, "queue": str}
_CHOSEN: Final = {**_QUEUE, "ids": list, "all": bool}
RETRIES: Final[Operations] = {
    "retry.list": (_list, {**_QUEUE, "limit": int, "after": object}),
    "retry.show": (_show, {**_QUEUE, "id": str}),
    "retry.retry_now": (_retry_now, _CHOSEN),
    "retry.cancel": (_cancel, _CHOSEN),
}
