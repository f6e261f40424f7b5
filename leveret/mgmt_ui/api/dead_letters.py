"""/api/leveret/dead-letters/VHOST/QUEUE: list, delete and redrive dead letters.

    GET    …                    ?limit&after&offset&message_id&reason&source&header&since&until
                                → {"rows": […], "after": OFFSET | null, "ready", "unacknowledged"}
    GET    …/messages/OFFSET    one dead letter, with its payload
    POST   …/redrive            {"offsets", "message_ids", "reason", "source", "headers", "since",
                                "until"} and {"exchange", "routing_key"} or {"routed": true};
                                {"rate"}
    GET    …/redrive            status of the redrive that runs, or ran last
    POST   …/redrive/pause      …/redrive/resume, …/redrive/cancel → its status
    POST   …/delete             {"offsets", "reason", …} → {"count": 3}

Of a dead-letter queue with several partitions `partition` names one: in the query of GET and of the
controls, else in the body. Without it all are listed, one after the other, and `after` is like
2:17, partition and offset.

Users who may consume from the queue may list and delete; those who may also publish to the
destinations may redrive. Times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.features.dead_letter.commands import (
    dlq_cancel,
    dlq_delete,
    dlq_list,
    dlq_pause,
    dlq_redrive,
    dlq_resume,
    dlq_show,
    dlq_status,
)
from leveret.mgmt_ui.api.bodies import (
    headers,
    json_object,
    path_number,
    table,
    text,
    texts,
    truth,
    whole_number,
    whole_numbers,
)
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.describing import query as described_query
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.messages import offset_after, require_to_browse, require_to_transfer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.places import place_of, place_text
from leveret.mgmt_ui.api.problems import not_found

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["require_to_redrive", "router"]

ROWS = 100
CONTROLS = {"pause": dlq_pause, "resume": dlq_resume, "cancel": dlq_cancel}
CRITERIA = {
    "reason": "rejected",
    "source": "orders",
    "since": 1_700_000_000_000,
    "until": 1_800_000_000_000,
}
SELECTION = {
    "offsets": [17],
    "message_ids": ["m-1"],
    **CRITERIA,
    "headers": {},
    "partition": 0,
}
LISTED = {
    "offset": [17],
    "message_id": ["m-1"],
    **CRITERIA,
    "header": ["name=value"],
    "limit": ROWS,
    "after": "17",
    "partition": 0,
}
PART = described_query({"partition": 0})
REDRIVE = {**SELECTION, "exchange": "again", "routing_key": "k", "routed": False, "rate": 100}

router = own_router("/dead-letters/{vhost}/{name}")


@router.api_route("", methods=READ, openapi_extra=described_query(LISTED))
async def list_letters(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """The dead letters of one queue, the oldest first."""
    await require_to_browse(caller, vhost, name)
    query = request.query_params
    found = await caller.perform(
        dlq_list,
        vhost=vhost,
        queue=name,
        offsets=whole_numbers(query, "offset"),
        message_ids=query.getlist("message_id"),
        headers=headers(query),
        limit=whole_number(query, "limit", ROWS),
        after=place_of(query.get("after"), offset_after),
        reason=query.get("reason"),
        source=query.get("source"),
        since=whole_number(query, "since"),
        until=whole_number(query, "until"),
        partition=whole_number(query, "partition"),
    )
    return answer({**found, "after": place_text(found["after"])})


@router.api_route("/messages/{offset}", methods=READ, openapi_extra=PART)
async def show_letter(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """One dead letter."""
    await require_to_browse(caller, vhost, name)
    at = path_number(offset, "offset")
    part = whole_number(request.query_params, "partition")
    return answer(
        await caller.perform(dlq_show, vhost=vhost, queue=name, offset=at, partition=part)
    )


@router.post("/redrive", openapi_extra=described(REDRIVE))
async def redrive(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Redrive dead letters to their original destinations, or elsewhere."""
    await require_to_browse(caller, vhost, name)
    asked = await json_object(request)
    exchange, key = text(asked, "exchange", None), text(asked, "routing_key", None)
    await require_to_redrive(caller, vhost, exchange, key)
    return answer(
        await caller.perform(
            dlq_redrive,
            vhost=vhost,
            queue=name,
            exchange=exchange,
            routing_key=key,
            routed=truth(asked, "routed"),
            rate=asked.get("rate"),
            **_selection(asked),
        )
    )


async def require_to_redrive(
    caller: Caller, vhost: str, exchange: str | None, key: str | None
) -> None:
    """Raise ApiError unless the caller may publish to the destinations of a redrive.

    Without an exchange that is every exchange: the messages' headers name the original one, and
    their publisher may have forged them.
    """
    where = {"exchange": exchange, "routing_key": key, "to_queue": None}
    await require_to_transfer(caller, vhost, where)
    if exchange is None:
        for name in list(caller.vhost(vhost).exchanges):
            await caller.require(vhost, "exchange", name, "write")


@router.api_route("/redrive", methods=READ, openapi_extra=PART)
async def show_redrive(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Status of the redrive that runs, or ran last."""
    part = whole_number(request.query_params, "partition")
    return answer(await caller.perform(dlq_status, vhost=vhost, queue=name, partition=part))


@router.post("/redrive/{control}", openapi_extra=PART)
async def control_redrive(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, control: Segment
) -> Response:
    """Pause, resume or cancel the redrive; messages already sent stay sent."""
    await require_to_browse(caller, vhost, name)
    if control not in CONTROLS:
        raise not_found()
    await require_to_redrive(caller, vhost, None, None)
    part = whole_number(request.query_params, "partition")
    return answer(await caller.perform(CONTROLS[control], vhost=vhost, queue=name, partition=part))


@router.post("/delete", openapi_extra=described(SELECTION))
async def delete(caller: CallerHere, request: Request, vhost: Segment, name: Segment) -> Response:
    """Delete dead letters."""
    await require_to_browse(caller, vhost, name)
    asked = await json_object(request)
    selected = _selection(asked)
    return answer({"count": await caller.perform(dlq_delete, vhost=vhost, queue=name, **selected)})


def _selection(asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "offsets": asked.get("offsets") or [],
        "message_ids": texts(asked, "message_ids"),
        "reason": text(asked, "reason", None),
        "source": text(asked, "source", None),
        "headers": table(asked, "headers"),
        "since": asked.get("since"),
        "until": asked.get("until"),
        "partition": asked.get("partition"),
    }
