"""Forms that change something: perform an operation, then redirect with a notice."""

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
    """Perform an operation, then redirect to the page `then` with the notice `done`.

    If the operation is refused, redirect to `otherwise` (or `then`) with the reason. The page must
    have checked the rights; raises ApiError where the operation itself finds that they are missing.
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
    """Return a redirect after a form (303), so that a reload sends nothing twice."""
    return RedirectResponse(address, 303)
