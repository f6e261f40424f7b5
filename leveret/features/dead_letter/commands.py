"""Operations on dead letters (see leveret.features.dead_letter).

A message must match all of `offsets`, `message_ids`, `reason`, `source`, `headers`, `since` and
`until` that are given; times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode
from leveret.core.admin.partition_lists import list_partitions
from leveret.core.admin.rights import READ_QUEUE
from leveret.core.admin.shown import headers_of, integer, payload, properties
from leveret.core.definitions.administration import AdministrationError
from leveret.features.dead_letter import scan
from leveret.features.dead_letter.redrive import Target
from leveret.features.dead_letter.redrive_rules import RATE_MAX, DeadLetterFilter

if TYPE_CHECKING:
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.queue import Queue
    from leveret.features.dead_letter.redrive import Redrive, Redrives
    from leveret.features.dead_letter.scan import StoredDeadLetter

ROWS_MAX = 1000  # of one answer; more need further requests
HEADERS_MAX = 100
IDS_MAX = 10_000


class DeadLetterNode(AdminNode, Protocol):
    """Parts of a node that commands on dead letters and retries use."""

    @property
    def redrives(self) -> Redrives | None:
        """Redrives of a running node, else None."""
        ...


class DeadLetterSelection(TypedDict):
    """Parameters that select messages."""

    offsets: Any  # a list of numbers
    message_ids: list[str]
    reason: str | None
    source: str | None
    headers: dict[str, Any]
    since: Any
    until: Any


@query("dlq.list", READ_QUEUE)
async def dlq_list(
    node: DeadLetterNode,
    *,
    vhost: str,
    queue: str,
    limit: int,
    after: Any = None,
    partition: int | None = None,
    **selection: Unpack[DeadLetterSelection],
) -> dict[str, Any]:
    """Return dead letters, the oldest first, and the counts of the queue.

    Without a partition those of all are listed, one partition after the other.
    """
    whole, criteria = redrives_of(node).whole(vhost, queue), _filter(selection)
    listed = list_partitions(whole, partition, after)
    limit = min(max(limit, 1), ROWS_MAX)
    rows: list[dict[str, Any]] = []
    for part, begin in listed:
        first = part.log.first if begin is None else integer("after", begin) + 1
        async for found in scan.scan(part, criteria, first, part.log.committed):
            rows += [_row(part, letter) for letter in found[: limit + 1 - len(rows)]]
            if len(rows) > limit:
                break
        if len(rows) > limit:
            break
    more, rows = len(rows) > limit, rows[:limit]
    counted = whole if listed.are_all else listed.parts[0]
    return {
        "rows": rows,
        "after": listed.place(rows[-1].get("partition", 0), rows[-1]["offset"]) if more else None,
        "ready": counted.message_count,
        "unacknowledged": counted.leased_count,
    }


@query("dlq.show", READ_QUEUE)
async def dlq_show(
    node: DeadLetterNode, *, vhost: str, queue: str, offset: int, partition: int | None = None
) -> dict[str, Any]:
    """Return one message with its properties and its payload."""
    found_in, offset = _queue(node, vhost, queue, partition), integer("offset", offset)
    behind = min(offset + 1, found_in.log.committed)
    async for found in scan.scan(found_in, DeadLetterFilter(), offset, behind):
        for letter in found:
            return {
                **_row(found_in, letter),
                **properties(letter.header, letter.flags),
                **payload(letter.body),
            }
    raise AdministrationError("not_found", f"no message {offset} in queue '{found_in.name}'")


@command("dlq.redrive", READ_QUEUE)
async def dlq_redrive(
    node: DeadLetterNode,
    *,
    vhost: str,
    queue: str,
    exchange: str | None = None,
    routing_key: str | None = None,
    routed: bool,
    rate: Any = None,
    partition: int | None = None,
    **selection: Unpack[DeadLetterSelection],
) -> dict[str, Any]:
    """Start to redrive dead letters; return the status."""
    source, criteria = _queue(node, vhost, queue, partition), _filter(selection)
    if exchange is None and routing_key is not None:
        raise AdministrationError("invalid", "a routing key is for an exchange that is named")
    if exchange is not None and routed:
        raise AdministrationError("invalid", "either the original exchange, or another one")
    target = Target(exchange, routing_key, routed=routed)
    if rate is not None and not (_is_number(rate) and 0 < rate <= RATE_MAX):
        raise AdministrationError("invalid", f"a rate is a number above 0, at most {RATE_MAX}")
    return _status_of(redrives_of(node).start(source, criteria, target, rate))


@query("dlq.status", READ_QUEUE)
async def dlq_status(
    node: DeadLetterNode, *, vhost: str, queue: str, partition: int | None = None
) -> dict[str, Any]:
    """Return the status of the redrive that runs, or ran last."""
    return _status_of(redrives_of(node).latest(_queue(node, vhost, queue, partition)))


@command("dlq.pause", READ_QUEUE)
async def dlq_pause(
    node: DeadLetterNode, *, vhost: str, queue: str, partition: int | None = None
) -> dict[str, Any]:
    """Pause the redrive; return its status."""
    redrive = redrives_of(node).latest(_queue(node, vhost, queue, partition))
    redrive.pause()
    return _status_of(redrive)


@command("dlq.resume", READ_QUEUE)
async def dlq_resume(
    node: DeadLetterNode, *, vhost: str, queue: str, partition: int | None = None
) -> dict[str, Any]:
    """Resume the redrive; return its status."""
    redrive = redrives_of(node).latest(_queue(node, vhost, queue, partition))
    redrive.resume()
    return _status_of(redrive)


@command("dlq.cancel", READ_QUEUE)
async def dlq_cancel(
    node: DeadLetterNode, *, vhost: str, queue: str, partition: int | None = None
) -> dict[str, Any]:
    """Cancel the redrive; return its status."""
    redrive = redrives_of(node).latest(_queue(node, vhost, queue, partition))
    redrive.cancel()
    return _status_of(redrive)


@command("dlq.delete", READ_QUEUE)
async def dlq_delete(
    node: DeadLetterNode,
    *,
    vhost: str,
    queue: str,
    partition: int | None = None,
    **selection: Unpack[DeadLetterSelection],
) -> int:
    """Delete the selected messages; return their number."""
    found, criteria = _queue(node, vhost, queue, partition), _filter(selection)
    if criteria == DeadLetterFilter():
        raise AdministrationError("invalid", "state which messages; `purge` deletes all")
    count = await scan.delete(found, criteria)
    await found.log.settlements_safe()
    _tell(node, found, count)
    return count


@command("dlq.purge", READ_QUEUE)
async def dlq_purge(
    node: DeadLetterNode, *, vhost: str, queue: str, partition: int | None = None
) -> int:
    """Delete all messages except unacknowledged ones."""
    found = _queue(node, vhost, queue, partition)
    count = found.purge()
    await found.log.settlements_safe()
    _tell(node, found, count)
    return count


def _tell(node: DeadLetterNode, queue: Queue, count: int) -> None:
    told = {"queue": queue.name, "vhost": queue.definition.vhost, "deleted": count}
    redrives_of(node).emit("dead_letters.deleted", told)


# -- what is asked for


def redrives_of(node: DeadLetterNode) -> Redrives:
    """Return the redrives of a running node. Raises AdministrationError."""
    if node.redrives is None:
        raise AdministrationError("invalid", "no node runs here: only a running one has messages")
    return node.redrives


def _queue(node: DeadLetterNode, vhost: str, name: str, partition: int | None) -> Queue:
    """Return a partition of a dead-letter queue, which usually is its only one."""
    return redrives_of(node).queue(vhost, name, partition)


def _filter(selection: DeadLetterSelection) -> DeadLetterFilter:
    offsets, ids, headers = (
        selection["offsets"],
        selection["message_ids"],
        selection["headers"],
    )
    if not isinstance(offsets, list):
        raise AdministrationError("invalid", "offsets is a list of whole numbers")
    if max(len(offsets), len(ids)) > IDS_MAX or len(headers) > HEADERS_MAX:
        text = f"at most {IDS_MAX} offsets, {IDS_MAX} message_ids and {HEADERS_MAX} headers"
        raise AdministrationError("invalid", text)
    if not all(isinstance(value, str) for value in headers.values()):
        raise AdministrationError("invalid", "headers are compared with text")
    return DeadLetterFilter(
        frozenset(integer("offsets", offset) for offset in offsets),
        frozenset(ids),
        selection["reason"],
        selection["source"],
        tuple(headers.items()),
        _seconds("since", selection["since"]),
        _seconds("until", selection["until"]),
    )


def _seconds(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value) // 1000


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- what is answered


def _row(queue: OpenQueue, letter: StoredDeadLetter) -> dict[str, Any]:
    told = letter.told
    return {
        **({} if queue.part_of is None else {"partition": queue.number}),
        "offset": told.offset,
        "message_id": told.message_id,
        "reason": told.reason,
        "queue": told.queue,
        "exchange": told.exchange,
        "routing_keys": list(told.routing_keys),
        "died_at": None if told.died_at is None else told.died_at * 1000,
        "attempts": told.attempts,
        "last_failure": told.last_failure,
        "headers": headers_of(letter.header, letter.flags),
        "payload_bytes": len(letter.body),
    }


def _status_of(redrive: Redrive) -> dict[str, Any]:
    progress = redrive.progress
    return {
        "queue": redrive.queue.name,
        "vhost": redrive.queue.definition.vhost,
        **({} if redrive.queue.part_of is None else {"partition": redrive.queue.number}),
        "phase": str(progress.phase),
        "total": progress.total,
        "looked_at": progress.looked_at,
        "moved": progress.moved,
        "unroutable": progress.unroutable,
        "refused": progress.refused,
        "rate": redrive.per_second,
        "explanation": progress.explanation,
    }
