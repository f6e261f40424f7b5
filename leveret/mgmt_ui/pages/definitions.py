"""Definitions page: export and import of all definitions as one JSON document.

For administrators: the document holds the hashes of passwords.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.mgmt_ui.api.listing import streamed
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.operations.transfer import definitions_export, definitions_import
from leveret.mgmt_ui.pages.forms import seeing
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.uploads import read_upload
from leveret.mgmt_ui.pages.viewing import AdministratorHere
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["router"]

FILE_NAME = "leveret-definitions.json"
KEPT_SHOWN = 3  # a session holds few notices
MORE_KEPT = (
    "More queues and exchanges stay as they are: `leveret definitions import --dry-run` lists them."
)

router = LazyRouter(prefix="/definitions")


@router.get("")
async def definitions(request: Request, viewer: AdministratorHere) -> Response:
    """Show the page."""
    vhosts = sorted(viewer.broker.vhosts)
    return page(request, viewer, "definitions.html.j2", vhosts=vhosts)


@router.get("/export")
async def export(request: Request, viewer: AdministratorHere) -> Response:
    """Export the definitions, of the node or of one virtual host, as a file."""
    vhost = request.query_params.get("vhost") or None
    document = await viewer.caller.perform(definitions_export, vhost=vhost)
    response = streamed(document)
    response.headers["content-disposition"] = f'attachment; filename="{FILE_NAME}"'
    return response


@router.post("/import")
async def import_(request: Request, viewer: AdministratorHere) -> Response:
    """Import a document, all of it or nothing, and show a summary."""
    fields = await read_upload(request, viewer)
    vhost = fields.get("vhost", b"").decode(errors="replace") or None
    try:
        document = await asyncio.to_thread(_document, fields.get("document", b""))
        summary = await viewer.caller.perform(definitions_import, document=document, vhost=vhost)
    except ApiError as error:
        viewer.session.tell(error.reason, failed=True)
    else:
        for text in _told(summary):
            viewer.session.tell(text)
    return seeing("/definitions")


def _document(content: bytes) -> Any:
    """Parse a document. Raises ApiError 400."""
    if not content.strip():
        raise bad_request("select a file first")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the file is not valid JSON: {error}") from None


def _told(summary: Mapping[str, Any]) -> list[str]:
    """Return the notices about an import."""
    counts = [
        f"{number} {section.replace('_', ' ')}" for section, number in summary["imported"].items()
    ]
    told = [f"Imported: {', '.join(counts) or 'nothing'}."]
    told += [f"{warning}." for warning in summary["warnings"]]
    told += [f"{sentence}." for sentence in summary["kept"][:KEPT_SHOWN]]
    if len(summary["kept"]) > KEPT_SHOWN:
        told.append(MORE_KEPT)
    if summary["left_out"]:
        left_out = "; ".join(summary["left_out"])
        told.append(f"Skipped, because their source or destination does not exist: {left_out}.")
    if summary["ignored"]:
        ignored = "; ".join(summary["ignored"])
        told.append(f"Ignored, because Leveret does not support them: {ignored}.")
    return told
