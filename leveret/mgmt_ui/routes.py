"""FastAPI's router, with routes that are analysed at their first request.

FastAPI inspects the signature of each endpoint and makes validators of its parameters, a
millisecond or two for each of some 350 routes: it would be half of what HTTP adds to a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute, APIRouter
from starlette.routing import compile_path, get_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.types import Receive, Scope, Send

__all__ = ["LazyRoute", "LazyRouter"]


class LazyRoute(APIRoute):
    """Route whose endpoint is analysed by `analyse`, at the first request at the latest.

    Until then it has what a request is matched with, and nothing else.
    """

    is_strict = False  # whether it refuses what it does not know; RabbitMQ's routes ignore it

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Collection[str] = ("GET",),
        name: str | None = None,
        **options: Any,
    ) -> None:
        """Take the arguments of APIRoute."""
        self.path = path
        self.endpoint = endpoint
        self.methods = {method.upper() for method in methods}
        self.name = get_name(endpoint) if name is None else name
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._options: dict[str, Any] | None = options
        self.app = self._analyse_and_run

    def analyse(self) -> None:
        """Make the route FastAPI's in full; does nothing the second time."""
        if (options := self._options) is not None:
            self._options = None
            super().__init__(
                self.path, self.endpoint, methods=self.methods, name=self.name, **options
            )

    async def _analyse_and_run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.analyse()
        await self.app(scope, receive, send)


class LazyRouter(APIRouter):
    """Router that makes lazy routes."""

    def __init__(self, *, route_class: type[LazyRoute] = LazyRoute, **options: Any) -> None:
        """Take the arguments of APIRouter."""
        super().__init__(route_class=route_class, **options)
