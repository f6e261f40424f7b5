"""Operations on single messages of queues and streams.

`select` is a message filter (see leveret.features.browse.selection). Each request scans a
bounded number of messages, and answers how many it has `scanned` and `after` which one the next
request continues; null means that nothing is left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import partition_of, queue_of, vhost_of
from leveret.core.admin.partition_lists import list_partitions
from leveret.core.admin.rights import READ_QUEUE
from leveret.core.admin.shown import check_short, integer, payload, properties
from leveret.core.definitions.administration import AdministrationError
from leveret.core.queues.queue import Queue
from leveret.errors import StorageError
from leveret.features.browse.browsing import READ_BYTES_MAX, SCANNED_MAX, BrowseCursor, find
from leveret.features.browse.editing import edited
from leveret.features.browse.moving import Destination, MoveCounts, Mover, delete, portions
from leveret.features.browse.selection import changes_of, message_filter_of
from leveret.ports.callbacks import has_failed
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.core.admin.node import AdminNode
    from leveret.core.logs.atomic import AtomicWrite
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.browse.browsing import BrowsedMessage
    from leveret.features.browse.message_filter import MessageFilter

ROWS = 100
ROWS_MAX = 1000  # of one answer; more need further requests
PAYLOAD_BYTES = 4096  # of each message of a list: a screen of it
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of the payloads of one answer; one message is always there


class MessageSelection(TypedDict):
    """Parameters of a request for messages."""

    vhost: str
    queue: str
    select: dict[str, Any]
    after: Any
    limit: Any


class MessageTransfer(MessageSelection):
    """Parameters of a request that moves or copies messages."""

    to_queue: str | None
    exchange: str | None
    routing_key: str | None


# -- looking


@query("message.list", READ_QUEUE)
async def message_list(
    node: AdminNode,
    *,
    from_: Any = None,
    backwards: bool,
    truncate: Any = None,
    encoding: str | None = None,
    **selection: Unpack[MessageSelection],
) -> dict[str, Any]:
    """Return messages, the oldest first. Nothing is delivered.

    Without a partition those of all are listed, one partition after the other.
    """
    queue, number, criteria = _stated(node, selection)
    limit = _number("limit", selection["limit"], ROWS, ROWS_MAX)
    bytes_max = _number("truncate", truncate, PAYLOAD_BYTES, ANSWER_BYTES_MAX)
    page = _Page(limit, bytes_max, as_text=_is_text_shown(encoding))
    listed = list_partitions(queue, number, selection["after"], backwards=backwards)
    if from_ is not None and listed.are_all:
        partition_of(queue)  # says which there are, if there are several
    scanned = read_bytes = 0
    for part, begin in listed:
        walk = await _walk(
            part,
            criteria,
            begin,
            begin=from_,
            backwards=backwards,
            scanned_max=SCANNED_MAX - scanned,
        )
        page.last = begin
        async for found in walk.matching(criteria):
            if not page.take(part, found):
                break
            await let_others_run()
        scanned += walk.scanned
        read_bytes += walk.read_bytes
        last = page.last if page.is_full else _after(walk)
        if page.is_full or last is not None:
            return page.answer(scanned, listed.place(part.number, last))
        if scanned >= SCANNED_MAX or read_bytes >= READ_BYTES_MAX:
            return page.answer(scanned, listed.behind(part))
        await let_others_run()
    return page.answer(scanned, None)


class _Page:
    """Rows of one answer, up to its limits."""

    def __init__(self, limit: int, bytes_max: int, *, as_text: bool) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last: int | None = None  # offset of the last row of the partition
        self.is_full = False
        self._limit = limit
        self._bytes_max = bytes_max
        self._as_text = as_text
        self._bytes = 0

    def take(self, queue: OpenQueue, found: list[BrowsedMessage]) -> bool:
        """Add messages of a partition; return False once there is no more room."""
        for seen in found:
            self._bytes += min(len(seen.message.body), self._bytes_max)
            if self.rows and self._bytes > ANSWER_BYTES_MAX:
                self.is_full = True
                return False
            self.rows.append(_row(queue, seen, self._bytes_max, as_text=self._as_text))
            self.last = seen.offset
            if len(self.rows) == self._limit:
                self.is_full = True
                return False
        return True

    def answer(self, scanned: int, after: Any) -> dict[str, Any]:
        """Return the answer, which says where another request continues."""
        return {"messages": self.rows, "scanned": scanned, "after": after}


@query("message.show", READ_QUEUE)
async def message_show(
    node: AdminNode,
    *,
    vhost: str,
    queue: str,
    offset: int,
    truncate: Any = None,
    encoding: str | None = None,
    partition: int | None = None,
) -> dict[str, Any]:
    """Return one message with its properties and its payload."""
    part = partition_of(queue_of(node, vhost, queue), partition)
    seen = await _one(part, offset, with_settled=True)
    bytes_max = _number("truncate", truncate, ANSWER_BYTES_MAX, ANSWER_BYTES_MAX)
    return _row(part, seen, bytes_max, as_text=_is_text_shown(encoding))


def _stated(
    node: AdminNode, selection: MessageSelection
) -> tuple[DeclaredQueue, object, MessageFilter]:
    """Return the queue whose messages are selected, the partition that is stated, and which."""
    select = dict(selection["select"])
    number = select.pop("partition", None)
    queue = queue_of(node, selection["vhost"], selection["queue"])
    return queue, number, message_filter_of(select)


def _chosen(node: AdminNode, selection: MessageSelection) -> tuple[OpenQueue, MessageFilter]:
    """Return the partition whose messages are selected, and which of them."""
    queue, number, criteria = _stated(node, selection)
    return partition_of(queue, number), criteria


async def _one(queue: OpenQueue, at: int, *, with_settled: bool = False) -> BrowsedMessage:
    offset = integer("offset", at)
    seen = await find(queue, offset, with_settled=with_settled)
    if seen is None:
        where = f"queue '{queue.name}'"
        if queue.part_of is not None:
            where = f"partition {queue.number} of {where}"
        raise AdministrationError("not_found", f"no message {offset} in {where}")
    return seen


def _row(
    queue: OpenQueue, seen: BrowsedMessage, bytes_max: int, *, as_text: bool
) -> dict[str, Any]:
    message = seen.message
    return {
        **({} if queue.part_of is None else {"partition": queue.number}),
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


@command("message.delete", READ_QUEUE)
async def message_delete(node: AdminNode, **selection: Unpack[MessageSelection]) -> dict[str, Any]:
    """Delete the selected messages: nobody can read them any more.

    Settled ones, which a queue with a retention keeps, are selected by their state or offsets.
    """
    found, criteria = _chosen(node, selection)
    queue = _leasing(found)
    if not criteria.states_something:
        raise AdministrationError("invalid", "state which messages; a purge deletes all")
    if criteria.offsets is not None and not criteria.states:
        criteria = replace(criteria, with_settled=True)
    tour, outcome = await _tour(queue, selection, criteria), MoveCounts()
    async for portion in tour.portions():
        delete(queue, portion, outcome)
    await queue.log.settlements_safe()
    return {
        "deleted": outcome.done,
        "skipped": outcome.skipped,
        "scanned": tour.walk.scanned,
        "after": tour.after,
    }


@command("message.move", READ_QUEUE)
async def message_move(node: AdminNode, **transfer: Unpack[MessageTransfer]) -> dict[str, Any]:
    """Move the selected messages; after a crash, too, each is in exactly one place."""
    queue, criteria = _chosen(node, transfer)
    return await _transfer(node, _leasing(queue), criteria, transfer, moves=True)


@command("message.copy", READ_QUEUE)
async def message_copy(node: AdminNode, **transfer: Unpack[MessageTransfer]) -> dict[str, Any]:
    """Copy the selected messages to a queue or an exchange."""
    queue, criteria = _chosen(node, transfer)
    return await _transfer(node, queue, criteria, transfer, moves=False)


async def _transfer(
    node: AdminNode,
    queue: OpenQueue,
    criteria: MessageFilter,
    transfer: MessageTransfer,
    *,
    moves: bool,
) -> dict[str, Any]:
    mover = _mover(node, queue, transfer)
    tour, outcome = await _tour(queue, transfer, criteria), MoveCounts()
    carry = mover.move if moves else mover.copy
    async for portion in tour.portions():
        await carry(portion, outcome)
        if outcome.refused:
            tour.leave()
            break
    if moves and outcome.done:
        await queue.log.settlements_safe()
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


@command("message.edit", READ_QUEUE)
async def message_edit(
    node: AdminNode,
    *,
    vhost: str,
    queue: str,
    offset: int,
    changes: dict[str, Any],
    partition: int | None = None,
) -> dict[str, Any]:
    """Replace a message with an edited copy at the tail of the queue."""
    found = _leasing(partition_of(queue_of(node, vhost, queue), partition))
    seen = await _one(found, offset)
    changed = edited(seen, changes_of(changes))
    mover = _move_to(node, found, None)
    outcome = MoveCounts()
    await mover.move([changed], outcome)
    if outcome.done:
        await found.log.settlements_safe()
    if outcome.skipped:
        raise AdministrationError("invalid", f"message {seen.offset} is with a consumer")
    _require(outcome, f"queue '{found.name}' is full")
    return {"edited": outcome.done}


def _mover(node: AdminNode, queue: OpenQueue, transfer: MessageTransfer) -> Mover:
    vhost, exchange = vhost_of(node, transfer["vhost"]), transfer["exchange"]
    key, target = transfer["routing_key"], transfer["to_queue"]
    if (exchange is None) == (target is None):
        raise AdministrationError("invalid", "state either a queue or an exchange as destination")
    if exchange is None:
        assert target is not None, "one of them is stated"
        if key is not None:
            raise AdministrationError("invalid", "a routing key is for an exchange")
        queue_of(node, vhost.name, target)
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


def _move_to(node: AdminNode, queue: OpenQueue, destination: Destination | None) -> Mover:
    vhost = vhost_of(node, queue.definition.vhost)
    assert node.broker is not None, "it has the virtual host"
    return Mover(node.broker.atomic, vhost, queue, destination, _carry_out)


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
            await let_others_run()

    def leave(self) -> None:
        """Stop here: messages behind the last one were not processed."""
        self._was_left = True

    @property
    def after(self) -> int | None:
        """Offset after which another request continues, or None."""
        return self.last if self._was_left else _after(self.walk)


async def _tour(queue: OpenQueue, selection: MessageSelection, criteria: MessageFilter) -> _Tour:
    limit = _number("limit", selection["limit"], ROWS_MAX, ROWS_MAX)
    return _Tour(await _walk(queue, criteria, selection["after"]), criteria, limit)


async def _walk(
    queue: OpenQueue,
    criteria: MessageFilter,
    after: Any,
    *,
    begin: Any = None,
    backwards: bool = False,
    scanned_max: int = SCANNED_MAX,
) -> BrowseCursor:
    """Return the cursor of a request; only a list may go backwards, or begin at an offset."""
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
    return BrowseCursor(queue, first, stop, backwards=backwards, scanned_max=scanned_max)


def _after(walk: BrowseCursor) -> int | None:
    if walk.rest is None:
        return None
    return walk.rest[1] if walk.backwards else walk.rest[0] - 1


# -- what is asked for


def _leasing(queue: OpenQueue) -> Queue:
    """Return a queue whose messages can be leased, so no stream."""
    if not isinstance(queue, Queue):
        raise AdministrationError(
            "invalid", f"queue '{queue.name}' is a stream: its messages stay where they are"
        )
    return queue


def _number(name: str, value: Any, default: int, maximum: int) -> int:
    return default if value is None else min(max(integer(name, value), 1), maximum)


def _is_text_shown(encoding: str | None) -> bool:
    """Return whether text is shown as text."""
    if encoding not in {None, "auto", "base64"}:
        raise AdministrationError("invalid", "encoding is auto or base64")
    return encoding != "base64"
