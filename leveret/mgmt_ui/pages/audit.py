"""Audit log page, for administrators."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.operations.records import audit_list
from leveret.mgmt_ui.pages.formats import epoch_ms, with_query
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import AdministratorHere
from leveret.mgmt_ui.routes import LazyRouter

__all__ = ["router"]

ROWS = 100
DIGITS_MAX = 15
FILTERS = ("user", "operation", "since", "until")

router = LazyRouter()


@router.get("/audit")
async def audit(request: Request, viewer: AdministratorHere) -> Response:
    """Show the latest records first."""
    query = request.query_params
    asked = {key: query.get(key, "").strip() for key in FILTERS}
    before = query.get("before", "")
    is_number = before.isascii() and before.isdigit() and len(before) <= DIGITS_MAX
    found: dict[str, Any] = {"rows": [], "before": None}
    failure = ""
    try:
        found = await viewer.caller.perform(
            audit_list,
            limit=ROWS,
            before=int(before) if is_number else None,
            since=epoch_ms(asked["since"]) if asked["since"] else None,
            until=epoch_ms(asked["until"]) if asked["until"] else None,
            user=asked["user"] or None,
            operation=asked["operation"] or None,
        )
    except ApiError as error:
        failure = error.reason
    following = None
    if found["before"] is not None:
        following = with_query("/audit", **asked, before=str(found["before"]))
    return page(
        request,
        viewer,
        "audit.html.j2",
        rows=found["rows"],
        asked=asked,
        failure=failure,
        following=following,
        first=with_query("/audit", **asked),
        is_first=not is_number,
        is_filtered=any(asked.values()),
    )
