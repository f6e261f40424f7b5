"""/api/queues: queues and streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from leveret.core.queues.head_timestamp import read_heads
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bindings import BINDINGS
from leveret.mgmt_ui.api.bodies import condition, flag, json_object, table, text
from leveret.mgmt_ui.api.callers import CallerHere, require_to_declare
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.flows import flows_of_queue
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    Query,
    QueryHere,
    Segment,
    answer,
    listed,
    select_columns,
    shown,
    vhosts_of,
)
from leveret.mgmt_ui.api.problems import bad_request, queue_not_found
from leveret.mgmt_ui.objects import open_consumers, queues_of
from leveret.mgmt_ui.operations.topology import queue_declare, queue_delete, queue_purge

if TYPE_CHECKING:
    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row


__all__ = ["router"]

EXAMPLE = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}

router = APIRouter()


@router.api_route("/api/queues", methods=READ)
@router.api_route("/api/queues/{vhost}", methods=READ)
@router.api_route("/api/queues/detailed", methods=READ)
async def list_queues(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Queues, with their counts unless `disable_stats=true`."""
    found = queues_of(vhosts_of(caller, vhost))
    await caller.node.context.queues.refresh()
    kind: ObjectKind[QueueLike] = ObjectKind(
        lambda queue: (queue.definition.vhost, queue.definition.name),
        partial(_queue_row, caller=caller, query=query),
        prepare=read_heads if _shows_heads(query) else None,
    )
    return await listed(found, kind, query)


@router.api_route("/api/queues/{vhost}/{name}", methods=READ)
async def show_queue(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """One queue."""
    queue = _existing(caller, vhost, name)
    await caller.node.context.queues.refresh()
    if _shows_heads(query):
        await read_heads([queue])
    row = _queue_row(queue, caller, query)
    if not query.disable_stats:
        row |= await _details(queue, caller, query)
    return answer(select_columns(row, query.columns))


async def _details(queue: QueueLike, caller: Caller, query: Query) -> Row:
    """Return the consumers of a queue, and its deliveries by channel."""
    node, name = caller.node, queue.definition.name
    host = caller.vhost(queue.definition.vhost)
    clients = [client for client in node.broker.connections if client.vhost is host]
    consumers = [
        views.consumer_row(*consumer, node.name)
        for consumer in await open_consumers(clients)
        if consumer[2].queue == name
    ]
    flows = await flows_of_queue(
        node.broker.connections, host, name, shown(caller, query), node.name
    )
    return {"consumer_details": consumers, **flows}


def _shows_heads(query: Query) -> bool:
    columns = query.columns
    return not query.disable_stats and (not columns or ("head_message_timestamp",) in columns)


def _queue_row(queue: QueueLike, caller: Caller, query: Query) -> Row:
    nodes = caller.node.context.queues.nodes_of(queue)
    if not query.disable_stats:
        return views.queue_row(queue, nodes, shown(caller, query))
    row = views.queue_basics(queue, nodes)
    return row | views.queue_counts(queue) if query.enable_queue_totals else row


@router.put("/api/queues/{vhost}/{name}", openapi_extra=body(EXAMPLE))
async def declare_queue(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Declare a queue: 201 where it is new, 204 where it was there."""
    host = caller.vhost(vhost)
    asked = await json_object(request)
    arguments = table(asked, "arguments")
    is_new = name not in host.queues
    await require_to_declare(caller, host, "queue", name, arguments)
    await caller.perform(
        queue_declare,
        vhost=vhost,
        name=name,
        type_=text(asked, "type", None),
        durable=flag(asked, "durable"),
        auto_delete=flag(asked, "auto_delete"),
        arguments=arguments,
    )
    return Response(status_code=201 if is_new else 204)


@router.delete("/api/queues/{vhost}/{name}")
async def delete_queue(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Delete a queue, unless `if-empty`, `if-unused` or the setting `http_delete` forbids it."""
    _existing(caller, vhost, name)
    await caller.require(vhost, "queue", name, "configure")
    caller.require_shared(vhost, name)
    await caller.perform(
        queue_delete,
        vhost=vhost,
        name=name,
        if_empty=condition(request, "if-empty"),
        if_unused=condition(request, "if-unused"),
    )
    return Response(status_code=204)


@router.delete("/api/queues/{vhost}/{name}/contents")
async def purge_queue(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Purge ready messages; with `waiting=true`, retries and delayed messages, too."""
    _existing(caller, vhost, name)
    await caller.require(vhost, "queue", name, "read")
    caller.require_shared(vhost, name)
    waiting = condition(request, "waiting")
    await caller.perform(queue_purge, vhost=vhost, name=name, waiting=waiting)
    return Response(status_code=204)


@router.post("/api/queues/{vhost}/{name}/actions")
async def act_on_queue(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Actions on mirrored queues: refused, as there are none."""
    _existing(caller, vhost, name)
    asked = await json_object(request)
    raise bad_request(f"Unknown action: {asked.get('action')}"[:200])


@router.api_route("/api/queues/{vhost}/{name}/bindings", methods=READ)
async def list_bindings_of_queue(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """The bindings that lead to a queue, that of the default exchange included."""
    _existing(caller, vhost, name)
    graph = caller.vhost(vhost).topology.graph
    return await listed(list(graph.queue_bindings.get(name, {}).values()), BINDINGS, query)


def _existing(caller: Caller, vhost: str, name: str) -> QueueLike:
    """Return the queue of a path. Raises ApiError 404."""
    host = caller.vhost(vhost)
    queue = host.queues.get(name)
    if queue is None:
        raise queue_not_found(host, name)
    return queue
