"""Leveret's own routes, below /api/leveret: undeclared fields are refused.

A route declares query parameters by FastAPI's annotations or by `describing.query`, and the fields
of its body by `describing.body`; both stand in the API's description. RabbitMQ's routes ignore what
they do not know, as RabbitMQ does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute

from leveret.mgmt_ui.api.bodies import BODY_BYTES_MAX, read_body, understand
from leveret.mgmt_ui.api.callers import SAFE_METHODS, ClientHere
from leveret.mgmt_ui.api.problems import bad_request
from leveret.ports.declared import undeclared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi.dependencies.models import Dependant

__all__ = ["own_router"]

JSON = "application/json"


class OwnRoute(APIRoute):
    """Route that accepts only declared fields and parameters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        extra: dict[str, Any] = self.openapi_extra or {}
        described = (one["name"] for one in extra.get("parameters", ()) if one["in"] == "query")
        self.query_names = frozenset([*_annotated(self.dependant), *described])
        self.body_names: frozenset[str] = frozenset()
        if "requestBody" in extra:
            schema = extra["requestBody"]["content"][JSON]["schema"]
            self.body_names = frozenset(schema["properties"])


def _annotated(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of a handler's signature, and of its dependencies."""
    yield from (field.alias for field in dependant.query_params)
    for deeper in dependant.dependencies:
        yield from _annotated(deeper)


async def _take_declared_only(request: Request, _: ClientHere) -> None:
    """Raise ApiError 400 for undeclared query parameters or body, after authentication.

    The handlers read the bodies that routes declare, and check them by `json_object`.
    """
    route = request.scope["route"]
    assert isinstance(route, OwnRoute), "the router makes no others"
    problem = undeclared(request.query_params, route.query_names)
    if problem is None and request.method not in SAFE_METHODS and not route.body_names:
        brought = understand(await read_body(request, BODY_BYTES_MAX))
        problem = undeclared(brought, route.body_names)
    if problem is not None:
        raise bad_request(problem)


def own_router(path: str = "", **options: Any) -> APIRouter:
    """Return a router for routes below /api/leveret."""
    return APIRouter(
        prefix=f"/api/leveret{path}",
        route_class=OwnRoute,
        dependencies=[Depends(_take_declared_only)],
        **options,
    )
