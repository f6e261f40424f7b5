"""Where a browser says that a request comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["comes_from_elsewhere", "is_secure"]


def comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser says that another site's page has made it send this; programs say nothing.

    Cookies are not sent then (SameSite), and forms have tokens. But a browser adds a password that
    it was told once by itself, and could be made to sign somebody in as somebody else.
    """
    if request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        return True
    origin = request.headers.get("origin")
    return origin is not None and _host(origin) != request.headers.get("host", "")


def is_secure(request: Request) -> bool:
    """Whether the browser has a safe way here, which may end at a proxy: it says so itself."""
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.startswith("https://")


def _host(origin: str) -> str | None:
    """Host and port; None where an origin is none that a browser would send."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
