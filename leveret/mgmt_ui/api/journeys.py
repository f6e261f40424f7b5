"""Where messages went, one by one (leveret.mgmt_ui.operations.message_trace).

    GET  /api/leveret/queues/VHOST/NAME/messages/OFFSET/trace   of one message
    GET  /api/leveret/messages/VHOST/trace?message_id=ID        of all that have an id

Who may read from the queue may know it of its messages; all queues of a virtual host are searched
for administrators, and with them what waits: to be tried again, for its ETA or its time, or to be
decided about. An answer to a search says `after` what the next one goes on, as `after` in its
address.
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

SEARCHED = {"message_id": "m-1", "after": "0.17.0.orders"}

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
    found = await caller.perform(
        "message.trace",
        vhost=vhost,
        queue=None,
        offset=None,
        message_id=query["message_id"],
        after=_place(query.get("after")),
    )
    return answer({**found, "after": _place_text(found["after"])})


def _place(given: str | None) -> list[object] | None:
    """Where a search goes on, as the answer before has said. Raises ApiError 400."""
    if given is None:
        return None
    parts = given.split(".", 3)  # names may have dots
    if len(parts) != 4:
        raise bad_request("after is what an answer before has said")
    stage, first, second = (whole_number({"after": part}, "after") for part in parts[:3])
    return [stage, parts[3], first, second]


def _place_text(place: list[Any] | None) -> str | None:
    """The same for an answer."""
    if place is None:
        return None
    stage, name, first, second = place
    return f"{stage}.{first}.{second}.{name}"


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
