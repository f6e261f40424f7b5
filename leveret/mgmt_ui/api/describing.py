"""Parts of the API's OpenAPI document: bodies and queries, made from examples, and routes.

Examples are given to FastAPI's routes as `openapi_extra`; see leveret.mgmt_ui.api.documents. For
Leveret's own routes they also list the only fields accepted (leveret.mgmt_ui.api.own).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.routing import BaseRoute

__all__ = ["body", "describe_dependency", "describe_operations", "form", "query", "stream"]

DESCRIBED: dict[Callable[..., object] | None, list[dict[str, Any]]] = {}
JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def body(example: dict[str, Any], *required: str) -> dict[str, Any]:
    """Describe a JSON object with fields like the example's; `required` ones must be present."""
    return {"requestBody": _content("application/json", example, required)}


def stream(kind: str) -> dict[str, Any]:
    """Describe a body of bytes, which is taken apart as it comes."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"required": True, "content": content}}


def query(example: dict[str, Any]) -> dict[str, Any]:
    """Describe query parameters like the example's; a list may be repeated."""
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": _schema(value)}
        for name, value in example.items()
    ]
    return {"parameters": parameters}


def form(example: dict[str, Any], *required: str) -> dict[str, Any]:
    """Describe an HTML form with fields like the example's; `required` ones must be present."""
    return {"requestBody": _content("application/x-www-form-urlencoded", example, required)}


def describe_dependency(dependency: Callable[..., object], extra: dict[str, Any]) -> None:
    """Describe the query parameters that a dependency of routes reads from the request itself.

    As parameters of the function FastAPI would build a validator of each, for each of the routes:
    a third of a second at every start.
    """
    DESCRIBED[dependency] = extra["parameters"]


def describe_operations(routes: Sequence[BaseRoute]) -> dict[str, dict[str, Any]]:
    """Return FastAPI's descriptions of routes: the operations of each path, by method."""
    with warnings.catch_warnings():
        # One function answers GET and HEAD; `documents` gives them other names.
        warnings.filterwarnings("ignore", "Duplicate Operation ID")
        described = get_openapi(title="routes", version="", routes=routes)
    paths: dict[str, dict[str, Any]] = described["paths"]
    for route in routes:
        if isinstance(route, APIRoute) and (parameters := _parameters(route)):
            operations = paths.get(route.path_format, {})
            for operation in map(operations.get, map(str.lower, route.methods or ())):
                if operation is not None:
                    operation["parameters"] = [*operation.get("parameters", ()), *parameters]
    return paths


def _parameters(route: APIRoute) -> list[dict[str, Any]]:
    """Return the query parameters that the route's described dependencies read."""
    calls = [one.call for one in route.dependant.dependencies]
    return [parameter for call in calls for parameter in DESCRIBED.get(call, ())]


def _content(kind: str, example: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(value) for name, value in example.items()},
    }
    if required:
        schema["required"] = list(required)
    return {
        "required": bool(required),
        "content": {kind: {"schema": schema, "example": example}},
    }


def _schema(value: object) -> dict[str, Any]:
    if isinstance(value, list):
        return {"type": "array", "items": _schema(value[0]) if value else {}}
    kind = JSON_TYPES.get(type(value))
    return {} if kind is None else {"type": kind}
