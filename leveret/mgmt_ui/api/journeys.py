"""Where messages went, one by one (leveret.mgmt_ui.operations.journeys).

    GET  /api/leveret/queues/VHOST/NAME/messages/OFFSET/trace   of one message
    GET  /api/leveret/messages/VHOST/trace?message_id=ID        of all that have an id

Who may read from the queue may know it of its messages; all queues of a virtual host are searched
for administrators. An answer to a search says `after` which [queue, offset] the next one goes on:
as `queue` and `after` in its address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.mgmt_ui.api.answers import READ, Segment, answer
from leveret.mgmt_ui.api.bodies import whole_number
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import query as described
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import bad_request

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["router", "trace_of"]

SEARCHED = {"message_id": "m-1", "queue": "orders", "after": 17}

router = own_router()


@router.api_route("/queues/{vhost}/{name}/messages/{offset}/trace", methods=READ)
async def trace(caller: CallerHere, vhost: Segment, name: Segment, offset: Segment) -> Response:
    """The steps of one message, and who has it."""
    await require_to_browse(caller, vhost, name)
    at = whole_number({"offset": offset}, "offset")
    assert at is not None, "it is in the path"
    return answer(await trace_of(caller, vhost, name, at))


@router.api_route("/messages/{vhost}/trace", methods=READ, openapi_extra=described(SEARCHED))
async def search(caller: CallerHere, request: Request, vhost: Segment) -> Response:
    """The steps of all messages of a virtual host that have a message id."""
    caller.vhost(vhost)
    caller.require_administrator()
    query = request.query_params
    if not query.get("message_id"):
        raise bad_request("state a message_id")
    queue, after = query.get("queue"), whole_number(query, "after")
    if (queue is None) != (after is None):
        raise bad_request("queue and after belong together")
    return answer(
        await caller.perform(
            "message.trace",
            vhost=vhost,
            queue=None,
            offset=None,
            message_id=query["message_id"],
            after=None if queue is None else [queue, after],
        )
    )


async def trace_of(caller: Caller, vhost: str, queue: str, offset: int) -> dict[str, Any]:
    """One message's, without the connections of others for whoever is no monitor."""
    answer = await caller.perform(
        "message.trace", vhost=vhost, queue=queue, offset=offset, message_id=None, after=None
    )
    (told,) = answer["messages"]
    holder = told["holder"]
    if holder is not None and not (caller.is_monitor or holder["user"] == caller.name):
        told["holder"] = None
    found: dict[str, Any] = told
    return found
