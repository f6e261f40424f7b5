"""Parts of the API's OpenAPI document: bodies and queries, made from examples, and routes.

Examples are given to FastAPI's routes as `openapi_extra`; see leveret.mgmt_ui.api.documents. For
Leveret's own routes they also list the only fields accepted (leveret.mgmt_ui.api.own).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

from leveret.mgmt_ui.routes import LazyRoute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute

__all__ = ["body", "describe_operations", "form", "query", "stream"]

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


def describe_operations(routes: Sequence[BaseRoute]) -> dict[str, dict[str, Any]]:
    """Return FastAPI's descriptions of routes: the operations of each path, by method."""
    for route in routes:
        assert isinstance(route, LazyRoute), "the routers make no others"
        route.analyse()
    with warnings.catch_warnings():
        # One function answers GET and HEAD; `documents` gives them other names.
        warnings.filterwarnings("ignore", "Duplicate Operation ID")
        described = get_openapi(title="routes", version="", routes=routes)
    paths: dict[str, dict[str, Any]] = described["paths"]
    return paths


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
