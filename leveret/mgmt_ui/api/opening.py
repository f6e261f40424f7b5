"""Opening of a session for an authenticated user, with its cookie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.mgmt_ui.api.callers import session_of
from leveret.mgmt_ui.origin import is_secure
from leveret.mgmt_ui.sessions import COOKIE, SESSION_MS_MAX

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["open_session"]


def open_session(request: Request, caller: Caller, answer: Response) -> None:
    """Open a session in place of the browser's current one; set its cookie in the answer."""
    sessions = request.app.state.sessions
    before = session_of(request)
    if before is not None:
        sessions.close(before)
    answer.set_cookie(
        COOKIE,
        sessions.open(caller.rights).token,
        max_age=SESSION_MS_MAX // 1000,
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )
