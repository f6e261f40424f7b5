"""Origin of a browser's request, against cross-site requests."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["is_secure", "require_own_site"]


def require_own_site(request: Request, what: str = "this") -> None:
    """Raise ApiError 403 if a browser says that another site's page has made the request.

    Programs send no origin. Cookies are not sent then (SameSite), and forms have tokens. But a
    browser adds a remembered password by itself, and could be made to sign in as another user.
    """
    if _comes_from_elsewhere(request):
        raise ApiError(403, "forbidden", f"{what} was sent by a page of another site")


def is_secure(request: Request) -> bool:
    """Whether the browser came by TLS, which may end at a proxy: its own headers say so."""
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.startswith("https://")


def _comes_from_elsewhere(request: Request) -> bool:
    if request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        return True
    origin = request.headers.get("origin")
    return origin is not None and _host(origin) != request.headers.get("host", "")


def _host(origin: str) -> str | None:
    """Return host and port of an origin; None if malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
