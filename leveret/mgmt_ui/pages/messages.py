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
from leveret.mgmt_ui.api.messages import require_to_browse, require_to_transfer
from leveret.mgmt_ui.api.problems import ApiError, bad_request, queue_not_found
from leveret.mgmt_ui.pages.bodies import BODY_BYTES_MAX, FORMS, body_of, shown_as
from leveret.mgmt_ui.pages.choosing import chosen_partition
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
    after: int | None


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
    found, failure = Found([], 0, None), ""
    try:
        answer = await viewer.caller.perform(
            message_list,
            vhost=vhost,
            queue=name,
            select={**_selection(asked), "partition": part.number},
            backwards=asked.get("order") != "forwards",
            after=_offset(query, "after"),
            limit=ROWS,
            truncate=PREVIEW_BYTES,
            encoding=None,
            **{"from": _offset(asked, "from")},
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
        partitions=part.numbers,
        found=found,
        failure=failure,
        states=list(MessageState),
        is_filtered=any(asked[key] for key in CRITERIA),
        is_first=not query.get("after"),
        following=None
        if found.after is None
        else with_query(here, **asked, after=str(found.after)),
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
        offset=_offset({"offset": offset}, "offset") or 0,
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


def _offset(asked: Mapping[str, str], key: str) -> int | None:
    text = asked.get(key, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise bad_request(f"an offset is a whole number, not {text}")
    return int(text)


def _selected(form: Form) -> dict[str, Any]:
    """Return the checked messages, or all that match the filter. Raises ApiError 400."""
    if form.word("which") == "matching":
        return _selection({key: form.word(key) for key in CRITERIA})
    offsets = [_offset({"offset": text}, "offset") for text in form.all("offset")]
    if not offsets:
        raise bad_request("select some messages first")
    return {"offsets": offsets}


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
        answer = await viewer.caller.perform(
            command,
            vhost=vhost,
            queue=name,
            select={**_selected(form), "partition": part.number},
            after=None,
            limit=None,
            **where,
        )
        viewer.session.tell(_told(answer, done, name), failed=not answer[done])
    asked = {key: form.word(key) for key in (*CRITERIA, "from", "order")}
    asked["partition"] = part.text
    return seeing(with_query(path("queues", vhost, name, "messages"), **asked))


def _told(answer: Mapping[str, Any], verb: str, name: str) -> str:
    """Return the notice about the chosen messages."""
    parts = [f"{answer[verb]} messages of queue {name} were {verb}"]
    if answer["skipped"]:
        parts.append(f"{answer['skipped']} were unacknowledged and left in place")
    if answer.get("unroutable"):
        parts.append(f"{answer['unroutable']} were unroutable and left in place")
    if answer.get("refused"):
        parts.append("the destination refused the rest")
    if answer["after"] is not None:
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
