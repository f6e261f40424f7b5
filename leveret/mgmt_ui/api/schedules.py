"""/api/leveret/schedules/VHOST: delayed messages.

    GET    …                    ?id&message_id&exchange&routing_key&header&due_from_ms
                                &due_before_ms&limit&after&queue
                                → {"rows": […], "after": "DUE-OFFSET" | null, "pending": 5}
    GET    …/messages/ID        ?queue; one message, with its properties and its payload
    POST   …/cancel             {"id"}, or a selection, or {"all": true}; {"queue"}
    POST   …/deliver            the same, without queue: deliver at once → {"count": 3}
    POST   …/reschedule         the same, without queue, and {"delay_ms"} or {"due_ms"}

With `queue` it is about the Celery tasks that a queue holds, for users who may browse that queue.
The others may be listed by users who may enter the virtual host. Headers and message ids, selection
by them (without `exchange`: for every exchange) and changes need permission to publish to the
messages' exchange. Times are milliseconds since 1970.

A request scans a bounded number of messages: a search may answer few rows or none, and `after`,
where the next request continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.features.delay.commands import (
    schedule_cancel,
    schedule_deliver_now,
    schedule_list,
    schedule_reschedule,
    schedule_show,
)
from leveret.mgmt_ui.api.bodies import headers, json_object, table, text, truth, whole_number
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.describing import body as described
from leveret.mgmt_ui.api.describing import query as described_query
from leveret.mgmt_ui.api.listing import READ, Segment, answer
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.mgmt_ui.api.callers import Caller

__all__ = [
    "CRITERIA",
    "cursor",
    "cursor_text",
    "read_cursor",
    "require_to_publish",
    "router",
    "with_open_headers",
]

ROWS = 100
CURSOR_DIGITS_MAX = 18
GUARDED = {"headers", "message_id"}
CRITERIA = {
    "exchange": "orders",
    "routing_key": "k",
    "message_id": "m-1",
    "due_from_ms": 1_700_000_000_000,
    "due_before_ms": 1_800_000_000_000,
}
LISTED = {
    **CRITERIA,
    "id": "a1",
    "header": ["name=value"],
    "queue": "tasks",
    "limit": ROWS,
    "after": "1700000000000-17",
}
EXAMPLE = {**CRITERIA, "id": "a1", "headers": {}, "all": False}
CANCELLED = {**EXAMPLE, "queue": "tasks"}
RESCHEDULED = {**EXAMPLE, "delay_ms": 60_000, "due_ms": 1_800_000_000_000}

router = own_router("/schedules/{vhost}")


@router.api_route("", methods=READ, openapi_extra=described_query(LISTED))
async def list_schedules(caller: CallerHere, request: Request, vhost: Segment) -> Response:
    """Delayed messages, the next one first."""
    query = request.query_params
    queue = query.get("queue")
    await _require_to_look(caller, vhost, queue)
    stated, exchange, message_id = headers(query), query.get("exchange"), query.get("message_id")
    is_secret = bool(stated) or message_id is not None  # a match reveals their values
    if is_secret and queue is None:
        await require_to_publish(caller, vhost, exchange)
    found = await caller.perform(
        schedule_list,
        vhost=vhost,
        exchange=exchange,
        routing_key=query.get("routing_key"),
        headers=stated,
        id_=query.get("id"),
        message_id=message_id,
        due_from_ms=whole_number(query, "due_from_ms"),
        due_before_ms=whole_number(query, "due_before_ms"),
        queue=queue,
        limit=whole_number(query, "limit", ROWS),
        after=cursor(query.get("after")),
    )
    if queue is None:
        rows = await with_open_headers(caller, vhost, found["rows"])
        # An exchange that is gone is none of those that were asked about.
        found["rows"] = [row for row in rows if "headers" in row] if is_secret else rows
    return answer({**found, "after": cursor_text(found["after"])})


async def with_open_headers(
    caller: Caller, vhost: str, rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows without the fields that need permission to publish to the row's exchange."""
    may: dict[str, bool] = {}
    shown = []
    for row in rows:
        name = row["exchange"] or "amq.default"
        if name not in may:
            may[name] = await caller.may(vhost, "exchange", name, "write")
        shown.append({key: row[key] for key in row if key not in GUARDED or may[name]})
    return shown


@router.api_route("/messages/{id}", methods=READ, openapi_extra=described_query({"queue": "tasks"}))
async def show_schedule(
    caller: CallerHere,
    request: Request,
    vhost: Segment,
    id: Segment,  # noqa: A002
) -> Response:
    """One delayed message with its payload; needs permission to publish or consume it."""
    queue = request.query_params.get("queue")
    await _require_to_look(caller, vhost, queue)
    found = await caller.perform(schedule_show, vhost=vhost, queue=queue, id_=id)
    if queue is None:
        await caller.require(vhost, "exchange", found["exchange"] or "amq.default", "write")
    return answer(found)


async def _require_to_look(caller: Caller, vhost: str, queue: str | None) -> None:
    """Raise ApiError unless the caller may list delayed messages, or those a queue holds."""
    if queue is None:
        caller.vhost(vhost)
    else:
        await require_to_browse(caller, vhost, queue)


@router.post("/cancel", openapi_extra=described(CANCELLED))
async def cancel(caller: CallerHere, request: Request, vhost: Segment) -> Response:
    """Cancel delayed messages: they are never delivered."""
    asked = await json_object(request)
    queue = text(asked, "queue", None)
    if queue is None:
        await _require_to_change(caller, vhost, asked)
    else:
        await require_to_browse(caller, vhost, queue)
    return await _done(caller, schedule_cancel, _selected(vhost, asked), queue=queue)


@router.post("/deliver", openapi_extra=described(EXAMPLE))
async def deliver_now(caller: CallerHere, request: Request, vhost: Segment) -> Response:
    """Deliver delayed messages at once."""
    asked = await json_object(request)
    await _require_to_change(caller, vhost, asked)
    return await _done(caller, schedule_deliver_now, _selected(vhost, asked))


@router.post("/reschedule", openapi_extra=described(RESCHEDULED))
async def reschedule(caller: CallerHere, request: Request, vhost: Segment) -> Response:
    """Deliver delayed messages at another time."""
    asked = await json_object(request)
    await _require_to_change(caller, vhost, asked)
    when = {key: asked.get(key) for key in ("delay_ms", "due_ms")}
    return await _done(caller, schedule_reschedule, _selected(vhost, asked), **when)


async def _done(
    caller: Caller, operation: AnyCommand, selected: dict[str, Any], **more: object
) -> Response:
    return answer({"count": await caller.perform(operation, **selected, **more)})


async def _require_to_change(caller: Caller, vhost: str, asked: dict[str, Any]) -> None:
    """Raise ApiError unless the caller may publish to the exchanges of the chosen messages."""
    caller.vhost(vhost)
    id_, exchange = text(asked, "id", None), text(asked, "exchange", None)
    if id_ is not None:
        held = await caller.perform(schedule_show, vhost=vhost, queue=None, id_=id_)
        exchange = held["exchange"]
    await require_to_publish(caller, vhost, exchange)


async def require_to_publish(caller: Caller, vhost: str, exchange: str | None) -> None:
    """Raise ApiError unless the caller may publish to an exchange, or to every one."""
    exchanges = list(caller.vhost(vhost).exchanges) if exchange is None else [exchange]
    for name in exchanges:
        await caller.require(vhost, "exchange", name or "amq.default", "write")


def _selected(vhost: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the selection of messages, as operations take it. Raises ApiError 400."""
    return {
        "vhost": vhost,
        "id": text(asked, "id", None),
        "exchange": text(asked, "exchange", None),
        "routing_key": text(asked, "routing_key", None),
        "headers": table(asked, "headers"),
        "message_id": text(asked, "message_id", None),
        "due_from_ms": asked.get("due_from_ms"),
        "due_before_ms": asked.get("due_before_ms"),
        "all": truth(asked, "all"),
    }


def cursor(given: str | None) -> list[int] | None:
    """Parse the cursor of a list. Raises ApiError 400."""
    if given is None:
        return None
    place = read_cursor(given)
    if place is None:
        raise bad_request("after is what an answer before has said")
    return place


def read_cursor(given: str) -> list[int] | None:
    """Return due time and offset of a cursor; None if malformed."""
    parts = given.split("-")
    if len(parts) == 2 and all(
        part.isascii() and part.isdigit() and len(part) <= CURSOR_DIGITS_MAX for part in parts
    ):
        return [int(part) for part in parts]
    return None


def cursor_text(place: list[int] | None) -> str | None:
    """Return the cursor of a list as text for an answer."""
    return None if place is None else "-".join(map(str, place))
