"""Operations on dead letters (see leveret.features.dead_letter).

A message must match all of `offsets`, `message_ids`, `reason`, `source`, `headers`, `since` and
`until` that are given; times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.features.dead_letter import scan
from leveret.features.dead_letter.redrive import Target
from leveret.features.dead_letter.redrive_rules import RATE_MAX, DeadLetterFilter
from leveret.mgmt_ui.operations.shown import headers_of, integer, payload, properties

if TYPE_CHECKING:
    from leveret.core.queues.queue import Queue
    from leveret.features.dead_letter.redrive import Redrive, Redrives
    from leveret.features.dead_letter.scan import StoredDeadLetter
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters

__all__ = ["DEAD_LETTERS"]

ROWS_MAX = 1000  # of one answer; more need further requests
HEADERS_MAX = 100
IDS_MAX = 10_000


async def _list(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue, selection = _queue(node, parameters), _selection(parameters)
    limit = min(max(parameters["limit"], 1), ROWS_MAX)
    after = parameters["after"]
    first = queue.log.first if after is None else integer("after", after) + 1
    rows: list[dict[str, object]] = []
    async for found in scan.scan(queue, selection, first, queue.log.committed):
        rows += map(_row, found[: limit + 1 - len(rows)])
        if len(rows) > limit:
            break
    more, rows = len(rows) > limit, rows[:limit]
    return {
        "rows": rows,
        "after": rows[-1]["offset"] if more else None,
        "ready": queue.message_count,
        "unacknowledged": queue.leased_count,
    }


async def _show(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue, offset = _queue(node, parameters), integer("offset", parameters["offset"])
    behind = min(offset + 1, queue.log.committed)
    async for found in scan.scan(queue, DeadLetterFilter(), offset, behind):
        for letter in found:
            return {
                **_row(letter),
                **properties(letter.header, letter.flags),
                **payload(letter.body),
            }
    raise AdministrationError("not_found", f"no message {offset} in queue '{queue.name}'")


async def _redrive(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue, selection = _queue(node, parameters), _selection(parameters)
    exchange, key = parameters["exchange"], parameters["routing_key"]
    if exchange is None and key is not None:
        raise AdministrationError("invalid", "a routing key is for an exchange that is named")
    if exchange is not None and parameters["routed"]:
        raise AdministrationError("invalid", "either the original exchange, or another one")
    target = Target(exchange, key, routed=parameters["routed"])
    rate = parameters["rate"]
    if rate is not None and not (_is_number(rate) and 0 < rate <= RATE_MAX):
        raise AdministrationError("invalid", f"a rate is a number above 0, at most {RATE_MAX}")
    return _status_of(_redrives(node).start(queue, selection, target, rate))


async def _status(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    return _status_of(_redrives(node).latest(_queue(node, parameters)))


async def _pause(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    redrive = _redrives(node).latest(_queue(node, parameters))
    redrive.pause()
    return _status_of(redrive)


async def _resume(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    redrive = _redrives(node).latest(_queue(node, parameters))
    redrive.resume()
    return _status_of(redrive)


async def _cancel(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    redrive = _redrives(node).latest(_queue(node, parameters))
    redrive.cancel()
    return _status_of(redrive)


async def _delete(node: AdminContext, parameters: Parameters) -> int:
    queue, selection = _queue(node, parameters), _selection(parameters)
    if selection == DeadLetterFilter():
        raise AdministrationError("invalid", "state which messages; `purge` deletes all")
    count = await scan.delete(queue, selection)
    _tell(node, queue, count)
    return count


async def _purge(node: AdminContext, parameters: Parameters) -> int:
    queue = _queue(node, parameters)
    count = queue.purge()
    _tell(node, queue, count)
    return count


def _tell(node: AdminContext, queue: Queue, count: int) -> None:
    told = {"queue": queue.name, "vhost": queue.definition.vhost, "deleted": count}
    _redrives(node).emit("dead_letters.deleted", told)


# -- what is asked for


def _redrives(node: AdminContext) -> Redrives:
    if node.redrives is None:
        raise AdministrationError("invalid", "no node runs here: only a running one has messages")
    return node.redrives


def _queue(node: AdminContext, parameters: Parameters) -> Queue:
    return _redrives(node).queue(parameters["vhost"], parameters["queue"])


def _selection(parameters: Parameters) -> DeadLetterFilter:
    offsets, ids, headers = (parameters[key] for key in ("offsets", "message_ids", "headers"))
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
        parameters["reason"],
        parameters["source"],
        tuple(headers.items()),
        _seconds("since", parameters),
        _seconds("until", parameters),
    )


def _seconds(name: str, parameters: Parameters) -> int | None:
    value = parameters[name]
    return None if value is None else integer(name, value) // 1000


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- what is answered


def _row(letter: StoredDeadLetter) -> dict[str, object]:
    told = letter.told
    return {
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


def _status_of(redrive: Redrive) -> dict[str, object]:
    progress = redrive.progress
    return {
        "queue": redrive.queue.name,
        "vhost": redrive.queue.definition.vhost,
        "phase": str(progress.phase),
        "total": progress.total,
        "looked_at": progress.looked_at,
        "moved": progress.moved,
        "unroutable": progress.unroutable,
        "refused": progress.refused,
        "rate": redrive.per_second,
        "explanation": progress.explanation,
    }


_QUEUE: Final = {"vhost": str, "queue": str}
_SELECTION: Final = {
    **_QUEUE,
    "offsets": object,  # a list of numbers
    "message_ids": list,
    "reason": None,
    "source": None,
    "headers": dict,
    "since": object,
    "until": object,
}
DEAD_LETTERS: Final[Operations] = {
    "dlq.list": (_list, {**_SELECTION, "limit": int, "after": object}),
    "dlq.show": (_show, {**_QUEUE, "offset": int}),
    "dlq.redrive": (
        _redrive,
        {**_SELECTION, "exchange": None, "routing_key": None, "routed": bool, "rate": object},
    ),
    "dlq.status": (_status, _QUEUE),
    "dlq.pause": (_pause, _QUEUE),
    "dlq.resume": (_resume, _QUEUE),
    "dlq.cancel": (_cancel, _QUEUE),
    "dlq.delete": (_delete, _SELECTION),
    "dlq.purge": (_purge, _QUEUE),
}
