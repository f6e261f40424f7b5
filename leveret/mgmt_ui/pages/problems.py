"""Error pages, with the reason and a way to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from leveret.mgmt_ui.api.callers import of_session, require_manager, session_of
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.pages.formats import with_query
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import Viewer
from leveret.ports.audit import Way

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

__all__ = ["add_handlers"]

TITLES = {
    400: "Bad request",
    403: "Access refused",
    404: "Not found",
    405: "Method not allowed",
    413: "Request too large",
    500: "Internal error",
}
# Texts for the reasons of `not_found`.
REASONS = {
    "Object Not Found": "There is no page at this address.",
    "vhost_not_found": "There is no virtual host of this name. It may have been deleted.",
    "queue_not_found": "There is no queue of this name. It may have been deleted.",
    "group_not_found": "There is no consumer group of this name. It may have been deleted.",
    "exchange_not_found": "There is no exchange of this name. It may have been deleted.",
    "connection_not_found": "There is no such connection. It may have been closed.",
}


def add_handlers(app: FastAPI) -> None:
    """Register handlers that answer errors with pages."""
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _unroutable)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(Exception, _broken)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    session = session_of(request)
    if session is None and error.status == 401:
        return _sign_in(request)
    # The API uses 401 also for missing permissions; pages use 403.
    status = 403 if error.status == 401 else error.status
    return await _problem(request, status, REASONS.get(error.reason, error.reason))


def _sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which leads back; requests other than page loads get a 401."""
    if request.method in {"GET", "HEAD"} and "hx-request" not in request.headers:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(with_query("/login", wanted=request.url.path + query), 303)
    answer = page(request, None, "sign_in.html.j2", status=401, wanted="/", failure="", user="")
    answer.headers["hx-refresh"] = "true"  # a page that renews a part of itself shows all of it
    return answer


async def _unroutable(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method, to everybody alike: addresses of pages are no secret.

    A program that follows a redirect would take the sign-in page for what it has asked for.
    """
    assert isinstance(error, HTTPException)
    return await _problem(request, error.status_code, REASONS["Object Not Found"])


async def _misunderstood(request: Request, _: Exception) -> Response:
    if session_of(request) is None:
        return _sign_in(request)
    return await _problem(request, 400, "A part of the address or of the form is missing.")


async def _broken(request: Request, _: Exception) -> Response:
    return await _problem(request, 500, "The node's log has details. Please report this as a bug.")


async def _problem(request: Request, status: int, reason: str) -> Response:
    viewer = await _viewer(request)
    title = TITLES.get(status, "Request failed")
    return page(request, viewer, "problem.html.j2", status=status, title=title, reason=reason)


async def _viewer(request: Request) -> Viewer | None:
    """Return the signed-in user, if any: the error page has the navigation then."""
    session = session_of(request)
    if session is None:
        return None
    try:
        caller = await of_session(request, session, Way.PAGES)
        require_manager(caller)
    except ApiError:
        return None
    return Viewer(caller, session)
