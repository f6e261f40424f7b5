"""Common parts of pages of waiting messages: their filter, and the page of one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api.problems import bad_request
from leveret.mgmt_ui.pages.bodies import BODY_BYTES_MAX, FORMS, body_of, shown_as
from leveret.mgmt_ui.pages.formats import epoch_ms
from leveret.mgmt_ui.pages.rendering import page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Request, Response

    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["header_criterion", "waiting_message", "waiting_selection"]


def header_criterion(stated: str) -> dict[str, str]:
    """Return the header of a filter, `name=value`; empty if blank. Raises ApiError 400."""
    if not stated:
        return {}
    header, equals, value = stated.partition("=")
    if not equals:
        raise bad_request("a header filter has the form name=value")
    return {header.strip(): value.strip()}


def waiting_selection(asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter of waiting messages, as operations take it. Raises ApiError 400."""
    return {
        **{key: asked[key] or None for key in ("id", "message_id", "exchange", "routing_key")},
        "headers": header_criterion(asked["header"]),
        "due_from_ms": epoch_ms(asked["due_from"]) if asked["due_from"] else None,
        "due_before_ms": epoch_ms(asked["due_before"]) if asked["due_before"] else None,
    }


def waiting_message(
    request: Request, viewer: Viewer, found: Mapping[str, Any], **more: Any
) -> Response:
    """Return the page of one waiting message; `query` is added to its address."""
    body = body_of(found)
    properties = dict(found["properties"])
    headers = properties.pop("headers", None) or {}
    form, text = shown_as(body[:BODY_BYTES_MAX], request.query_params.get("as", ""))
    return page(
        request,
        viewer,
        "waiting.html.j2",
        message=found,
        properties=properties,
        headers=headers,
        text=text,
        is_truncated=len(body) > BODY_BYTES_MAX,
        form=form,
        forms=FORMS,
        now_ms=viewer.now_ms,
        **more,
    )
