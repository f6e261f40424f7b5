"""Operations on single messages of queues and streams.

`select` is a message filter (see leveret.mgmt_ui.operations.selection). Each request scans a
bounded number of messages, and answers how many it has `scanned` and `after` which one the next
request continues; null means that nothing is left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.queues.queue import Queue
from leveret.errors import StorageError
from leveret.features.browse.browsing import BrowseCursor, find
from leveret.features.browse.editing import edited
from leveret.features.browse.moving import Destination, MoveCounts, Mover, delete, portions
from leveret.mgmt_ui.operations.selection import changes_of, message_filter_of
from leveret.mgmt_ui.operations.shown import integer, payload, properties
from leveret.mgmt_ui.operations.topology import broker_of, check_short, queue_of, vhost_of
from leveret.ports.callbacks import has_failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.core.logs.atomic import AtomicWrite
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.browse.browsing import BrowsedMessage
    from leveret.features.browse.message_filter import MessageFilter
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters

__all__ = ["MESSAGES"]

ROWS = 100
ROWS_MAX = 1000  # of one answer; more need further requests
PAYLOAD_BYTES = 4096  # of each message of a list: a screen of it
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of the payloads of one answer; one message is always there


# -- looking


async def _list(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue = _find(node, parameters)
    criteria = message_filter_of(parameters["select"])
    limit = _number(parameters, "limit", ROWS, ROWS_MAX)
    bytes_max = _number(parameters, "truncate", PAYLOAD_BYTES, ANSWER_BYTES_MAX)
    as_text = _encoding(parameters)
    walk = await _walk(queue, parameters, criteria)
    page = _Page(limit, bytes_max, as_text=as_text)
    async for found in walk.matching(criteria):
        if not page.take(found):
            break
        await asyncio.sleep(0)
    return {
        "messages": page.rows,
        "scanned": walk.scanned,
        "after": page.last if page.is_full else _after(walk),
    }


class _Page:
    """Rows of one answer, up to its limits."""

    def __init__(self, limit: int, bytes_max: int, *, as_text: bool) -> None:
        self.rows: list[dict[str, object]] = []
        self.last: int | None = None  # offset of the last row
        self.is_full = False
        self._limit = limit
        self._bytes_max = bytes_max
        self._as_text = as_text
        self._bytes = 0

    def take(self, found: list[BrowsedMessage]) -> bool:
        """Add messages; return False once there is no more room."""
        for seen in found:
            self._bytes += min(len(seen.message.body), self._bytes_max)
            if self.rows and self._bytes > ANSWER_BYTES_MAX:
                self.is_full = True
                return False
            self.rows.append(_row(seen, self._bytes_max, as_text=self._as_text))
            self.last = seen.offset
            if len(self.rows) == self._limit:
                self.is_full = True
                return False
        return True


async def _show(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    seen = await _one(_find(node, parameters), parameters)
    bytes_max = _number(parameters, "truncate", ANSWER_BYTES_MAX, ANSWER_BYTES_MAX)
    return _row(seen, bytes_max, as_text=_encoding(parameters))


async def _one(queue: OpenQueue, parameters: Parameters) -> BrowsedMessage:
    offset = integer("offset", parameters["offset"])
    seen = await find(queue, offset)
    if seen is None:
        raise AdministrationError("not_found", f"no message {offset} in queue '{queue.name}'")
    return seen


def _row(seen: BrowsedMessage, bytes_max: int, *, as_text: bool) -> dict[str, object]:
    message = seen.message
    return {
        "offset": seen.offset,
        "state": str(seen.state),
        "time_ms": seen.time_ms,
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
        **properties(message.header, message.flags),
        "payload_bytes": len(message.body),
        "truncated": len(message.body) > bytes_max,
        **payload(message.body, bytes_max, as_text=as_text),
    }


# -- deleting, moving and copying


async def _delete(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue = _find_leasing(node, parameters)
    criteria = message_filter_of(parameters["select"])
    if not criteria.states_something:
        raise AdministrationError("invalid", "state which messages; a purge deletes all")
    tour, outcome = await _tour(queue, parameters, criteria), MoveCounts()
    async for portion in tour.portions():
        delete(queue, portion, outcome)
    await queue.log.settlements_safe()
    return {
        "deleted": outcome.done,
        "skipped": outcome.skipped,
        "scanned": tour.walk.scanned,
        "after": tour.after,
    }


async def _move(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue = _find_leasing(node, parameters)
    return await _transfer(node, queue, parameters, moves=True)


async def _copy(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    return await _transfer(node, _find(node, parameters), parameters, moves=False)


async def _transfer(
    node: AdminContext, queue: OpenQueue, parameters: Parameters, *, moves: bool
) -> dict[str, object]:
    criteria = message_filter_of(parameters["select"])
    mover = _mover(node, queue, parameters)
    tour, outcome = await _tour(queue, parameters, criteria), MoveCounts()
    carry = mover.move if moves else mover.copy
    async for portion in tour.portions():
        await carry(portion, outcome)
        if outcome.refused:
            tour.leave()
            break
    if tour.last is None:
        _require(outcome, "the destination is full, or was deleted")
    return {
        "moved" if moves else "copied": outcome.done,
        "skipped": outcome.skipped,
        "unroutable": outcome.unroutable,
        "refused": outcome.refused,
        "scanned": tour.walk.scanned,
        "after": tour.after,
    }


async def _edit(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    queue = _find_leasing(node, parameters)
    seen = await _one(queue, parameters)
    changed = edited(seen, changes_of(parameters["changes"]))
    mover = _move_to(node, queue, None)
    outcome = MoveCounts()
    await mover.move([changed], outcome)
    if outcome.skipped:
        raise AdministrationError("invalid", f"message {seen.offset} is with a consumer")
    _require(outcome, f"queue '{queue.name}' is full")
    return {"edited": outcome.done}


def _mover(node: AdminContext, queue: OpenQueue, parameters: Parameters) -> Mover:
    vhost = vhost_of(node, parameters)
    exchange, key, target = (parameters[name] for name in ("exchange", "routing_key", "to_queue"))
    if (exchange is None) == (target is None):
        raise AdministrationError("invalid", "state either a queue or an exchange as destination")
    if target is not None:
        if key is not None:
            raise AdministrationError("invalid", "a routing key is for an exchange")
        queue_of(node, {"vhost": vhost.name, "name": target})
        if target == queue.name:
            raise AdministrationError("invalid", "the destination is where the messages are")
        return _move_to(node, queue, Destination("", target))
    if exchange not in vhost.exchanges:
        raise AdministrationError("not_found", f"no exchange '{exchange}' in vhost '{vhost.name}'")
    if vhost.exchanges[exchange].definition.internal:
        text = f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'"
        raise AdministrationError("forbidden", text)
    if key is not None:
        check_short("a routing key", key)
    return _move_to(node, queue, Destination(exchange, key))


def _move_to(node: AdminContext, queue: OpenQueue, destination: Destination | None) -> Mover:
    broker = broker_of(node)
    vhost = broker.vhosts[queue.definition.vhost]
    return Mover(broker.atomic, vhost, queue, destination, _carry_out)


async def _carry_out(write: AtomicWrite) -> bool:
    return not await has_failed(write.commit)


def _require(outcome: MoveCounts, otherwise: str) -> None:
    """Raise StorageError if the disk refused, AdministrationError if a queue did."""
    if outcome.error is not None:
        raise StorageError(str(outcome.error)) from outcome.error
    if outcome.refused:
        raise AdministrationError("invalid", otherwise)


class _Tour:
    """A cursor over selected messages, which are processed in portions, up to a limit."""

    def __init__(self, walk: BrowseCursor, criteria: MessageFilter, limit: int) -> None:
        self.walk = walk
        self.last: int | None = None  # the last one that was dealt with
        self._criteria = criteria
        self._limit = limit
        self._was_left = False

    async def portions(self) -> AsyncIterator[list[BrowsedMessage]]:
        """Yield the selected messages in portions."""
        room = self._limit
        async for found in self.walk.matching(self._criteria):
            for portion in portions(found[:room]):
                yield portion
                self.last = portion[-1].offset
            room -= len(found)
            if room <= 0:
                self._was_left = True
                return
            await asyncio.sleep(0)

    def leave(self) -> None:
        """Stop here: messages behind the last one were not processed."""
        self._was_left = True

    @property
    def after(self) -> int | None:
        """Offset after which another request continues, or None."""
        return self.last if self._was_left else _after(self.walk)


async def _tour(queue: OpenQueue, parameters: Parameters, criteria: MessageFilter) -> _Tour:
    limit = _number(parameters, "limit", ROWS_MAX, ROWS_MAX)
    return _Tour(await _walk(queue, parameters, criteria), criteria, limit)


async def _walk(queue: OpenQueue, parameters: Parameters, criteria: MessageFilter) -> BrowseCursor:
    """Return the cursor of a request; only a list may go backwards, or begin at an offset."""
    backwards = bool(parameters.get("backwards"))
    begin, after = parameters.get("from"), parameters["after"]
    first, stop = queue.log.first, queue.log.committed
    if criteria.since_ms is not None:
        first = max(first, await queue.log.offset_at(criteria.since_ms))
    if criteria.until_ms is not None:
        stop = min(stop, await queue.log.offset_at(criteria.until_ms))
    if begin is not None:
        offset = integer("from", begin)
        first, stop = (first, min(stop, offset + 1)) if backwards else (max(first, offset), stop)
    if after is not None:
        offset = integer("after", after)
        first, stop = (first, min(stop, offset)) if backwards else (max(first, offset + 1), stop)
    return BrowseCursor(queue, first, stop, backwards=backwards)


def _after(walk: BrowseCursor) -> int | None:
    if walk.rest is None:
        return None
    return walk.rest[1] if walk.backwards else walk.rest[0] - 1


# -- what is asked for


def _find(node: AdminContext, parameters: Parameters) -> OpenQueue:
    return queue_of(node, {"vhost": parameters["vhost"], "name": parameters["queue"]})


def _find_leasing(node: AdminContext, parameters: Parameters) -> Queue:
    """Return a queue whose messages can be leased, so no stream."""
    queue = _find(node, parameters)
    if not isinstance(queue, Queue):
        raise AdministrationError(
            "invalid", f"queue '{queue.name}' is a stream: its messages stay where they are"
        )
    return queue


def _number(parameters: Parameters, name: str, default: int, maximum: int) -> int:
    value = parameters[name]
    return default if value is None else min(max(integer(name, value), 1), maximum)


def _encoding(parameters: Parameters) -> bool:
    """Return whether text is shown as text."""
    encoding: str | None = parameters["encoding"]
    if encoding not in {None, "auto", "base64"}:
        raise AdministrationError("invalid", "encoding is auto or base64")
    return encoding != "base64"


_QUEUE: Final = {"vhost": str, "queue": str}
_CHOICE: Final = {**_QUEUE, "select": dict, "after": object, "limit": object}
_WHERE: Final = {"to_queue": None, "exchange": None, "routing_key": None}
MESSAGES: Final[Operations] = {
    "message.list": (
        _list,
        {
            **_CHOICE,
            "from": object,
            "backwards": bool,
            "truncate": object,
            "encoding": None,
        },
    ),
    "message.show": (
        _show,
        {**_QUEUE, "offset": int, "truncate": object, "encoding": None},
    ),
    "message.delete": (_delete, _CHOICE),
    "message.move": (_move, {**_CHOICE, **_WHERE}),
    "message.copy": (_copy, {**_CHOICE, **_WHERE}),
    "message.edit": (_edit, {**_QUEUE, "offset": int, "changes": dict}),
}
