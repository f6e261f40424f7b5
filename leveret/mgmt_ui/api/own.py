"""Leveret's own routes, below /api/leveret: undeclared and repeated fields are refused.

A route declares query parameters by FastAPI's annotations or by `describing.query`, and the fields
of its body by `describing.body`; both stand in the API's description. RabbitMQ's routes ignore what
they do not know, as RabbitMQ does.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import Depends, Request

from leveret.mgmt_ui.api.bodies import BODY_BYTES_MAX, read_body, understand
from leveret.mgmt_ui.api.callers import SAFE_METHODS, ClientHere
from leveret.mgmt_ui.api.describing import describe_operations
from leveret.mgmt_ui.api.problems import bad_request
from leveret.mgmt_ui.routes import LazyRoute, LazyRouter
from leveret.ports.declared import undeclared
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

__all__ = ["own_router"]

JSON = "application/json"


class OwnRoute(LazyRoute):
    """Route that accepts only declared fields and parameters."""

    is_strict = True

    @cached_property
    def _operation(self) -> dict[str, Any]:
        (described,) = describe_operations([self]).values()
        operation: dict[str, Any] = next(iter(described.values()))  # GET and HEAD have the same
        return operation

    @cached_property
    def _query_parameters(self) -> list[dict[str, Any]]:
        parameters = self._operation.get("parameters", ())
        return [one for one in parameters if one["in"] == "query"]

    @cached_property
    def query_names(self) -> frozenset[str]:
        """Names of the query parameters."""
        return frozenset(one["name"] for one in self._query_parameters)

    @cached_property
    def list_names(self) -> frozenset[str]:
        """Names of the query parameters that may be given several times."""
        lists = (one for one in self._query_parameters if one["schema"].get("type") == "array")
        return frozenset(one["name"] for one in lists)

    @cached_property
    def body_names(self) -> frozenset[str]:
        """Names of the body's fields; none if the route declares no body."""
        return frozenset(self._body_schema.get("properties", ()))

    @cached_property
    def required_names(self) -> list[str]:
        """Names of the body's fields that must be there."""
        names: list[str] = self._body_schema.get("required", [])
        return names

    @cached_property
    def _body_schema(self) -> dict[str, Any]:
        content = self._operation.get("requestBody", {}).get("content", {})
        schema: dict[str, Any] = content.get(JSON, {}).get("schema", {})
        return schema

    @cached_property
    def takes_stream(self) -> bool:
        """Whether the body is no JSON: the handler takes it apart as it comes."""
        content = self._operation.get("requestBody", {}).get("content", {})
        return bool(content) and JSON not in content


async def _take_declared_only(request: Request, _: ClientHere) -> None:
    """Raise ApiError 400 for undeclared or repeated query parameters, or an undeclared body.

    After authentication.

    The handlers read the bodies that routes declare, and check them by `json_object`.
    """
    route = request.scope["route"]
    assert isinstance(route, OwnRoute), "the router makes no others"
    given = request.query_params
    problem = undeclared(given, route.query_names) or _repeated(given, route.list_names)
    has_none = not route.body_names and not route.takes_stream
    if problem is None and request.method not in SAFE_METHODS and has_none:
        brought = understand(await read_body(request, BODY_BYTES_MAX))
        problem = undeclared(brought, route.body_names)
    if problem is not None:
        raise bad_request(problem)


def _repeated(given: QueryParams, lists: frozenset[str]) -> str | None:
    """Return an error text for a parameter that is given twice and is no list; None without one.

    Which of the two counts would be anybody's guess.
    """
    counts = Counter(name for name, _ in given.multi_items())
    name = min((each for each in counts if counts[each] > 1 and each not in lists), default=None)
    return None if name is None else f"{name} is given {counts[name]} times: state it once"


def own_router(path: str = "", **options: Any) -> LazyRouter:
    """Return a router for routes below /api/leveret."""
    return LazyRouter(
        prefix=f"/api/leveret{path}",
        route_class=OwnRoute,
        # Some are asked for many times a second: so they take the loop in two parts.
        dependencies=[Depends(let_others_run), Depends(_take_declared_only)],
        **options,
    )
