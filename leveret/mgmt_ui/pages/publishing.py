"""Publishing of messages by form.

They are published as by the HTTP API, with the user's name and permissions. Each is recorded in the
audit log, since people publish one at a time here.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.api.publish_get import publish_message
from leveret.mgmt_ui.operations.publishing import message_publish
from leveret.mgmt_ui.pages.forms import Form, json_object_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["BLANK", "DEFAULT_EXCHANGE", "noted", "payload_of", "properties_of", "publish_written"]

DEFAULT_EXCHANGE = "amq.default"  # as the API calls it
BLANK = Form({"persistent": ["1"]})  # defaults of an empty form
TEXTS = ("content_type", "message_id", "expiration")  # properties with fields of their own
TRANSIENT, PERSISTENT = 1, 2  # delivery modes


async def publish_written(
    viewer: Viewer, vhost: str, exchange: str, form: Form
) -> tuple[str, bool]:
    """Publish a form's message. Returns a notice, and whether it was routed. Raises ApiError."""
    key = form.text("routing_key")
    headers = json_object_of(form, "headers")
    delay_seconds = form.integer("delay_seconds")
    if delay_seconds is not None:
        headers["x-delay"] = delay_seconds * 1000
    asked = {
        "properties": {**properties_of(form), "headers": headers or None},
        "routing_key": key,
        **payload_of(form),
    }
    async with noted(viewer, vhost=vhost, exchange=exchange, routing_key=key):
        is_routed = await publish_message(viewer.caller, vhost, exchange, asked)
    return told(exchange, key, is_routed=is_routed), is_routed


def told(exchange: str, key: str, *, is_routed: bool) -> str:
    """Return the notice about a published message."""
    where = f"exchange {exchange} with routing key “{key}”"
    if exchange == DEFAULT_EXCHANGE:
        where = f"queue {key}"
    if is_routed:
        return f"The message was published to {where}."
    return f"No queue took the message: nothing is bound to {where}."


def properties_of(form: Form) -> dict[str, Any]:
    """Return the properties in a form, without headers. Raises ApiError 400."""
    properties = json_object_of(form, "properties")
    properties |= {name: form.word(name) for name in TEXTS if form.word(name)}
    return {**properties, "delivery_mode": PERSISTENT if form.flag("persistent") else TRANSIENT}


def payload_of(form: Form) -> dict[str, str]:
    """Return the body in a form, as the API takes it. Base64 may have line breaks."""
    text = form.text("payload")
    if form.flag("base64"):
        return {"payload": "".join(text.split()), "payload_encoding": "base64"}
    return {"payload": text, "payload_encoding": "string"}


@asynccontextmanager
async def noted(viewer: Viewer, **where: str) -> AsyncIterator[None]:
    """Record a publish of the user in the audit log, with its outcome."""
    answer: dict[str, str] = {}
    try:
        yield
    except ApiError as error:
        answer = {"error": error.error, "explanation": error.reason}
        raise
    finally:
        audit = viewer.node.context.audit
        if audit is not None:
            await audit.note(viewer.caller.actor, message_publish.name, where, answer)
