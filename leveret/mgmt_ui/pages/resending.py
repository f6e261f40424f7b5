"""GET and POST /queues/VHOST/QUEUE/messages/OFFSET/edit: edit a message and send it again.

A message in a queue does not change. The form shows it; what is changed there makes a copy, which
is put into the same queue in the original's place (`message.edit`, one atomic write), or is
published, after which the original may be deleted. Unchanged parts stay as they were on the wire,
even if a form cannot show them.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import Depends, Request, Response

from leveret.core.admin.node import partition_of
from leveret.core.definitions.administration import AdministrationError
from leveret.errors import StorageError
from leveret.features.browse.browsing import find
from leveret.features.browse.commands import message_delete, message_edit, message_show
from leveret.features.browse.editing import sent_anew
from leveret.features.browse.selection import changes_of
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.problems import ApiError, not_found, queue_not_found, refused_operation
from leveret.mgmt_ui.api.publish_get import publish_content
from leveret.mgmt_ui.pages.bodies import body_of
from leveret.mgmt_ui.pages.choosing import Chosen, chosen_partition
from leveret.mgmt_ui.pages.formats import as_json, json_lines, path, with_query
from leveret.mgmt_ui.pages.forms import Form, FormHere, json_object_of, seeing
from leveret.mgmt_ui.pages.publishing import (
    DEFAULT_EXCHANGE,
    TEXTS,
    TRANSIENT,
    noted,
    payload_of,
    properties_of,
    told,
)
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["editable_text", "router"]

# Size of a body in a form, which must be within forms.FORM_BYTES_MAX with three bytes per byte.
EDITED_BYTES_MAX = 256 * 1024
FIXED = {"user_id", "cluster_id", "headers"}  # see leveret.features.browse.editing

router = LazyRouter(prefix="/queues/{vhost}/{name}/messages/{offset}/edit")


class MessageHolder(NamedTuple):
    """The partition that holds the message, and its queue as addresses name it."""

    vhost: str
    name: str
    queue: DeclaredQueue
    part: Chosen

    @property
    def address(self) -> str:
        """Address of the list of its messages."""
        return with_query(
            path("queues", self.vhost, self.name, "messages"), partition=self.part.text
        )


async def _holder(
    request: Request, viewer: ViewerHere, vhost: Segment, name: Segment
) -> MessageHolder:
    """Return the queue and partition of an address. Raises ApiError 400, 401 and 404."""
    await require_to_browse(viewer.caller, vhost, name)
    host = viewer.caller.vhost(vhost)
    held = host.queues.get(name)
    if held is None:
        raise queue_not_found(host, name)
    queue = viewer.broker.find_queue(host, name, held.owner)
    part = chosen_partition(queue, request.query_params.get("partition", ""))
    return MessageHolder(vhost, name, queue, part)


HolderHere = Annotated[MessageHolder, Depends(_holder)]


@router.get("")
async def show_form(
    request: Request, viewer: ViewerHere, holder: HolderHere, offset: Segment
) -> Response:
    """Show the message in a form."""
    found = await _shown(viewer, holder, offset)
    return _page(request, viewer, holder, found, _form_of(found))


@router.post("")
async def send_again(
    request: Request, viewer: ViewerHere, form: FormHere, holder: HolderHere, offset: Segment
) -> Response:
    """Send the changed copy; an invalid form is shown again."""
    found = await _shown(viewer, holder, offset)
    try:
        said, is_done = await _send(viewer, holder, found, form)
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        return _page(request, viewer, holder, found, form, failure=error)
    viewer.session.tell(said, failed=not is_done)
    return seeing(holder.address)


async def _shown(viewer: Viewer, holder: MessageHolder, offset: str) -> dict[str, Any]:
    """Return the message as operations show it. Raises ApiError 404."""
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
        raise not_found("message_not_found")
    found: dict[str, Any] = await viewer.caller.perform(
        message_show,
        vhost=holder.vhost,
        queue=holder.name,
        offset=int(offset),
        truncate=EDITED_BYTES_MAX,
        encoding=None,
        partition=holder.part.number,
    )
    return found


def _page(
    request: Request,
    viewer: Viewer,
    holder: MessageHolder,
    found: Mapping[str, Any],
    form: Form,
    *,
    failure: ApiError | None = None,
) -> Response:
    return page(
        request,
        viewer,
        "resend.html.j2",
        status=200 if failure is None else failure.status,
        vhost=holder.vhost,
        queue=holder.name,
        partition=holder.part.text,
        message=found,
        form=form,
        failure="" if failure is None else failure.reason,
        leaves=not holder.queue.settings.is_stream,
    )


# -- from the message to the form, and back to what was changed


def _form_of(found: Mapping[str, Any]) -> Form:
    properties: dict[str, Any] = dict(found["properties"])
    others = {
        key: value
        for key, value in properties.items()
        if key not in FIXED and key not in TEXTS and key != "delivery_mode"
    }
    fields = {key: str(properties[key]) for key in TEXTS if key in properties}
    fields |= {
        "to": "queue",
        "remove": "1",
        "exchange": found["exchange"],
        "routing_key": found["routing_key"],
        "headers": json_lines(properties.get("headers")),
        "properties": json_lines(others),
    }
    if properties.get("delivery_mode", TRANSIENT) != TRANSIENT:
        fields["persistent"] = "1"
    if not found["truncated"]:
        body = body_of(found)
        text = editable_text(body)
        fields["payload"] = b64encode(body).decode() if text is None else text
        fields |= {"base64": "1"} if text is None else {}
    return Form({key: [value] for key, value in fields.items()})


def editable_text(body: bytes) -> str | None:
    """Return a body as text if a form can return it unchanged, in line ends too; else None."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    rest = text.replace("\r\n", "")
    is_mixed = "\r" in rest or ("\n" in rest and len(rest) != len(text))
    return None if is_mixed or "\0" in text else text


def _changes(found: Mapping[str, Any], form: Form) -> dict[str, Any]:
    """Return the form's changes, as `message.edit` takes them. Raises ApiError 400."""
    shown = dict(found["properties"])
    headers = shown.get("headers") or {}
    shown = {
        "delivery_mode": TRANSIENT,
        **{key: value for key, value in shown.items() if key not in FIXED},
    }
    changes: dict[str, Any] = {
        "headers": _differences(headers, json_object_of(form, "headers")),
        "properties": _differences(shown, properties_of(form)),
    }
    if form.all("payload") and not found["truncated"]:
        changes |= _payload(body_of(found), form)
    return changes


def _differences(shown: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed entries; null for removed ones."""
    changed = {
        key: value
        for key, value in wanted.items()
        if key not in shown or as_json(shown[key]) != as_json(value)
    }
    return changed | dict.fromkeys(shown.keys() - wanted.keys())


def _payload(body: bytes, form: Form) -> dict[str, str]:
    """Return the form's body, with the line ends of the original."""
    wanted = payload_of(form)
    if wanted["payload_encoding"] == "string" and b"\r\n" in body:
        wanted["payload"] = wanted["payload"].replace("\n", "\r\n")
    return wanted


# -- sending


async def _send(
    viewer: Viewer, holder: MessageHolder, found: Mapping[str, Any], form: Form
) -> tuple[str, bool]:
    """Send the copy. Returns a notice, and whether it was stored. Raises ApiError."""
    vhost, name = holder.vhost, holder.name
    changes = _changes(found, form)
    is_elsewhere = form.word("to") == "exchange"
    if form.flag("remove") and not is_elsewhere:
        await viewer.caller.require(vhost, "queue", name, "write")
        await viewer.caller.perform(
            message_edit,
            vhost=vhost,
            queue=name,
            offset=found["offset"],
            changes=changes,
            partition=holder.part.number,
        )
        said = f"Message {found['offset']} was replaced by a copy at the tail of queue {name}."
        return said, True
    exchange, key = form.text("exchange") or DEFAULT_EXCHANGE, form.text("routing_key")
    if not is_elsewhere:
        exchange, key = DEFAULT_EXCHANGE, name
    header, body = await _copy(holder, found["offset"], changes)
    copied = f"{name} {found['offset']}"
    async with noted(viewer, vhost=vhost, exchange=exchange, routing_key=key, copy_of=copied):
        is_routed = await publish_content(viewer.caller, vhost, exchange, key, (header, body))
    said = told(exchange, key, is_routed=is_routed)
    if is_routed and form.flag("remove"):
        said += " " + await _remove(viewer, holder, found["offset"])
    return said, is_routed


async def _copy(holder: MessageHolder, offset: int, changes: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return content header and body of the changed copy. Raises ApiError."""
    try:
        seen = await find(partition_of(holder.queue, holder.part.number), offset)
        if seen is None:
            raise not_found("message_not_found")
        return sent_anew(seen, changes_of(changes))
    except StorageError as error:
        raise refused_operation("storage", str(error)) from None
    except AdministrationError as error:
        raise refused_operation(error.code, str(error)) from None


async def _remove(viewer: Viewer, holder: MessageHolder, offset: int) -> str:
    """Delete the original after its copy was stored. Returns a notice."""
    try:
        answer = await viewer.caller.perform(
            message_delete,
            vhost=holder.vhost,
            queue=holder.name,
            select={"offsets": [offset], "partition": holder.part.number},
            after=None,
            limit=None,
        )
    except ApiError as error:
        return f"The original is still there: {error.reason}."
    if answer["skipped"]:
        return "The original is unacknowledged, and was left in place."
    return "The original was deleted." if answer["deleted"] else "The original no longer exists."
