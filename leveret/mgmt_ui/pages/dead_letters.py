"""Pages of dead letters: list, delete, redrive.

Users who may consume from a dead-letter queue may list and delete; those who may publish to the
destination may also redrive, and to redrive to the original exchanges they need permission for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.settings.queue_settings import TOPIC_SUFFIX
from leveret.features.dead_letter.commands import (
    dlq_cancel,
    dlq_delete,
    dlq_list,
    dlq_pause,
    dlq_redrive,
    dlq_resume,
    dlq_status,
)
from leveret.features.dead_letter.redrive_rules import RedriveState
from leveret.mgmt_ui.api.dead_letters import require_to_redrive
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.messages import offset_after
from leveret.mgmt_ui.api.places import place_of, place_text
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.pages.celery import with_tasks
from leveret.mgmt_ui.pages.choosing import (
    Chosen,
    chosen_partition,
    perform_on_each,
    readable_queue,
    readable_queues,
    selected_offsets,
)
from leveret.mgmt_ui.pages.formats import epoch_ms, path, with_query
from leveret.mgmt_ui.pages.forms import Form, FormHere, refusals_told, seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.pages.waiting import header_criterion
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import in_yielding_chunks
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

ROWS = 50
CRITERIA = ("message_id", "reason", "source", "header", "since", "until")
CONTROLS = {
    "pause": (dlq_pause, RedriveState.PAUSED, "paused"),
    "resume": (dlq_resume, RedriveState.RUNNING, "resumed"),
    "cancel": (dlq_cancel, RedriveState.CANCELLED, "cancelled"),
}

router = LazyRouter(prefix="/dead-letters")


@router.get("")
async def list_queues(request: Request, viewer: ViewerHere) -> Response:
    """Show the dead-letter queues."""
    sources = {vhost.name: await _sources(vhost) for vhost in viewer.caller.open_vhosts()}
    queues = await readable_queues(
        viewer, lambda queue: queue.name in sources.get(queue.definition.vhost, ())
    )
    rows = [
        {
            "vhost": queue.definition.vhost,
            "name": queue.name,
            "sources": sorted(sources[queue.definition.vhost].get(queue.name, ())),
            "ready": queue.message_count,
            "unacked": queue.leased_count,
        }
        for queue in queues
    ]
    return page(request, viewer, "dead_letters.html.j2", rows=rows)


async def _sources(vhost: Vhost) -> dict[str, set[str]]:
    """Return the dead-letter queues and their source queues, by current settings."""
    found: dict[str, set[str]] = {}
    async for part in in_yielding_chunks(list(vhost.queues.values())):
        for queue in part:
            if queue.definition.name.endswith(TOPIC_SUFFIX):
                found.setdefault(queue.definition.name, set())
            if isinstance(queue, DeclaredQueue) and not queue.settings.is_stream:
                for target in _targets(vhost, queue):
                    found.setdefault(target, set()).add(queue.name)
    return found


def _targets(vhost: Vhost, queue: DeclaredQueue) -> set[str]:
    settings = queue.settings
    exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
    if exchange is None:
        topic = queue.name + TOPIC_SUFFIX
        return {topic} if settings.dead_letter_topic and topic in vhost.queues else set()
    if not exchange:  # the default one, to the queue that the key names
        return {key} if key is not None and key in vhost.queues else set()
    if exchange not in vhost.exchanges:
        return set()
    edges = vhost.exchanges[exchange].outgoing.values()
    return {
        edge.definition.destination
        for edge in edges
        if edge.definition.destination_type == "queue" and edge.definition.destination != queue.name
    }


@router.get("/{vhost}/{name}")
async def list_letters(
    request: Request, viewer: ViewerHere, vhost: Segment, name: Segment
) -> Response:
    """Show the dead letters of one queue, oldest first, and the status of a redrive."""
    held = await readable_queue(viewer, vhost, name)
    query = request.query_params
    part = chosen_partition(held, query.get("partition", ""))
    asked = {key: query.get(key, "") for key in CRITERIA}
    after = query.get("after", "")
    found: dict[str, Any] = {"rows": [], "after": None, "ready": 0, "unacknowledged": 0}
    failure = ""
    try:
        found = await viewer.caller.perform(
            dlq_list,
            vhost=vhost,
            queue=name,
            limit=ROWS,
            after=place_of(after or None, offset_after),
            partition=part.number,
            **_selection(asked),
        )
    except ApiError as error:
        failure = error.reason
    here = path("dead-letters", vhost, name)
    redrives = await _redrives(viewer, vhost, name, part)
    rows = with_tasks(found["rows"])
    following = None
    if found["after"] is not None:
        place = str(place_text(found["after"]))
        following = with_query(here, **asked, partition=part.text, after=place)
    return page(
        request,
        viewer,
        "dead_letter.html.j2",
        vhost=vhost,
        queue=name,
        asked=asked,
        part=part,
        found={**found, "rows": rows},
        has_tasks=any(row["task"] for row in rows),
        failure=failure,
        first=with_query(here, **asked, partition=part.text),
        is_first=not after,
        following=following,
        is_filtered=any(asked.values()),
        redrives=[each for each in redrives.values() if each["total"] or not part.are_all],
        controls={control for control in CONTROLS if _controlled(redrives, control)},
        may_redrive=all(
            viewer.may("write", "exchange", vhost, exchange or "amq.default")
            for exchange in viewer.caller.vhost(vhost).exchanges
        ),
    )


async def _redrives(
    viewer: Viewer, vhost: str, name: str, part: Chosen
) -> dict[int, dict[str, Any]]:
    """Return the redrives that run or ran last, by partition."""
    found = {}
    for number in part.each:
        with suppress(ApiError):  # it was never redriven
            found[number] = await viewer.caller.perform(
                dlq_status, vhost=vhost, queue=name, partition=number
            )
        await let_others_run()
    return found


def _controlled(redrives: Mapping[int, dict[str, Any]], control: str) -> list[int]:
    """Return the partitions whose redrive can be paused, resumed or cancelled."""
    _command, state, _told = CONTROLS[control]
    return [
        number
        for number, redrive in redrives.items()
        if RedriveState(redrive["phase"]).may_become(state)
    ]


# -- what is asked for


def _selection(asked: Mapping[str, str], offsets: Sequence[int] = ()) -> dict[str, Any]:
    """Return the selection, as operations take it. Raises ApiError 400."""
    return {
        "offsets": list(offsets),
        "message_ids": [asked["message_id"]] if asked["message_id"] else [],
        "reason": asked["reason"] or None,
        "source": asked["source"] or None,
        "headers": header_criterion(asked["header"]),
        "since": epoch_ms(asked["since"]) if asked["since"] else None,
        "until": epoch_ms(asked["until"]) if asked["until"] else None,
    }


def _selections(form: Form, part: Chosen) -> list[dict[str, Any]]:
    """Return the checked messages, or all that match the filter, of each partition.

    Raises ApiError 400.
    """
    if form.word("which") == "matching":
        matching = _selection({key: form.word(key) for key in CRITERIA})
        return [{**matching, "partition": number} for number in part.each]
    chosen, every = selected_offsets(form, part), dict.fromkeys(CRITERIA, "")
    return [
        {**_selection(every, offsets), "partition": number} for number, offsets in chosen.items()
    ]


# -- doing


@router.post("/{vhost}/{name}/redrive")
async def redrive(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Redrive the chosen messages to their original destinations, or elsewhere."""
    part = await _part(viewer, form, vhost, name)
    exchange, key = None, None
    if form.word("to") == "exchange":
        exchange, key = form.text("exchange"), form.text("routing_key") or None
    await require_to_redrive(viewer.caller, vhost, exchange, key)
    with refusals_told(viewer):
        selections, rate = _selections(form, part), form.integer("rate")
        await perform_on_each(
            viewer,
            dlq_redrive,
            selections,
            vhost=vhost,
            queue=name,
            exchange=exchange,
            routing_key=key,
            routed=form.word("to") == "routed",
            rate=None if rate is None else rate / len(selections),  # together
        )
    return seeing(_address(vhost, name, part))


@router.post("/{vhost}/{name}/redrive/{control}")
async def control_redrive(
    viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment, control: str
) -> Response:
    """Pause, resume or cancel the redrive; messages already sent stay sent."""
    part = await _part(viewer, form, vhost, name)
    await require_to_redrive(viewer.caller, vhost, None, None)
    if control not in CONTROLS:
        raise ApiError(404, "not_found", "Object Not Found")
    command, _state, told = CONTROLS[control]
    redrives = await _redrives(viewer, vhost, name, part)
    chosen = _controlled(redrives, control) or part.each  # if none can be, the refusal says why
    selections = [{"partition": number} for number in chosen]
    if await perform_on_each(viewer, command, selections, vhost=vhost, queue=name):
        viewer.session.tell(f"The redrive of queue {name} is {told}.")
    return seeing(_address(vhost, name, part))


@router.post("/{vhost}/{name}/delete")
async def delete(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Delete the chosen messages."""
    part = await _part(viewer, form, vhost, name)
    with refusals_told(viewer):
        counts = await perform_on_each(
            viewer, dlq_delete, _selections(form, part), vhost=vhost, queue=name
        )
        if counts:
            viewer.session.tell(f"{sum(counts)} messages of queue {name} were deleted.")
    return seeing(_address(vhost, name, part))


async def _part(viewer: Viewer, form: Form, vhost: str, name: str) -> Chosen:
    """Return the partition of a form. Raises ApiError 400, 401 and 404."""
    return chosen_partition(await readable_queue(viewer, vhost, name), form.word("partition"))


def _address(vhost: str, name: str, part: Chosen) -> str:
    return with_query(path("dead-letters", vhost, name), partition=part.text)
