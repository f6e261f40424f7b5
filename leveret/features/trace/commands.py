"""`message.trace`: traces of single messages.

It traces one message of a queue, by its offset, or all messages of a virtual host with a message
id: a message and its dead letters, copies and retries share theirs. Steps are what the broker has
written into a message (leveret.features.trace.message_trace), and last its current holder. A
settled record is found for as long as its segment is kept.

A search by id goes through the queues in the order of their names, then through waiting messages
beside them and in the virtual host (leveret.features.trace.trace_search). Each request scans a
bounded number of messages, and answers `after`, the [stage, name, …] where the next one continues;
null means that nothing is left.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from leveret.core.admin.commands import query
from leveret.core.admin.node import partition_of, queue_of, vhost_of
from leveret.core.admin.rights import READ_QUEUE
from leveret.core.admin.shown import integer, no_cursor
from leveret.core.definitions.administration import AdministrationError
from leveret.core.json_fields import plain
from leveret.features.browse.browsing import READ_BYTES_MAX, BrowseCursor, recall
from leveret.features.browse.message_filter import MessageFilter, MessageState
from leveret.features.trace.message_trace import STORED, TraceStep, trace_steps
from leveret.features.trace.trace_search import (
    END,
    TraceCursor,
    TraceSearch,
    partition_at,
    partition_keys,
    search_delayed,
    search_prepared,
    search_retries,
    search_tasks,
    step_row,
)
from leveret.ports.records import RecordFlag
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost
    from leveret.features.browse.browsing import BrowsedMessage
    from leveret.features.trace.trace_search import TraceNode

QUEUES_MAX: Final = 1000  # of one request: an empty one costs some microseconds
SLICE_CLIENTS: Final = 200  # about a millisecond of the event loop
Row = dict[str, Any]


@query("message.trace", READ_QUEUE)
async def message_trace(
    node: TraceNode,
    *,
    vhost: str,
    queue: str | None = None,
    offset: Any = None,
    message_id: str | None = None,
    after: Any = None,
    partition: int | None = None,
) -> Row:
    """Return the trace of one message, or of all that have an id."""
    if (message_id is None) == (queue is None) or (queue is None) != (offset is None):
        raise AdministrationError("invalid", "state a queue and an offset, or a message id")
    if message_id is not None:
        return await _trace_id(node, vhost, message_id, after)
    assert queue is not None, "it is stated where there is no id"
    found = partition_of(queue_of(node, vhost, queue), partition)
    at = integer("offset", offset)
    seen = await recall(found, at)
    if seen is None:
        raise AdministrationError("not_found", f"no message {at} in queue '{found.name}'")
    return {"messages": [await _told(node, found, seen)], "scanned": 1, "after": None}


# -- all that have an id


async def _trace_id(node: TraceNode, vhost: str, message_id: str, after: Any) -> Row:
    trace = TraceSearch(node, vhost_of(node, vhost), message_id)
    place = _place(after)
    for number in range(place.stage, len(STAGES)):
        begin = place if number == place.stage else TraceCursor(number)
        rest = await STAGES[number](trace, begin)
        if rest is not None:
            return {"messages": trace.rows, "scanned": trace.scanned, "after": list(rest)}
    return {"messages": trace.rows, "scanned": trace.scanned, "after": None}


def _place(after: object) -> TraceCursor:
    """Parse the place where a search continues."""
    match after:
        case None:
            return TraceCursor(0)
        case [int(stage), str(name), first, second] if 0 <= stage < len(STAGES):
            return TraceCursor(stage, name, integer("after", first), integer("after", second))
        case _:
            raise no_cursor()


async def _queues(trace: TraceSearch, begin: TraceCursor) -> TraceCursor | None:
    """Search the queues' logs; return where to continue."""
    vhost, criteria = trace.vhost, MessageFilter(message_ids=frozenset([trace.message_id]))
    read_bytes = 0
    keys = heapq.nsmallest(QUEUES_MAX, filter(begin.is_ahead, partition_keys(vhost)))
    for each in keys:
        queue = _holding(vhost, each)
        if queue is None:
            continue
        # A place holds the offset that comes next: of a queue that is begun with, the first.
        first = begin.first if each == begin.name else 0
        walk = BrowseCursor(queue, first, queue.log.committed, scanned_max=trace.left)
        async for found in walk.matching(criteria):
            for seen in found[: trace.room]:
                trace.rows.append(await _told(trace.node, queue, seen))
            if not trace.room:
                return TraceCursor(begin.stage, each, trace.rows[-1]["offset"] + 1)
            await let_others_run()
        trace.scanned += walk.scanned
        read_bytes += walk.read_bytes
        if walk.rest is not None and not queue.deleted:
            return TraceCursor(begin.stage, each, walk.rest[0])
        if not trace.left or read_bytes >= READ_BYTES_MAX:
            return TraceCursor(begin.stage, each, END)
        await let_others_run()
    return TraceCursor(begin.stage, keys[-1], END) if len(keys) == QUEUES_MAX else None


def _holding(vhost: Vhost, key: str) -> OpenQueue | None:
    """Return a partition that has messages; empty ones are not opened for this."""
    held = partition_at(vhost, key)
    if held is None or not (held.message_count or held.leased_count or held.delayed_count):
        return None
    return held


# -- the row of one message


async def _told(node: TraceNode, queue: OpenQueue, seen: BrowsedMessage) -> Row:
    message = seen.message
    flags = message.flags
    steps = trace_steps(
        TraceStep(STORED, seen.time_ms, queue=queue.name),
        message.exchange.decode(errors="replace"),
        message.routing_key.decode(errors="replace"),
        plain(message.open_headers),
        is_dead_letter=bool(flags & RecordFlag.DEAD_LETTERED),
        is_retried=bool(flags & RecordFlag.RETRIED),
    )
    state = str(seen.state)
    return {
        "vhost": queue.definition.vhost,
        "queue": queue.name,
        **({} if queue.part_of is None else {"partition": queue.number}),
        "offset": seen.offset,
        "message_id": plain(message.property("message_id")),
        "steps": [step_row(step) for step in steps],
        "state": state,
        "holder": await _holder(node, queue, seen.offset)
        if state == MessageState.UNACKED
        else None,
    }


async def _holder(node: TraceNode, queue: OpenQueue, offset: int) -> Row | None:
    """Return the client that holds a message; None for a receipt, or a move in progress."""
    assert node.broker is not None, "it has the queue"
    for number, client in enumerate(list(node.broker.connections)):
        if number % SLICE_CLIENTS == SLICE_CLIENTS - 1:
            await let_others_run()
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


STAGES: Final = (_queues, search_retries, search_tasks, search_delayed, search_prepared)
