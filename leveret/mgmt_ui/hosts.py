"""Host names that the HTTP ports answer to, against DNS rebinding.

A page of evil.example may let its name resolve to 127.0.0.1: the browser then takes the node for
that site and lets the page read its answers. But it sends that name in `Host`.
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["KnownHosts", "is_known_host"]

EVERY_NAME: Final = "*"
NAME_CHARACTERS_MAX: Final = 255  # of a refused name that is quoted


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
            await _refuse(host, send)
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


async def _refuse(host: str, send: Send) -> None:
    reason = (
        f"this node does not answer as '{host[:NAME_CHARACTERS_MAX]}': use an address "
        "or localhost, or name it in http_allowed_hosts"
    )
    body = json.dumps({"error": "forbidden", "reason": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
