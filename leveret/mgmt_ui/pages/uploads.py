"""Parsing of forms with files: `multipart/form-data` (RFC 7578)."""

from __future__ import annotations

import asyncio
from email import message_from_bytes, policy
from email.message import Message
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.hosts import require_own_site
from leveret.mgmt_ui.pages.forms import CSRF_FIELD
from leveret.mgmt_ui.sessions import CSRF_HEADER

if TYPE_CHECKING:
    from fastapi import Request

    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["UPLOAD_BYTES_MAX", "parts_of", "read_upload"]

UPLOAD_BYTES_MAX = 32 << 20  # the definitions of a hundred thousand queues
MEDIA_TYPE = "multipart/form-data"


async def read_upload(request: Request, viewer: Viewer) -> dict[str, bytes]:
    """Return the parts of a form by name, after checking its CSRF token. Raises ApiError."""
    require_own_site(request, "this form")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > UPLOAD_BYTES_MAX:
                raise ApiError(413, "too_large", f"a file has at most {UPLOAD_BYTES_MAX} bytes")
    except ClientDisconnect:
        raise bad_request("the upload is incomplete") from None
    content_type = request.headers.get("content-type", "")
    parts = await asyncio.to_thread(parts_of, content_type, bytes(body))
    token = request.headers.get(CSRF_HEADER) or parts.get(CSRF_FIELD, b"").decode(errors="replace")
    if not viewer.session.has_csrf_token(token):
        text = "the form is not from this session (CSRF check): go back, reload and try again"
        raise ApiError(403, "forbidden", text)
    return parts


def parts_of(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the parts of a body by name, the last of each. Raises ApiError 400."""
    if not content_type.lower().startswith(MEDIA_TYPE):
        raise bad_request(f"a form with a file is sent as {MEDIA_TYPE}")
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    message = message_from_bytes(head + body, policy=policy.compat32)
    found: dict[str, bytes] = {}
    parts = message.get_payload()
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, Message):
            continue
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            found[name] = content
    return found
