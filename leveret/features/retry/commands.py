"""Operations on messages that wait for a retry.

A list scans a bounded number of messages; `after` says where the next request continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from leveret.core.admin.commands import command, query
from leveret.core.admin.partition_lists import list_partitions
from leveret.core.admin.rights import READ_QUEUE
from leveret.core.admin.shown import headers_of, payload, properties
from leveret.core.definitions.administration import AdministrationError
from leveret.core.json_fields import plain
from leveret.features.dead_letter.commands import redrives_of
from leveret.features.delay.commands import ScheduleCriteria, cursor_of, filter_of
from leveret.features.delay.search import SCANNED_MAX, DelayedMessageSearch
from leveret.features.retry import rules as retry
from leveret.features.retry.retrying import RetryTopic

if TYPE_CHECKING:
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.queue import Queue
    from leveret.features.dead_letter.commands import DeadLetterNode
    from leveret.features.delay.search import Cursor, DelayedMessageFilter
    from leveret.features.delay.store import PendingMessage

ROWS_MAX = 1000  # of one answer; more need further requests


@query("retry.list", READ_QUEUE)
async def retry_list(
    node: DeadLetterNode,
    *,
    vhost: str,
    queue: str,
    id_: str | None = None,
    limit: int,
    after: Any = None,
    partition: int | None = None,
    **criteria: Unpack[ScheduleCriteria],
) -> dict[str, Any]:
    """Return the waiting messages, in the order in which they are due.

    Without a partition those of all are listed, one partition after the other.
    """
    whole, selection = redrives_of(node).whole(vhost, queue), filter_of(criteria)
    listed = list_partitions(whole, partition, after)
    counted = whole.partitions if listed.are_all else listed.parts
    topics = [part.extension(RetryTopic) for part in counted]
    pending = sum(topic.pending_count for topic in topics if topic is not None)
    page = _RetryRows(selection, min(max(limit, 1), ROWS_MAX))
    place = None
    for part, begin in listed:
        topic = part.extension(RetryTopic)
        if topic is None:
            continue
        if id_ is not None:
            await page.find(part, topic, _number(id_))
        elif (last := await page.fill(part, topic, cursor_of(begin))) is not None:
            place = listed.place(part.number, last)
            break
        elif page.is_spent:
            place = listed.behind(part)
            break
    return {"rows": page.rows, "after": place, "pending": pending}


class _RetryRows:
    """Rows of one answer, up to its limits."""

    def __init__(self, selection: DelayedMessageFilter, limit: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._selection = selection
        self._limit = limit
        self._scanned = 0

    @property
    def is_spent(self) -> bool:
        """Whether another request should go on."""
        return len(self.rows) >= self._limit or self._scanned >= SCANNED_MAX

    async def find(self, part: OpenQueue, topic: RetryTopic, offset: int) -> None:
        """Add the message at an offset of the retry topic, if it waits and is selected."""
        for record in await topic.store.read([offset]):
            if self._selection.has(record):
                self.rows.append(_row(part, record))

    async def fill(
        self, part: OpenQueue, topic: RetryTopic, begin: Cursor | None
    ) -> list[int] | None:
        """Add the messages of a partition; return where to continue in it, None at its end."""
        store = topic.store
        left = SCANNED_MAX - self._scanned
        search = DelayedMessageSearch(store, self._selection, begin, store.waits, left)
        async for found in search.found():
            for record in found[: self._limit - len(self.rows)]:
                self.rows.append(_row(part, record))
                last = [record.due_ms, record.offset]
            if len(self.rows) == self._limit:
                return last
        self._scanned += search.scanned
        return None if search.is_over or search.after is None else list(search.after)


@query("retry.show", READ_QUEUE)
async def retry_show(
    node: DeadLetterNode, *, vhost: str, queue: str, id_: str, partition: int | None = None
) -> dict[str, Any]:
    """Return one message with its properties and its payload."""
    holder = _queue(node, vhost, queue, partition)
    topic = holder.extension(RetryTopic)
    if topic is not None and id_.isascii() and id_.isdigit():
        for record in await topic.store.read([int(id_)]):
            told = properties(record.header, record.flags)
            return {**_row(holder, record), **told, **payload(record.body)}
    raise AdministrationError("not_found", f"no message '{id_}' waits for queue '{holder.name}'")


@command("retry.retry_now", READ_QUEUE)
async def retry_retry_now(
    node: DeadLetterNode,
    *,
    vhost: str,
    queue: str,
    ids: list[str],
    all_: bool,
    partition: int | None = None,
) -> int:
    """Retry messages now."""
    holder, offsets = _queue(node, vhost, queue, partition), _chosen(ids, every=all_)
    topic = holder.extension(RetryTopic)
    if topic is None:
        return 0
    count = await topic.bring_back(offsets)
    _tell(node, holder, "retries.brought_back", count)
    return count


@command("retry.cancel", READ_QUEUE)
async def retry_cancel(
    node: DeadLetterNode,
    *,
    vhost: str,
    queue: str,
    ids: list[str],
    all_: bool,
    partition: int | None = None,
) -> int:
    """Delete waiting messages; they are not dead-lettered."""
    holder, offsets = _queue(node, vhost, queue, partition), _chosen(ids, every=all_)
    topic = holder.extension(RetryTopic)
    if topic is None:
        return 0
    count = topic.cancel(offsets)
    await topic.store.settlements_safe()
    await holder.log.settlements_safe()
    _tell(node, holder, "retries.cancelled", count)
    return count


def _tell(node: DeadLetterNode, queue: Queue, event: str, count: int) -> None:
    if node.redrives is not None:
        told = {"queue": queue.name, "vhost": queue.definition.vhost, "count": count}
        node.redrives.emit(event, told)


def _queue(node: DeadLetterNode, vhost: str, name: str, partition: int | None) -> Queue:
    return redrives_of(node).queue(vhost, name, partition)


def _chosen(ids: list[str], *, every: bool) -> list[int] | None:
    """Return the chosen offsets in the retry topic; None for all, which must be explicit."""
    if every == bool(ids):
        raise AdministrationError("invalid", "state either ids, or that all are meant")
    return None if every else [_number(id_) for id_ in ids]


def _number(id_: str) -> int:
    """Return the offset in the retry topic for an id."""
    if not (id_.isascii() and id_.isdigit() and len(id_) < 20):
        raise AdministrationError("invalid", "an id is a number, as `retry list` shows it")
    return int(id_)


def _row(queue: OpenQueue, record: PendingMessage) -> dict[str, Any]:
    message = record.stored
    noted = message.headers
    first_at = noted.get(retry.FIRST_AT)
    return {
        **({} if queue.part_of is None else {"partition": queue.number}),
        "id": str(record.offset),
        "due_ms": record.due_ms,
        "retry_count": noted.get(retry.COUNT),
        "last_failure": noted.get(retry.REASON),
        "first_failure_at": int(first_at) * 1000 if isinstance(first_at, int) else None,
        "exchange": record.exchange.decode(errors="replace"),
        "routing_key": record.routing_key.decode(errors="replace"),
        "message_id": plain(message.property("message_id")),
        "payload_bytes": len(record.body),
        "headers": headers_of(record.header, record.flags),
    }
