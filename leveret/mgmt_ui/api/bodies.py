"""Parsing of request bodies and queries: size-limited JSON objects, numbers, headers."""

from __future__ import annotations

import asyncio
import json
import re
from math import isfinite
from typing import TYPE_CHECKING, Any, overload

from starlette.requests import ClientDisconnect

from leveret.core.json_fields import parse_integer
from leveret.mgmt_ui.api.problems import bad_request
from leveret.ports.declared import undeclared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import QueryParams
    from starlette.requests import Request

__all__ = [
    "BODY_BYTES_MAX",
    "condition",
    "flag",
    "headers",
    "json_object",
    "path_number",
    "read_body",
    "require_fields",
    "table",
    "tags",
    "text",
    "texts",
    "truth",
    "understand",
    "whole_number",
    "whole_numbers",
]

# In JSON: half of what stands for one character, which neither disk nor wire can hold.
HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
TRUTHS = {True: True, False: False, "true": True, "false": False, "": False}
DEPTH_MAX = 64  # as deep as AMQP's tables; more could exceed the recursion limit
VALUES_MAX = 20_000  # that are taken apart for one request, in about ten milliseconds
INLINE_BYTES_MAX = 4096  # taken apart on the event loop; with more, in a thread
# A text in JSON, which may lack its end, or what separates and opens: as many as there are values.
TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
DIGITS_MAX = 18  # below 2 ** 63
NO_JSON = "the request is not valid JSON"
NO_JSON_IN_RABBITMQ = "not_json"
BODY_BYTES_MAX = 1 << 20  # of what describes one thing; bodies of messages and documents say more


async def json_object(request: Request, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """Return the request's JSON object, an empty one without a body. Raises ApiError 400.

    Routes of Leveret's own accept only the fields that they declare, and insist on those that they
    declare as required.
    """
    body = await read_body(request, bytes_max)
    route = request.scope["route"]
    invalid = NO_JSON if route.is_strict else NO_JSON_IN_RABBITMQ
    if len(body) <= INLINE_BYTES_MAX:
        asked = understand(body, invalid)
    else:
        asked = await asyncio.to_thread(understand, body, invalid)
    if route.is_strict:
        problem = undeclared(asked, route.body_names)
        if problem is not None:
            raise bad_request(problem)
        for name in route.required_names:
            if name not in asked:
                raise bad_request(f"{name} is missing")
    return asked


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Return the request's body. Raises ApiError 400 if it is too large."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > bytes_max:
                raise bad_request(f"a request has at most {bytes_max} bytes")
    except ClientDisconnect:
        raise bad_request("the request ended early") from None
    return bytes(body)


def understand(body: bytes, invalid: str = NO_JSON) -> dict[str, Any]:
    """Return the JSON object of a body, an empty one without. Raises ApiError 400.

    `invalid` is the reason for a body that is no JSON.
    """
    if _has_more_values(body, VALUES_MAX):
        raise bad_request(f"a request has at most {VALUES_MAX} values")
    try:
        asked = _parse(body) if body else {}
        if HALF_CHARACTER.search(body):
            json.dumps(asked, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise bad_request(invalid) from None
    if not isinstance(asked, dict):
        raise bad_request("a request is a JSON object")
    if _is_deeper(asked, DEPTH_MAX):
        raise bad_request(f"nested deeper than {DEPTH_MAX}")
    return asked


def _has_more_values(body: bytes, most: int) -> bool:
    """Whether JSON has more than `most` values; contents of strings do not count."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= most:
        return False
    count = 0
    for found in TEXT_OR_VALUE.finditer(body):
        count += body[found.start()] != ord('"')
        if count > most:
            return True
    return False


def _is_deeper(value: object, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in items)


def _parse(body: bytes) -> Any:
    return json.loads(body, parse_constant=_finite, parse_float=_finite, parse_int=_whole)


def _whole(digits: str) -> int:
    """Parse a 64-bit integer. Raises ApiError 400."""
    try:
        return parse_integer(digits)
    except ValueError as error:
        raise bad_request(str(error)) from None


def _finite(number: str) -> float:
    """Parse a finite number. Raises ValueError."""
    value = float(number)
    if not isfinite(value):
        raise ValueError(number)
    return value


def require_fields(asked: dict[str, Any], *keys: str) -> None:
    """Raise ApiError 400 where a field is missing, in RabbitMQ's words."""
    missing = [f"{{key_missing,{key}}}" for key in keys if key not in asked]
    if missing:
        raise bad_request(f"[{','.join(missing)}]")


def headers(query: QueryParams) -> dict[str, str]:
    """Read `header=name=value`, repeatable, by which messages are chosen. Raises ApiError 400."""
    pairs = [stated.partition("=") for stated in query.getlist("header")]
    if not all(equals for _, equals, _ in pairs):
        raise bad_request("a header is name=value")
    return {name: value for name, _, value in pairs}


def tags(asked: dict[str, Any], key: str = "tags") -> list[str]:
    """Return a list of words from a JSON list or comma-separated text. Raises ApiError 400."""
    value = asked.get(key, [])
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request(f"{key} is a list, or text with commas")
    return [tag.strip() for tag in value if tag.strip()]


def truth(asked: dict[str, Any], key: str) -> bool:
    """Return a boolean field, which tools also send as text; False if absent. ApiError 400."""
    return _truth(asked, key, f"{key} is true or false")


def flag(asked: dict[str, Any], key: str) -> bool:
    """Return what `truth` returns. Raises ApiError 400 in RabbitMQ's words."""
    return _truth(asked, key, f"{{not_boolean,{asked.get(key)!r}}}"[:200])


def _truth(asked: dict[str, Any], key: str, problem: str) -> bool:
    value = asked.get(key, False)
    if isinstance(value, bool | str) and value in TRUTHS:
        return TRUTHS[value]
    raise bad_request(problem)


def condition(request: Request, key: str) -> bool:
    """Return a boolean of a query string, such as `if-unused=true`. Raises ApiError 400."""
    return flag(dict(request.query_params), key)


def text(asked: dict[str, Any], key: str, default: str | None) -> Any:
    """Return a text field, or the default if absent. Raises ApiError 400."""
    value = asked.get(key, default)
    if value is not None and not isinstance(value, str):
        raise bad_request(f"{key} is text")
    return default if value is None else value


def table(asked: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object field; absent or an empty list means an empty object. ApiError 400."""
    value = asked.get(key) or {}
    if not isinstance(value, dict):
        raise bad_request(f"{key} is an object")
    return value


def texts(asked: dict[str, Any], key: str) -> list[str]:
    """Return a field that is a list of text, empty if absent. Raises ApiError 400."""
    value = asked.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise bad_request(f"{key} is a list of text")
    return value


@overload
def whole_number(query: Mapping[str, str], key: str, default: int) -> int: ...
@overload
def whole_number(query: Mapping[str, str], key: str, default: None = None) -> int | None: ...
def whole_number(query: Mapping[str, str], key: str, default: int | None = None) -> int | None:
    """Return an integer of a query string, or the default if absent. Raises ApiError 400."""
    value = query.get(key)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX):
        raise bad_request(f"{key} is a whole number")
    return int(value)


def path_number(text: str, key: str) -> int:
    """Return an integer of a path. Raises ApiError 400."""
    return whole_number({key: text}, key, 0)


def whole_numbers(query: QueryParams, key: str) -> list[int]:
    """Return all integers of a repeatable query parameter. Raises ApiError 400."""
    return [path_number(value, key) for value in query.getlist(key)]
