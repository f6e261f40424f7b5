"""GET /api/leveret/audit: who has changed what, for administrators.

Asked for by `limit`, `before` (a record's number: the next page), `since` and `until` (milliseconds
since 1970), `user`, and `operation` (its beginning: `queue.`).
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from leveret.mgmt_ui.api.answers import READ, answer
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.problems import bad_request

__all__ = ["router"]

ROWS = 100
NUMBERS = ("limit", "before", "since", "until")
DIGITS_MAX = 15

router = APIRouter()


@router.api_route("/api/leveret/audit", methods=READ)
async def list_audit(caller: CallerHere, request: Request) -> Response:
    """The latest records first."""
    caller.require_administrator()
    asked = request.query_params
    numbers = {key: _number(key, asked[key]) for key in NUMBERS if key in asked}
    return answer(
        await caller.perform(
            "audit.list",
            limit=numbers.get("limit", ROWS),
            before=numbers.get("before"),
            since=numbers.get("since"),
            until=numbers.get("until"),
            user=asked.get("user"),
            operation=asked.get("operation"),
        )
    )


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise bad_request(f"{key} is a whole number")
    return int(text)
