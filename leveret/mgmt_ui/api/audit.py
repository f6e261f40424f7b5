"""GET /api/leveret/audit: the audit log, for administrators.

Query parameters: `limit`, `before` (a record's number: the next page), `since` and `until`
(milliseconds since 1970), `user`, and `operation` (a prefix: `queue.`).
"""

from __future__ import annotations

from fastapi import Request, Response

from leveret.mgmt_ui.api.bodies import whole_number
from leveret.mgmt_ui.api.callers import AdministratorHere
from leveret.mgmt_ui.api.describing import query as described
from leveret.mgmt_ui.api.listing import READ, answer
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.operations.records import audit_list

__all__ = ["router"]

ROWS = 100

ASKED = {
    "limit": ROWS,
    "before": 17,
    "since": 1_700_000_000_000,
    "until": 1_800_000_000_000,
    "user": "guest",
    "operation": "queue.",
}

router = own_router("/audit")


@router.api_route("", methods=READ, openapi_extra=described(ASKED))
async def list_audit(caller: AdministratorHere, request: Request) -> Response:
    """Records of the audit log, the latest first."""
    asked = request.query_params
    return answer(
        await caller.perform(
            audit_list,
            limit=whole_number(asked, "limit", ROWS),
            before=whole_number(asked, "before"),
            since=whole_number(asked, "since"),
            until=whole_number(asked, "until"),
            user=asked.get("user"),
            operation=asked.get("operation"),
        )
    )
