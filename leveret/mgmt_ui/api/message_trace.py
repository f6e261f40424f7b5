"""Traces of single messages (leveret.features.trace.commands).

    GET  /api/leveret/queues/VHOST/NAME/messages/OFFSET/trace   of one message (?partition)
    GET  /api/leveret/messages/VHOST/trace?message_id=ID        of all messages with an id

Users who may read from the queue may trace its messages; administrators may search all queues of a
virtual host, and its waiting messages: those to be retried, delayed ones, Celery tasks with an ETA,
and prepared messages. `after` in an answer is the query parameter `after` of the request that
continues the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.features.trace.commands import message_trace
from leveret.mgmt_ui.api.bodies import path_number, whole_number
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import query as described
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import bad_request

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["router", "trace_of"]

SEARCHED = {"message_id": "m-1", "after": "0.17.0.orders"}
TRACED = described({"partition": 0})
ROUTE = "/queues/{vhost}/{name}/messages/{offset}/trace"

router = own_router()


@router.api_route(ROUTE, methods=READ, openapi_extra=TRACED)
async def trace(
    caller: CallerHere, request: Request, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """The trace of one message, and its current holder."""
    await require_to_browse(caller, vhost, name)
    at, part = path_number(offset, "offset"), whole_number(request.query_params, "partition")
    return answer(await trace_of(caller, vhost, name, at, part))


@router.api_route("/messages/{vhost}/trace", methods=READ, openapi_extra=described(SEARCHED))
async def search(caller: CallerHere, request: Request, vhost: Segment) -> Response:
    """The traces of all messages of a virtual host with a message id."""
    caller.vhost(vhost)
    caller.require_administrator()
    query = request.query_params
    if not query.get("message_id"):
        raise bad_request("state a message_id")
    found = await caller.perform(
        message_trace,
        vhost=vhost,
        queue=None,
        offset=None,
        message_id=query["message_id"],
        after=_place(query.get("after")),
    )
    return answer({**found, "after": _place_text(found["after"])})


def _place(given: str | None) -> list[object] | None:
    """Parse the cursor of a search. Raises ApiError 400."""
    if given is None:
        return None
    parts = given.split(".", 3)  # names may have dots
    if len(parts) != 4:
        raise bad_request("after is what an answer before has said")
    stage, first, second = (whole_number({"after": part}, "after") for part in parts[:3])
    return [stage, parts[3], first, second]


def _place_text(place: list[Any] | None) -> str | None:
    """Return the cursor of a search as text for an answer."""
    if place is None:
        return None
    stage, name, first, second = place
    return f"{stage}.{first}.{second}.{name}"


async def trace_of(
    caller: Caller, vhost: str, queue: str, offset: int, partition: int | None = None
) -> dict[str, Any]:
    """Return one message's trace; only monitors see other users' connections."""
    answer = await caller.perform(
        message_trace,
        vhost=vhost,
        queue=queue,
        offset=offset,
        message_id=None,
        after=None,
        partition=partition,
    )
    (told,) = answer["messages"]
    holder = told["holder"]
    if holder is not None and not (caller.is_monitor or holder["user"] == caller.name):
        told["holder"] = None
    found: dict[str, Any] = told
    return found
