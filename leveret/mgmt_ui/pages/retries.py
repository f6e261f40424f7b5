"""Pages of failed messages that wait for a retry, by queue.

Users who may consume from a queue may retry them at once, or cancel the retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.features.retry.commands import retry_cancel, retry_list, retry_retry_now, retry_show
from leveret.features.retry.retrying import retries_waiting
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.places import place_of, place_text
from leveret.mgmt_ui.api.schedules import cursor, cursor_text
from leveret.mgmt_ui.pages.celery import with_tasks
from leveret.mgmt_ui.pages.choosing import (
    Chosen,
    chosen_partition,
    perform_on_each,
    readable_queue,
    readable_queues,
    selected_places,
)
from leveret.mgmt_ui.pages.formats import path, with_query
from leveret.mgmt_ui.pages.forms import Form, FormHere, refusals_told, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.pages.waiting import waiting_message, waiting_selection
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

ROWS = 50
CRITERIA = ("exchange", "routing_key", "id", "message_id", "header", "due_from", "due_before")

router = LazyRouter(prefix="/retries")


@router.get("")
async def list_queues(request: Request, viewer: ViewerHere) -> Response:
    """Show the queues with a retry policy or retries."""
    queues = await readable_queues(
        viewer, lambda queue: queue.settings.retry is not None or retries_waiting(queue) is not None
    )
    rows = [
        {
            "vhost": queue.definition.vhost,
            "name": queue.name,
            "pending": retries_waiting(queue) or 0,
            "died": queue.died_count,
        }
        for queue in queues
    ]
    return page(request, viewer, "retries.html.j2", rows=rows)


@router.get("/{vhost}/{name}")
async def list_retries(
    request: Request, viewer: ViewerHere, vhost: Segment, name: Segment
) -> Response:
    """Show the retries of one queue, the next one first."""
    held = await readable_queue(viewer, vhost, name)
    query = request.query_params
    part = chosen_partition(held, query.get("partition", ""))
    after = place_of(query.get("after") or None, cursor)
    asked = {key: query.get(key, "") for key in CRITERIA}
    found = await viewer.caller.perform(
        retry_list,
        vhost=vhost,
        queue=name,
        limit=ROWS,
        after=after,
        partition=part.number,
        **waiting_selection(asked),
    )
    rows = with_tasks(found["rows"])
    here, following = path("retries", vhost, name), None
    if (place := place_text(found["after"], cursor_text)) is not None:
        following = with_query(here, **asked, partition=part.text, after=place)
    return page(
        request,
        viewer,
        "retry.html.j2",
        vhost=vhost,
        queue=name,
        rows=rows,
        has_tasks=any(row["task"] for row in rows),
        pending=found["pending"],
        asked=asked,
        part=part,
        is_filtered=any(asked.values()),
        first=with_query(here, **asked, partition=part.text),
        following=following,
        is_first=after is None,
        now_ms=viewer.now_ms,
    )


@router.get("/{vhost}/{name}/messages/{id}")
async def show(
    request: Request,
    viewer: ViewerHere,
    vhost: Segment,
    name: Segment,
    id: Segment,  # noqa: A002
) -> Response:
    """Show one retry."""
    held = await readable_queue(viewer, vhost, name)
    part = chosen_partition(held, request.query_params.get("partition", ""))
    found = await viewer.caller.perform(
        retry_show, vhost=vhost, queue=name, id_=id, partition=part.number
    )
    return waiting_message(
        request,
        viewer,
        found,
        vhost=vhost,
        room=f"Retries of {name}",
        back=with_query(path("retries", vhost, name), partition=part.text),
        query={"partition": part.text},
    )


@router.post("/{vhost}/{name}/now")
async def retry_now(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Retry the chosen messages, or all, at once."""
    return await _deal(viewer, form, retry_retry_now, "were retried", (vhost, name))


@router.post("/{vhost}/{name}/cancel")
async def cancel(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Cancel the retries of the chosen messages."""
    return await _deal(viewer, form, retry_cancel, "were deleted", (vhost, name))


async def _deal(
    viewer: Viewer, form: Form, operation: AnyCommand, done: str, queue: tuple[str, str]
) -> Response:
    vhost, name = queue
    part = chosen_partition(await readable_queue(viewer, vhost, name), form.word("partition"))
    with refusals_told(viewer):
        counts = await perform_on_each(
            viewer, operation, _selections(form, part), vhost=vhost, queue=name
        )
        if counts:
            viewer.session.tell(f"{sum(counts)} messages of queue {name} {done}.")
    return seeing(with_query(path("retries", vhost, name), partition=part.text))


def _selections(form: Form, part: Chosen) -> list[dict[str, Any]]:
    """Return the checked messages, or all, of each partition. Raises ApiError 400."""
    if form.word("which") == "all":
        return [{"ids": [], "all": True, "partition": number} for number in part.each]
    chosen = selected_places(form, part)
    return [{"ids": ids, "all": False, "partition": number} for number, ids in chosen.items()]
