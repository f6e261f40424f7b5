"""Pages of messages of a queue or stream: browse, search, show, publish, delete, move, copy.

Browsing uses a cursor, as queues are logs: an answer scans a bounded number of messages and says
where the next one continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.features.browse.commands import (
    message_copy,
    message_delete,
    message_list,
    message_move,
    message_show,
)
from leveret.features.browse.message_filter import MessageState
from leveret.features.trace.message_trace import sentences
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.message_trace import trace_of
from leveret.mgmt_ui.api.messages import offset_after, require_to_browse, require_to_transfer
from leveret.mgmt_ui.api.places import place_of, place_text
from leveret.mgmt_ui.api.problems import ApiError, bad_request, queue_not_found
from leveret.mgmt_ui.pages.bodies import BODY_BYTES_MAX, FORMS, body_of, shown_as
from leveret.mgmt_ui.pages.choosing import (
    Chosen,
    chosen_partition,
    offset_of,
    perform_on_each,
    selected_offsets,
)
from leveret.mgmt_ui.pages.formats import epoch_ms, path, with_query
from leveret.mgmt_ui.pages.forms import Form, FormHere, refusals_told, seeing
from leveret.mgmt_ui.pages.publishing import BLANK, DEFAULT_EXCHANGE, publish_written
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

ROWS = 50
PREVIEW_BYTES = 160  # of each body in the list
TEXTS = ("state", "exchange", "routing_key", "text", "tags", "sql")
TIMES = ("since", "until")
CRITERIA = (*TEXTS, *TIMES, "header", "message_id")
DELETE = (message_delete, "deleted")
MOVE = (message_move, "moved")
COPY = (message_copy, "copied")

router = LazyRouter(prefix="/queues/{vhost}/{name}/messages")


class Found(NamedTuple):
    """Result of one scan of a queue, and where the next one continues."""

    messages: list[dict[str, Any]]
    scanned: int
    after: Any  # place in the list


# -- looking


@router.get("")
async def browse(request: Request, viewer: ViewerHere, vhost: Segment, name: Segment) -> Response:
    """Show messages that match the filter, from the oldest or from the newest."""
    await require_to_browse(viewer.caller, vhost, name)
    return await _browse(request, viewer, vhost, name)


async def _browse(
    request: Request,
    viewer: Viewer,
    vhost: str,
    name: str,
    *,
    form: Form = BLANK,
    refused: ApiError | None = None,
) -> Response:
    """Return the page; after an invalid form with its fields and the error."""
    queue = _existing(viewer, vhost, name)
    query = request.query_params
    asked = {key: query.get(key, "") for key in (*CRITERIA, "from", "order")}
    part = chosen_partition(queue, query.get("partition", ""))
    asked["partition"] = part.text
    begin = asked["from"].strip()
    found, failure = Found([], 0, None), ""
    try:
        answer = await viewer.caller.perform(
            message_list,
            vhost=vhost,
            queue=name,
            select={**_selection(asked), "partition": part.number},
            backwards=asked.get("order") != "forwards",
            after=place_of(query.get("after") or None, offset_after),
            limit=ROWS,
            truncate=PREVIEW_BYTES,
            encoding=None,
            **{"from": offset_of(begin) if begin else None},
        )
        found = Found(**answer)
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        failure = error.reason
    here = path("queues", vhost, name, "messages")
    return page(
        request,
        viewer,
        "messages.html.j2",
        status=200 if refused is None else refused.status,
        form=form,
        refusal="" if refused is None else refused.reason,
        vhost=vhost,
        queue=name,
        asked=asked,
        part=part,
        found=found,
        failure=failure,
        states=list(MessageState),
        is_filtered=any(asked[key] for key in CRITERIA),
        is_first=not query.get("after"),
        following=None
        if found.after is None
        else with_query(here, **asked, after=str(place_text(found.after))),
        first=with_query(here, **asked),
        may=_rights(viewer, queue),
    )


@router.get("/{offset}")
async def show(
    request: Request, viewer: ViewerHere, vhost: Segment, name: Segment, offset: Segment
) -> Response:
    """Show one message: address, properties, headers, body and trace."""
    await require_to_browse(viewer.caller, vhost, name)
    queue = _existing(viewer, vhost, name)
    part = chosen_partition(queue, request.query_params.get("partition", ""))
    found = await viewer.caller.perform(
        message_show,
        vhost=vhost,
        queue=name,
        offset=offset_of(offset),
        truncate=BODY_BYTES_MAX,
        encoding=None,
        partition=part.number,
    )
    properties = dict(found["properties"])
    headers = properties.pop("headers", None) or {}
    form, text = shown_as(body_of(found), request.query_params.get("as", ""))
    told = await trace_of(viewer.caller, vhost, name, found["offset"], part.number)
    return page(
        request,
        viewer,
        "message.html.j2",
        vhost=vhost,
        queue=name,
        partition=part.text,
        message=found,
        properties=properties,
        headers=headers,
        text=text,
        form=form,
        forms=FORMS,
        steps=sentences(told),
        may=_rights(viewer, queue),
    )


def _existing(viewer: Viewer, vhost: str, name: str) -> DeclaredQueue:
    """Return a queue that the user may see. Raises ApiError 401 and 404."""
    host = viewer.caller.vhost(vhost)
    held = host.queues.get(name)
    if held is None:
        raise queue_not_found(host, name)
    return viewer.broker.find_queue(host, name, held.owner)


def _rights(viewer: Viewer, queue: DeclaredQueue) -> dict[str, bool]:
    """Return which actions to offer; messages cannot be taken from a stream."""
    vhost = queue.definition.vhost
    return {
        "take": not queue.settings.is_stream,
        "publish": viewer.may("write", "exchange", vhost, "amq.default"),
    }


# -- what is asked for


def _selection(asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter as operations take it, from text fields. Raises ApiError 400."""
    select: dict[str, Any] = {key: asked[key] for key in TEXTS if asked.get(key)}
    for key in TIMES:
        if asked.get(key):
            select[key] = epoch_ms(asked[key])
    if asked.get("message_id"):
        select["message_ids"] = [asked["message_id"].strip()]
    if asked.get("header"):
        header, equals, value = asked["header"].partition("=")
        if not equals:
            raise bad_request("a header filter has the form name=value")
        select["headers"] = {header.strip(): value.strip()}
    return select


def _selections(form: Form, part: Chosen) -> list[dict[str, Any]]:
    """Return the checked messages, or all that match the filter, of each partition.

    Raises ApiError 400.
    """
    if form.word("which") == "matching":
        matching = _selection({key: form.word(key) for key in CRITERIA})
        return [{**matching, "partition": number} for number in part.each]
    chosen = selected_offsets(form, part)
    return [{"offsets": offsets, "partition": number} for number, offsets in chosen.items()]


# -- doing


@router.post("/delete")
async def delete(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Settle the chosen messages."""
    return await _deal(viewer, form, DELETE, (vhost, name), {})


@router.post("/move")
async def move(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Publish the chosen messages elsewhere and settle them here."""
    return await _deal(viewer, form, MOVE, (vhost, name), _destination(form))


@router.post("/copy")
async def copy(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Publish copies of the chosen messages elsewhere."""
    return await _deal(viewer, form, COPY, (vhost, name), _destination(form))


async def _deal(
    viewer: Viewer,
    form: Form,
    verb: tuple[AnyCommand, str],
    queue: tuple[str, str],
    where: dict[str, str | None],
) -> Response:
    (command, done), (vhost, name) = verb, queue
    await require_to_browse(viewer.caller, vhost, name)
    part = chosen_partition(_existing(viewer, vhost, name), form.word("partition"))
    if where:
        await require_to_transfer(viewer.caller, vhost, where)
    with refusals_told(viewer):
        answers = await perform_on_each(
            viewer,
            command,
            [{"select": selection} for selection in _selections(form, part)],
            vhost=vhost,
            queue=name,
            after=None,
            limit=None,
            **where,
        )
        if answers:
            has_failed = not any(answer[done] for answer in answers)
            viewer.session.tell(_told(answers, done, name), failed=has_failed)
    asked = {key: form.word(key) for key in (*CRITERIA, "from", "order")}
    asked["partition"] = part.text
    return seeing(with_query(path("queues", vhost, name, "messages"), **asked))


def _told(answers: list[dict[str, Any]], verb: str, name: str) -> str:
    """Return the notice about the chosen messages."""
    done, skipped, unroutable, refused = (
        sum(answer.get(key, 0) for answer in answers)
        for key in (verb, "skipped", "unroutable", "refused")
    )
    parts = [f"{done} messages of queue {name} were {verb}"]
    if skipped:
        parts.append(f"{skipped} were unacknowledged and left in place")
    if unroutable:
        parts.append(f"{unroutable} were unroutable and left in place")
    if refused:
        parts.append("the destination refused the rest")
    if any(answer["after"] is not None for answer in answers):
        parts.append("not all messages were scanned: repeat to continue")
    return "; ".join(parts) + "."


def _destination(form: Form) -> dict[str, str | None]:
    """Return the destination: a queue, or an exchange, with a routing key or the messages' own."""
    if form.word("to") == "exchange":
        exchange = form.text("exchange_to")
        return {"to_queue": None, "exchange": exchange, "routing_key": form.text("key_to") or None}
    return {"to_queue": form.text("to_queue"), "exchange": None, "routing_key": None}


@router.post("/publish")
async def publish(
    request: Request, viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment
) -> Response:
    """Publish one message to the queue or an exchange; an invalid form is shown again."""
    queue = _existing(viewer, vhost, name)
    part = chosen_partition(queue, request.query_params.get("partition", ""))
    exchange = form.text("exchange") or DEFAULT_EXCHANGE
    try:
        said, is_routed = await publish_written(viewer, vhost, exchange, form)
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        await require_to_browse(viewer.caller, vhost, name)
        return await _browse(request, viewer, vhost, name, form=form, refused=error)
    viewer.session.tell(said, failed=not is_routed)
    return seeing(with_query(path("queues", vhost, name, "messages"), partition=part.text))
