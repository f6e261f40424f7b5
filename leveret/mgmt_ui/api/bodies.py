"""What a request brings along: a JSON object of a bounded size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from leveret.mgmt_ui.api.problems import bad_request

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastapi import Request

__all__ = ["BODY_BYTES_MAX", "json_object"]

BODY_BYTES_MAX = 1 << 20  # of what describes one thing; bodies of messages and documents say more


async def json_object(
    request: Request, bytes_max: int = BODY_BYTES_MAX, known: Collection[str] | None = None
) -> dict[str, Any]:
    """The request's JSON object; no body at all is an empty one.

    Where it is said which fields are `known`, it must have no others. Raises ApiError 400.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > bytes_max:
                raise bad_request(f"a request has at most {bytes_max} bytes")
    except ClientDisconnect:
        raise bad_request("the request ended early") from None
    try:
        asked = json.loads(bytes(body)) if body else {}
    except (ValueError, RecursionError):
        raise bad_request("not_json") from None
    if not isinstance(asked, dict):
        raise bad_request("a request is a JSON object")
    if known is not None and (unknown := asked.keys() - known):
        raise bad_request(f"unknown field {min(unknown)!r}")
    return asked
