"""Requests that are refused before they are routed: of other hosts and sites, or too large.

Host names are checked against DNS rebinding: a page of evil.example may let its name resolve to
127.0.0.1. The browser then takes the node for that site and lets the page read its answers, but it
sends that name in `Host`.
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "RELEASE_BODY",
    "BodyBudget",
    "KnownHosts",
    "is_known_host",
    "is_secure",
    "refuse",
    "require_own_site",
]

EVERY_NAME: Final = "*"
NAME_CHARACTERS_MAX: Final = 255  # of a refused name that is quoted
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def is_known_host(host: str, allowed: Collection[str]) -> bool:
    """Whether `host`, a header with or without a port, names this node.

    An IP address always does: no name was resolved to it. A trailing dot is ignored.
    """
    name = _name(host)
    if name in {"", "localhost"} or EVERY_NAME in allowed or _is_address(name):
        return True
    return name in {each.lower().removesuffix(".") for each in allowed}


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class KnownHosts:
    """Refuses requests with unknown host names: local ones, and all where names are configured."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request or run the application (see the ASGI specification)."""
        host = _header(scope)
        if (self._allowed or _is_local(scope)) and not is_known_host(host, self._allowed):
            reason = (
                f"this node does not answer as '{host[:NAME_CHARACTERS_MAX]}': use an address "
                "or localhost, or name it in http_allowed_hosts"
            )
            await refuse(send, 403, "forbidden", reason)
        else:
            await self._app(scope, receive, send)


def _header(scope: Scope) -> str:
    """Return the Host header; empty if missing, as from old programs but not from browsers."""
    for name, value in scope.get("headers", ()):
        if name == b"host":
            return str(value.decode("latin-1"))
    return ""


def _is_local(scope: Scope) -> bool:
    """Whether the connection came to a loopback address."""
    server = scope.get("server")
    try:
        return server is not None and ip_address(server[0]).is_loopback
    except ValueError:
        return False


async def refuse(
    send: Send, status: int, error: str, reason: str, further: Mapping[str, str] = NO_HEADERS
) -> None:
    """Answer a request that is not routed; `further` are more headers."""
    body = json.dumps({"error": error, "reason": reason}).encode()
    told = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        **further,
    }
    headers = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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


RELEASE_BODY: Final = "leveret.release_body"  # in a request's scope: see BodyBudget
BYTES_MAX = 128 << 20  # a few large messages or documents at once; nearly all requests have no body


class BodyBudget:
    """Counts the bytes of request bodies until their requests are answered.

    A request beyond the bound is answered 503. A connection may wait for a minute with what it has
    sent so far, and there are hundreds. Who takes a body apart as it comes says what it holds no
    more, by `scope[RELEASE_BODY](size)`.
    """

    def __init__(self, app: ASGIApp, bytes_max: int = BYTES_MAX) -> None:
        self._app = app
        self._left = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a counted `receive` (see the ASGI specification)."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            if size > self._left:
                reason = "too much is being sent to this port at once; try again later"
                raise ApiError(503, "service_unavailable", reason, {"retry-after": "1"})
            self._left -= size
            taken += size
            return message

        def release(size: int) -> None:
            nonlocal taken
            self._left += size
            taken -= size

        scope[RELEASE_BODY] = release
        try:
            await self._app(scope, counted, send)
        finally:
            self._left += taken
