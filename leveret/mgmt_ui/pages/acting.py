"""Doing what somebody asks for on a page: by an operation, and back to a page that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.responses import RedirectResponse

from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["act", "seeing"]


async def act(
    viewer: Viewer,
    operation: str,
    *,
    done: str,
    then: str,
    otherwise: str = "",
    **parameters: Any,
) -> RedirectResponse:
    """Perform an operation, then show the page `then` with the text `done`.

    Where the operation is refused, the page `otherwise` (or the same) says why. Rights have been
    asked for by the page; raises ApiError where the operation itself finds that they are missing.
    """
    try:
        await viewer.caller.perform(operation, **parameters)
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        viewer.session.tell(error.reason, failed=True)
        return seeing(otherwise or then)
    viewer.session.tell(done)
    return seeing(then)


def seeing(address: str) -> RedirectResponse:
    """The answer to a form: look there. Reloading that page sends nothing twice."""
    return RedirectResponse(address, 303)
