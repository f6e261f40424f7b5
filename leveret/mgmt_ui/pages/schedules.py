"""Pages of a virtual host's delayed messages.

Users who may publish to the exchange of a message may also see its Celery task, reschedule, deliver
or cancel it. The Celery tasks that a queue holds are shown one queue at a time, to users who may
consume from it, and who may cancel them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.features.delay.commands import (
    schedule_cancel,
    schedule_deliver_now,
    schedule_list,
    schedule_reschedule,
    schedule_show,
)
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.problems import bad_request
from leveret.mgmt_ui.api.schedules import (
    cursor_text,
    read_cursor,
    require_to_publish,
    with_open_headers,
)
from leveret.mgmt_ui.api.views import tasks_pending
from leveret.mgmt_ui.pages.celery import with_tasks
from leveret.mgmt_ui.pages.choosing import readable_queue, selected_ids
from leveret.mgmt_ui.pages.drawing import histogram
from leveret.mgmt_ui.pages.formats import epoch_ms, with_query
from leveret.mgmt_ui.pages.forms import Form, FormHere, open_names, refusals_told, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.pages.waiting import waiting_message, waiting_selection
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

ROWS = 50
CRITERIA = ("exchange", "routing_key", "id", "message_id", "header", "due_from", "due_before")
DRAWN_MAX = 2000  # messages in the drawing, the next ones

router = LazyRouter(prefix="/schedules")


@router.get("")
async def list_schedules(request: Request, viewer: ViewerHere) -> Response:
    """Show the delayed messages of one virtual host, the next one first."""
    names = open_names(viewer)
    query = request.query_params
    vhost = query.get("vhost") or ("/" if "/" in names else next(iter(names), "/"))
    viewer.caller.vhost(vhost)
    holders = await _holders(viewer, vhost)
    asked = {key: query.get(key, "") for key in ("queue", *CRITERIA)}
    if asked["queue"] and asked["queue"] not in holders:  # another virtual host was chosen
        asked["queue"] = ""
    is_secret = bool(asked["header"] or asked["message_id"]) and not asked["queue"]
    if is_secret:
        await require_to_publish(viewer.caller, vhost, asked["exchange"] or None)
    after = read_cursor(query.get("after", ""))
    found = await _list(viewer, vhost, asked, ROWS, after)
    upcoming = await _list(viewer, vhost, asked, DRAWN_MAX, None)
    following = None
    if (place := cursor_text(found["after"])) is not None:
        following = with_query("/schedules", vhost=vhost, **asked, after=place)
    if not asked["queue"]:
        shown = await with_open_headers(viewer.caller, vhost, found["rows"])
        found["rows"] = [row for row in shown if "headers" in row] if is_secret else shown
    rows = with_tasks(found["rows"])
    for row in rows:
        exchange = row["exchange"] or "amq.default"
        row["may"] = bool(asked["queue"]) or viewer.may("write", "exchange", vhost, exchange)
    return page(
        request,
        viewer,
        "schedules.html.j2",
        vhost=vhost,
        vhosts=names,
        holders=holders,
        asked=asked,
        rows=rows,
        has_tasks=any(row["task"] for row in rows),
        pending=found["pending"],
        first=with_query("/schedules", vhost=vhost, **asked),
        following=following,
        is_first=after is None,
        is_filtered=any(asked.values()),
        drawing=histogram([row["due_ms"] for row in upcoming["rows"]], viewer.now_ms),
        drawn=len(upcoming["rows"]),
        now_ms=viewer.now_ms,
    )


async def _holders(viewer: Viewer, vhost: str) -> dict[str, int]:
    """Return the queues that hold Celery tasks and that the user may read, with counts."""
    found = {
        queue.name: tasks_pending(queue)
        async for part in in_yielding_chunks(list(viewer.caller.vhost(vhost).queues.values()))
        for queue in part
        if isinstance(queue, DeclaredQueue)
        and (queue.settings.celery_eta or tasks_pending(queue))
        and (queue.owner is None or viewer.caller.is_administrator)
        and viewer.may("read", "queue", vhost, queue.name)
    }
    return dict(sorted(found.items()))


async def _list(
    viewer: Viewer, vhost: str, asked: dict[str, str], limit: int, after: list[int] | None
) -> dict[str, Any]:
    found: dict[str, Any] = await viewer.caller.perform(
        schedule_list,
        vhost=vhost,
        **waiting_selection(asked),
        queue=asked["queue"] or None,
        limit=limit,
        after=after,
    )
    return found


@router.get("/messages/{id}")
async def show(
    request: Request,
    viewer: ViewerHere,
    id: Segment,  # noqa: A002
) -> Response:
    """Show one message; needs permission to publish it, or to consume the task."""
    query = request.query_params
    vhost, queue = query.get("vhost", "/"), query.get("queue") or None
    viewer.caller.vhost(vhost)
    if queue is not None:
        await readable_queue(viewer, vhost, queue)
    found = await viewer.caller.perform(schedule_show, vhost=vhost, queue=queue, id_=id)
    if queue is None:
        exchange = found["exchange"] or "amq.default"
        await viewer.caller.require(vhost, "exchange", exchange, "write")
    return waiting_message(
        request,
        viewer,
        found,
        vhost=vhost,
        room="Schedules",
        back=with_query("/schedules", vhost=vhost, queue=queue),
        query={"vhost": vhost, "queue": queue},
    )


@router.post("/cancel")
async def cancel(viewer: ViewerHere, form: FormHere) -> Response:
    """Cancel the chosen messages: they are never delivered."""
    vhost, queue = form.text("vhost"), form.text("queue") or None
    if queue is not None:
        await readable_queue(viewer, vhost, queue)
    return await _each(viewer, form, schedule_cancel, "cancelled", queue=queue)


@router.post("/deliver")
async def deliver_now(viewer: ViewerHere, form: FormHere) -> Response:
    """Deliver the chosen messages at once."""
    return await _each(viewer, form, schedule_deliver_now, "delivered")


@router.post("/reschedule")
async def reschedule(viewer: ViewerHere, form: FormHere) -> Response:
    """Deliver the chosen messages at a given time, or some minutes from now."""
    minutes, time = form.integer("delay_minutes"), form.word("due")
    if (minutes is None) == (not time):
        raise bad_request("give either a time, or minutes from now")
    when = {
        "delay_ms": None if minutes is None else minutes * 60_000,
        "due_ms": epoch_ms(time) if time else None,
    }
    return await _each(viewer, form, schedule_reschedule, "rescheduled", **when)


async def _each(
    viewer: Viewer, form: Form, operation: AnyCommand, done: str, **more: object
) -> Response:
    vhost, count = form.text("vhost"), 0
    viewer.caller.vhost(vhost)
    holder = more.get("queue")
    with refusals_told(viewer):
        for id_ in selected_ids(form):
            if holder is None:
                await _require_to_publish(viewer, vhost, id_)
            count += await viewer.caller.perform(
                operation,
                vhost=vhost,
                exchange=None,
                routing_key=None,
                headers={},
                due_from_ms=None,
                due_before_ms=None,
                message_id=None,
                id_=id_,
                all=False,
                **more,
            )
    if count:
        viewer.session.tell(f"{count} messages of {vhost} were {done}.")
    return seeing(with_query("/schedules", vhost=vhost, queue=holder))


async def _require_to_publish(viewer: Viewer, vhost: str, id_: str) -> None:
    """Raise ApiError unless the user may publish to the exchange of a message."""
    held = await viewer.caller.perform(schedule_show, vhost=vhost, queue=None, id_=id_)
    await viewer.caller.require(vhost, "exchange", held["exchange"] or "amq.default", "write")
