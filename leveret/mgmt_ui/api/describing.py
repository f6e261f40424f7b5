"""What the API's description says of bodies, which handlers read themselves: shown by an example.

Handed to FastAPI's routes as `openapi_extra`; see leveret.mgmt_ui.api.documents. Of Leveret's own
routes this is also all that they take (leveret.mgmt_ui.api.own).
"""

from __future__ import annotations

from typing import Any

__all__ = ["body", "form", "query"]

JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def body(example: dict[str, Any], *required: str) -> dict[str, Any]:
    """A JSON object with fields like those of the example; the `required` ones must be there."""
    return {"requestBody": _content("application/json", example, required)}


def query(example: dict[str, Any]) -> dict[str, Any]:
    """A query string with parameters like those of the example; a list: it may come repeatedly."""
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": _schema(value)}
        for name, value in example.items()
    ]
    return {"parameters": parameters}


def form(example: dict[str, Any], *required: str) -> dict[str, Any]:
    """The same as a form of HTML sends it."""
    return {"requestBody": _content("application/x-www-form-urlencoded", example, required)}


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
