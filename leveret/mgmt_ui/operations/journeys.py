"""Where single messages went (see leveret.mgmt_ui.operations).

`message.trace` tells it of one message of a queue, by its offset, or of all messages of a virtual
host that have a message id: a message and its dead letters, copies and repetitions share theirs.
Steps are what the broker has written of a message (leveret.features.journeys), and at last who has
it now. A record that was settled is told of as long as its segment is kept.

A search by id goes through the queues in the order of their names. Each request looks at a bounded
number of messages, and answers `after` which [queue, offset] the next one goes on; null means that
nothing is left.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.json_fields import plain
from leveret.core.live.browsing import READ_BYTES_MAX, SCANNED_MAX, Walk, recall
from leveret.core.live.criteria import Criteria, State
from leveret.features.journeys import STORED, Step, journey
from leveret.mgmt_ui.operations.shown import integer
from leveret.mgmt_ui.operations.topology import broker_of, queue_of, vhost_of
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from leveret.core.live.browsing import Seen
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.operations.administered import Administered, Operations, Parameters

__all__ = ["JOURNEYS"]

ROWS_MAX: Final = 100  # messages of one answer
QUEUES_MAX: Final = 1000  # of one request: an empty one costs some microseconds
SLICE_CLIENTS: Final = 200  # about a millisecond of the event loop
END: Final = (
    10**18 - 1
)  # an offset behind all that any log has, of as many digits as requests may have

Row = dict[str, Any]


async def _trace(node: Administered, parameters: Parameters) -> Row:
    queue, offset, message_id = (parameters[name] for name in ("queue", "offset", "message_id"))
    if (message_id is None) == (queue is None) or (queue is None) != (offset is None):
        raise AdministrationError("invalid", "state a queue and an offset, or a message id")
    if message_id is not None:
        return await _trace_id(node, parameters, message_id)
    found = queue_of(node, {"vhost": parameters["vhost"], "name": queue})
    at = integer("offset", offset)
    seen = await recall(found, at)
    if seen is None:
        raise AdministrationError("not_found", f"no message {at} in queue '{found.name}'")
    return {"messages": [await _told(node, found, seen)], "scanned": 1, "after": None}


async def _trace_id(node: Administered, parameters: Parameters, message_id: str) -> Row:
    vhost = vhost_of(node, parameters)
    name, first = _place(parameters["after"])
    criteria = Criteria(message_ids=frozenset([message_id]))
    rows: list[Row] = []
    scanned = read_bytes = 0
    names = heapq.nsmallest(QUEUES_MAX, (key for key in vhost.queues if key >= name))
    for each in names:
        queue = _holding(node, vhost, each)
        if queue is None:
            continue
        begin = first if each == name else 0
        walk = Walk(queue, begin, queue.log.committed, scanned_max=SCANNED_MAX - scanned)
        async for found in walk.matching(criteria):
            rows += [await _told(node, queue, seen) for seen in found[: ROWS_MAX - len(rows)]]
            if len(rows) == ROWS_MAX:
                return _answer(rows, scanned + walk.scanned, [each, rows[-1]["offset"]])
            await asyncio.sleep(0)
        scanned += walk.scanned
        read_bytes += walk.read_bytes
        if walk.rest is not None and not queue.deleted:
            return _answer(rows, scanned, [each, walk.rest[0] - 1])
        if scanned >= SCANNED_MAX or read_bytes >= READ_BYTES_MAX:
            return _answer(rows, scanned, [each, END])
        await asyncio.sleep(0)
    return _answer(rows, scanned, [names[-1], END] if len(names) == QUEUES_MAX else None)


def _answer(rows: list[Row], scanned: int, after: list[object] | None) -> Row:
    return {"messages": rows, "scanned": scanned, "after": after}


def _holding(node: Administered, vhost: Vhost, name: str) -> OpenQueue | None:
    """A queue in which there is something. What is empty is not opened for this."""
    held = vhost.queues.get(name)
    if held is None or not (held.message_count or held.leased_count or held.delayed_count):
        return None
    return queue_of(node, {"vhost": vhost.name, "name": name})


def _place(after: object) -> tuple[str, int]:
    """The queue and the offset at which a search goes on."""
    match after:
        case None:
            return "", 0
        case [str(name), offset]:
            return name, integer("after", offset) + 1
        case _:
            raise AdministrationError("invalid", "bad parameter 'after'")


# -- what is told of one message


async def _told(node: Administered, queue: OpenQueue, seen: Seen) -> Row:
    message = seen.message
    flags = message.flags
    steps = journey(
        Step(STORED, seen.time_ms, queue=queue.name),
        message.exchange.decode(errors="replace"),
        message.routing_key.decode(errors="replace"),
        plain(message.open_headers),
        is_dead_letter=bool(flags & RecordFlag.DEAD_LETTERED),
        is_retried=bool(flags & RecordFlag.RETRIED),
    )
    is_settled = seen.offset in queue.log.settled
    state = "settled" if is_settled else str(seen.state)
    return {
        "vhost": queue.definition.vhost,
        "queue": queue.name,
        "offset": seen.offset,
        "message_id": plain(message.property("message_id")),
        "steps": [_step(step) for step in steps],
        "state": state,
        "holder": await _holder(node, queue, seen.offset) if state == State.UNACKED else None,
    }


def _step(step: Step) -> Row:
    """What is known of a step."""
    known = {
        "step": step.kind,
        "time_ms": step.time_ms,
        "exchange": step.exchange,
        "routing_keys": None if step.routing_keys is None else list(step.routing_keys),
        "queue": step.queue,
        "reason": step.reason,
        "count": step.count,
    }
    return {name: value for name, value in known.items() if value is not None}


async def _holder(node: Administered, queue: OpenQueue, offset: int) -> Row | None:
    """The client that has a message; None: a receipt has it, or a move that is under way."""
    for number, client in enumerate(list(broker_of(node).connections)):
        if number % SLICE_CLIENTS == SLICE_CLIENTS - 1:
            await asyncio.sleep(0)
        if client.vhost.name != queue.definition.vhost:
            continue
        holder = client.holder_of(queue, offset)
        if holder is not None:
            return {
                "connection": str(client.describe().endpoints),
                "user": client.user,
                "channel": holder.channel,
                "consumer_tag": holder.consumer_tag,
                "delivery_tag": holder.delivery_tag,
            }
    return None


JOURNEYS: Final[Operations] = {
    "message.trace": (
        _trace,
        {"vhost": str, "queue": None, "offset": object, "message_id": None, "after": object},
    ),
}
