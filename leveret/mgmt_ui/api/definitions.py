"""/api/definitions: export and import of a broker's definitions."""

from __future__ import annotations

import asyncio
import re
from email.message import Message
from email.parser import BytesParser
from typing import Any

from fastapi import Request, Response

from leveret.core.definitions.document import DefinitionsError, decode
from leveret.mgmt_ui.api.bodies import read_body
from leveret.mgmt_ui.api.callers import AdministratorHere
from leveret.mgmt_ui.api.describing import body
from leveret.mgmt_ui.api.listing import READ, Segment, answer, done, streamed
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.operations.transfer import (
    definitions_export,
    definitions_import,
    definitions_rehearse,
)
from leveret.mgmt_ui.routes import LazyRouter

__all__ = ["router"]

DOCUMENT_BYTES_MAX = 64 << 20  # some hundred thousand queues
FILE_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,100}")
EXAMPLE = body({"queues": [{"name": "orders", "vhost": "/", "durable": True}]})

router = LazyRouter(tags=["definitions"])


@router.api_route("/api/definitions", methods=READ)
@router.api_route("/api/definitions/{vhost}", methods=READ)
@router.api_route("/api/all-configuration", methods=READ, include_in_schema=False)
async def export_definitions(
    caller: AdministratorHere, vhost: Segment | None = None, download: str | None = None
) -> Response:
    """Export all definitions, or those of one virtual host; `download` is a file name."""
    if vhost is not None and vhost not in caller.node.broker.vhosts:
        raise bad_request("vhost_not_found")
    if download is not None and not FILE_NAME.fullmatch(download):
        raise bad_request("download is the name of a file")
    response = streamed(await caller.perform(definitions_export, vhost=vhost))
    if download is not None:
        response.headers["content-disposition"] = f"attachment; filename={download}"
    return response


@router.post("/api/definitions", openapi_extra=EXAMPLE)
@router.post("/api/definitions/{vhost}", openapi_extra=EXAMPLE)
@router.post("/api/all-configuration", include_in_schema=False)
async def import_definitions(
    caller: AdministratorHere,
    request: Request,
    vhost: Segment | None = None,
    *,
    report: str | None = None,
    dry_run: str | None = None,
    strict: str | None = None,
) -> Response:
    """Import a document of definitions, all of it or nothing: as JSON, or as a form's file.

    `report=true` answers what was imported, what of it has no effect here and which queues and
    exchanges exist with other settings and were kept; `dry_run=true` what would be; `strict=true`
    refuses a document with anything of either kind.
    """
    if vhost is not None:
        caller.vhost(vhost)
    document = await asyncio.to_thread(
        _understand,
        await read_body(request, DOCUMENT_BYTES_MAX),
        request.headers.get("content-type", ""),
    )
    is_rehearsal = dry_run == "true"
    summary = await caller.perform(
        definitions_rehearse if is_rehearsal else definitions_import,
        document=document,
        vhost=vhost,
        strict=strict == "true",
    )
    return answer(summary) if is_rehearsal or report == "true" else done()


def _understand(said: bytes, content_type: str) -> Any:
    """Return the document of a request; runs in a thread. Raises ApiError 400."""
    if content_type.lower().startswith("multipart/form-data"):
        said = _file(said, content_type)
    try:
        return decode(said.removeprefix(b"\xef\xbb\xbf")) if said else {}
    except DefinitionsError:
        raise bad_request("failed_to_parse_json") from None


def _file(said: bytes, content_type: str) -> bytes:
    """Return the part `file` of a form (RFC 7578). Raises ApiError 400."""
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser().parsebytes(head + said)
    parts = form.get_payload()
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Message) and _field(part) == "file":
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes):
                return payload
    raise ApiError(400, "bad_request", "the form has no part 'file'")


def _field(part: Message) -> object:
    return part.get_param("name", header="content-disposition")
