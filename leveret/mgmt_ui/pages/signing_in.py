"""GET and POST /login, POST /logout."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from leveret.mgmt_ui.api.callers import log_in, open_session, require_manager, session_of
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.pages.forms import FormHere, read_form
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.sessions import COOKIE

__all__ = ["router"]

START = "/overview"
SIGN_IN_BYTES_MAX = 8192  # of a form that is parsed before authentication
FAILURES = {
    "Not_Authorized": "Unknown user or wrong password.",
    "Not management user": "This user has no tag that lets it in: management, policymaker, "
    "monitoring or administrator.",
    "User can only log in via localhost": "This user may only sign in from the node's own machine.",
}

router = LazyRouter()


@router.get("/login")
async def sign_in_page(request: Request) -> Response:
    """Show the form; users who are signed in are redirected."""
    wanted = local_address(request.query_params.get("wanted", START))
    if session_of(request) is not None:
        return RedirectResponse(wanted, 303)
    return page(request, None, "sign_in.html.j2", wanted=wanted, failure="", user="")


@router.post("/login")
async def sign_in(request: Request) -> Response:
    """Open a session for valid credentials; failures are delayed as for other logins."""
    form = await read_form(request, SIGN_IN_BYTES_MAX)
    wanted, user = local_address(form.text("wanted", START)), form.text("user")
    try:
        caller = await log_in(request, user, form.text("password"))
        require_manager(caller)
    except ApiError as error:
        failure = FAILURES.get(error.reason, error.reason)
        values = {"wanted": wanted, "failure": failure, "user": user}
        return page(request, None, "sign_in.html.j2", status=error.status, **values)
    answer = RedirectResponse(wanted, 303)
    open_session(request, caller, answer)
    return answer


@router.post("/logout")
async def sign_out(request: Request, viewer: ViewerHere, _: FormHere) -> Response:
    """End the session."""
    request.app.state.sessions.close(viewer.session)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def local_address(wanted: str) -> str:
    """Return a local address, or the start page, so that links cannot redirect to other hosts."""
    if not wanted.startswith("/") or wanted.startswith(("//", "/\\", "/login", "/logout")):
        return START
    return START if wanted == "/" or not wanted.isprintable() or "\\" in wanted else wanted
