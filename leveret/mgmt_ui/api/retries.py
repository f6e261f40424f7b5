"""/api/leveret/retries/VHOST/QUEUE: failed messages that wait for a retry.

    GET    …                ?id&message_id&exchange&routing_key&header&due_from_ms&due_before_ms
                            &limit&after&partition
                            → {"rows": […], "after": "DUE-OFFSET" | null, "pending": 5}
    GET    …/messages/ID    ?partition: one message, with its payload
    POST   …/retry          {"ids": […]} or {"all": true}: retry at once → {"count": 3}
    POST   …/cancel         {"ids": […]} or {"all": true}: retry no more → {"count": 3}

Of a queue with several partitions `partition` names one, in the body of a POST as well. Without it
all are listed, one after the other, and `after` is like 2:DUE-OFFSET, with the partition.

For users who may consume from the queue. A request scans a bounded number of messages: a search may
answer few rows or none, and `after`, where the next request continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.features.retry.commands import retry_cancel, retry_list, retry_retry_now, retry_show
from leveret.mgmt_ui.api.bodies import headers, json_object, texts, truth, whole_number
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.describing import query as described_query
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.places import place_of, place_text
from leveret.mgmt_ui.api.schedules import CRITERIA, cursor, cursor_text

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["router"]

ROWS = 100
EXAMPLE = {"ids": ["17"], "all": False, "partition": 0}

LISTED = {
    "id": "17",
    **CRITERIA,
    "header": ["name=value"],
    "limit": ROWS,
    "after": "1700000000000-17",
    "partition": 0,
}

router = own_router("/retries/{vhost}/{name}")


@router.api_route("", methods=READ, openapi_extra=described_query(LISTED))
async def list_retries(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """The retries of one queue, the next one first."""
    await require_to_browse(caller, vhost, name)
    query = request.query_params
    found = await caller.perform(
        retry_list,
        vhost=vhost,
        queue=name,
        id_=query.get("id"),
        message_id=query.get("message_id"),
        exchange=query.get("exchange"),
        routing_key=query.get("routing_key"),
        headers=headers(query),
        due_from_ms=whole_number(query, "due_from_ms"),
        due_before_ms=whole_number(query, "due_before_ms"),
        limit=whole_number(query, "limit", ROWS),
        after=place_of(query.get("after"), cursor),
        partition=whole_number(query, "partition"),
    )
    return answer({**found, "after": place_text(found["after"], cursor_text)})


@router.api_route("/messages/{id}", methods=READ, openapi_extra=described_query({"partition": 0}))
async def show_retry(
    caller: CallerHere,
    request: Request,
    vhost: Segment,
    name: Segment,
    id: Segment,  # noqa: A002
) -> Response:
    """One retry."""
    partition = whole_number(request.query_params, "partition")
    found = await caller.perform(retry_show, vhost=vhost, queue=name, id_=id, partition=partition)
    return answer(found)


@router.post("/retry", openapi_extra=described(EXAMPLE))
async def retry_now(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Retry messages at once."""
    return await _deal(caller, request, retry_retry_now, (vhost, name))


@router.post("/cancel", openapi_extra=described(EXAMPLE))
async def cancel(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Cancel the retries of messages."""
    return await _deal(caller, request, retry_cancel, (vhost, name))


async def _deal(
    caller: Caller, request: Request, operation: AnyCommand, queue: tuple[str, str]
) -> Response:
    vhost, name = queue
    await require_to_browse(caller, vhost, name)
    asked = await json_object(request)
    selected = {
        "ids": texts(asked, "ids"),
        "all": truth(asked, "all"),
        "partition": asked.get("partition"),
    }
    return answer({"count": await caller.perform(operation, vhost=vhost, queue=name, **selected)})
