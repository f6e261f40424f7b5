"""/api/openapi.json and /api/docs: the API's description, for programs and for people.

The page is made from the description, without scripts; neither loads anything from another host.
"""

from __future__ import annotations

import asyncio
import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from leveret import __version__
from leveret.mgmt_ui.api.describing import describe_operations
from leveret.mgmt_ui.api.listing import READ
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

    Operation = dict[str, Any]

__all__ = ["describe", "router"]

DESCRIPTION = (
    "RabbitMQ's HTTP API and Leveret's own routes, below /api/leveret. A virtual host `/` is "
    "written `%2F` in paths."
)
BODY_METHODS = {"post", "put", "patch"}
PUBLIC = re.compile(
    r"/api/(auth|login|docs.*|openapi\.json|health/checks/(is-in-service|ready-to-serve-clients))"
)
SCHEMES = {
    "basic": {"type": "http", "scheme": "basic"},
    "session": {"type": "apiKey", "in": "cookie", "name": "leveret_session"},
}
ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
    "required": ["error", "reason"],
}
ERRORS = {
    "400": "Bad request",
    "401": "Unknown user, or access refused",
    "404": "Not found",
}
DONE = {"post", "put", "patch", "delete"}
ANY_BODY = {"content": {"application/json": {"schema": {"type": "object"}}}}
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'none'"
STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { border-bottom: 1px solid; margin-top: 2rem; text-transform: capitalize; }
details { margin: .3rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
b { display: inline-block; font-family: ui-monospace, monospace; min-width: 4.5rem; }
code, pre { font-family: ui-monospace, monospace; }
pre { overflow-x: auto; }
details > :not(summary) { margin-left: 1.2rem; }
"""

router = LazyRouter(include_in_schema=False)


@router.api_route("/api/openapi.json", methods=READ)
async def show_description(request: Request) -> Response:
    """The description of the API (OpenAPI 3.1)."""
    return JSONResponse(await _description(request.app))


@router.api_route("/api/docs", methods=READ)
async def show_documents(request: Request) -> Response:
    """The description of the API as a page."""
    described = await _description(request.app)
    headers = {
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "x-content-type-options": "nosniff",
    }
    return HTMLResponse("".join(_page(described)), headers=headers)


@router.api_route("/api/docs/style.css", methods=READ)
async def show_style() -> Response:
    """The style sheet of the page."""
    return Response(STYLE, media_type="text/css")


async def _description(app: FastAPI) -> dict[str, Any]:
    """Return the description, made once in a thread: it takes some hundred milliseconds."""
    if getattr(app.state, "description", None) is None:
        app.state.description = await asyncio.to_thread(describe, app)
    described: dict[str, Any] = app.state.description
    return described


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description of an application's routes."""
    paths = describe_operations(app.routes)
    for path, operations in paths.items():
        operations.pop("head", None)
        for method, operation in operations.items():
            _complete(path, method, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leveret", "description": DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": SCHEMES, "schemas": {"Error": ERROR}},
        "security": [{scheme: []} for scheme in SCHEMES],
    }


def _complete(path: str, method: str, operation: Operation) -> None:
    """Add the common parts of all operations."""
    words = re.findall(r"\w+", path.removeprefix("/api/"))
    operation["operationId"] = "_".join([method, *words])
    operation.setdefault("tags", [words[0].replace("_", " ")])
    if method in BODY_METHODS:
        operation.setdefault("requestBody", ANY_BODY)
    if PUBLIC.fullmatch(path):
        operation["security"] = []
    responses = operation["responses"]
    responses.pop("422", None)  # path parameters are text, and handlers parse bodies
    if method in DONE:
        responses["204"] = {"description": "Done; 201 where something new was made"}
        responses["201"] = {"description": "Made"}
    for status, meaning in ERRORS.items():
        schema = {"$ref": "#/components/schemas/Error"}
        content = {"application/json": {"schema": schema}}
        responses.setdefault(status, {"description": meaning, "content": content})


def _page(described: dict[str, Any]) -> Iterator[str]:
    """Yield the page's HTML, piece by piece."""
    yield "<!doctype html><html lang=en><meta charset=utf-8><title>Leveret: HTTP API</title>"
    yield '<meta name=viewport content="width=device-width">'
    yield '<link rel=stylesheet href="/api/docs/style.css">'
    yield f"<h1>HTTP API</h1><p>{escape(described['info']['description'])}</p>"
    yield '<p>For programs: <a href="/api/openapi.json">openapi.json</a></p>'
    sections: dict[str, list[str]] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            shown = "".join(_operation(path, method, operation))
            sections.setdefault(operation["tags"][0], []).append(shown)
    for tag, shown_operations in sorted(sections.items()):
        yield f"<h2>{escape(tag)}</h2>{''.join(shown_operations)}"


def _operation(path: str, method: str, operation: Operation) -> Iterator[str]:
    said = operation.get("description", "")
    yield f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
    yield f"{escape(said.partition(chr(10))[0])}</summary><p>{escape(said)}</p>"
    parameters = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
    if parameters:
        names = " ".join(f"<code>{escape(one['name'])}</code>" for one in parameters)
        yield f"<p>Query: {names}</p>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if "example" in content:
            example = json.dumps(content["example"], indent=2)
            yield f"<p>{escape(kind)}</p><pre>{escape(example)}</pre>"
    yield "</details>"
