"""Bound on the request bodies that all requests together may hold in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.mgmt_ui.api.problems import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyBudget"]

BYTES_MAX = 128 << 20  # a few large messages or documents at once; nearly all requests have no body


class BodyBudget:
    """Counts the bytes of request bodies until their requests are answered.

    A request beyond the bound is answered 503. A connection may wait for a minute with what it has
    sent so far, and there are hundreds.
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

        try:
            await self._app(scope, counted, send)
        finally:
            self._left += taken
