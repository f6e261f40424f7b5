"""Where a browser says that a request comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["is_secure", "require_own_site"]


def require_own_site(request: Request, what: str = "this") -> None:
    """Raise ApiError 403 where a browser says that another site's page has made it send this.

    Programs say nothing. Cookies are not sent then (SameSite), and forms have tokens. But a browser
    adds a password that it was told once by itself, and could be made to sign somebody in as
    somebody else.
    """
    if _comes_from_elsewhere(request):
        raise ApiError(403, "forbidden", f"{what} was sent by a page of another site")


def is_secure(request: Request) -> bool:
    """Whether the browser has a safe way here, which may end at a proxy: it says so itself."""
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.startswith("https://")


def _comes_from_elsewhere(request: Request) -> bool:
    if request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        return True
    origin = request.headers.get("origin")
    return origin is not None and _host(origin) != request.headers.get("host", "")


def _host(origin: str) -> str | None:
    """Host and port; None where an origin is none that a browser would send."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
