"""HTTP clients of tests: the only module that makes some, so that each waits long enough.

httpx waits for five seconds and urllib for ever, unless told otherwise; the linter refuses both
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp


class HttpClient(httpx.Client):
    """A client of a node, for paths below `address`: a URL, or HOST:PORT and a path.

    A password is the user's name unless it is given; the user None sends no credentials.
    """

    def __init__(
        self,
        address: str = "",
        user: str | None = "guest",
        password: str | None = None,
        **options: Any,
    ) -> None:
        """Take the options of httpx.Client, too."""
        settings = {
            "base_url": address if "://" in address or not address else f"http://{address}",
            "auth": None if user is None else (user, password or user),
            "timeout": LIMIT_SECONDS,
            "trust_env": False,
        }
        super().__init__(**{**settings, **options})


def http_text(url: str, **options: Any) -> str:
    """Return what a URL answers without credentials, which must be a success."""
    with HttpClient(user=None, **options) as client:
        answer = client.get(url)
        answer.raise_for_status()
        return answer.text


class InProcessTransport(httpx.BaseTransport):
    """Takes what a client asks to an application in this process; `run` does a coroutine."""

    def __init__(
        self, app: ASGIApp, run: Callable[[Coroutine[Any, Any, httpx.Response]], httpx.Response]
    ) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._run = run

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._run(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._transport.handle_async_request(request)
        content = b"".join([part async for part in answer.stream])
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=httpx.ByteStream(content)
        )


def in_process_client(
    app: ASGIApp, peer: str = "127.0.0.1", base_url: str = "http://node"
) -> httpx.AsyncClient:
    """Return a client of an application in this process, which has no network and no timeout."""
    transport = httpx.ASGITransport(app, client=(peer, 1), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)
