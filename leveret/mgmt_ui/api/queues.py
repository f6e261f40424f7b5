"""/api/queues: queues and streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.answers import READ, QueryHere, Segment, answer, listed, vhosts_of
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import Kind, Query, select_columns
from leveret.mgmt_ui.api.problems import not_found

if TYPE_CHECKING:
    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.api.views import Row


__all__ = ["router"]

router = APIRouter()


@router.api_route("/api/queues", methods=READ)
@router.api_route("/api/queues/{vhost}", methods=READ)
async def list_queues(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Queues, with their counts unless `disable_stats=true`."""
    found = [queue for host in vhosts_of(caller, vhost) for queue in host.queues.values()]
    kind: Kind[QueueLike] = Kind(
        lambda queue: (queue.definition.vhost, queue.definition.name),
        partial(_queue_row, node_name=caller.node.name, query=query),
    )
    return await listed(found, kind, query)


@router.api_route("/api/queues/{vhost}/{name}", methods=READ)
async def show_queue(
    caller: CallerHere, query: QueryHere, vhost: Segment, name: Segment
) -> Response:
    """One queue."""
    queue = caller.vhost(vhost).queues.get(name)
    if queue is None:
        raise not_found("queue_not_found")
    return answer(select_columns(_queue_row(queue, caller.node.name, query), query.columns))


def _queue_row(queue: QueueLike, node_name: str, query: Query) -> Row:
    if not query.disable_stats:
        return views.queue_row(queue, node_name)
    row = views.queue_basics(queue, node_name)
    return row | views.queue_counts(queue) if query.enable_queue_totals else row
