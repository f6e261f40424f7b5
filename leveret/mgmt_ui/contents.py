"""Messages as JSON, in the form of RabbitMQ's HTTP API.

{"properties": {…}, "payload": "…", "payload_encoding": "string" | "base64"}
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from leveret.core.json_fields import plain, table_of
from leveret.ports.contents import decode_properties, encode_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.sessions import Got

__all__ = ["content_of", "got_row", "payload_row"]

WHOLE_NUMBERS = {"delivery_mode": 255, "priority": 255, "timestamp": 2**63 - 1}
TEXTS = {
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
}


def content_of(asked: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return content header and body of a message given as JSON. Raises ValueError."""
    body = _body(asked)
    return _header(asked.get("properties") or {}, body), body


def _body(asked: Mapping[str, Any]) -> bytes:
    payload = asked.get("payload")
    if not isinstance(payload, str):
        raise ValueError("[{key_missing,payload}]")  # noqa: TRY004  # of the client's JSON
    match asked.get("payload_encoding"):
        case "string":
            try:
                return payload.encode()
            except UnicodeEncodeError:
                raise ValueError("payload is not Unicode text") from None
        case "base64":
            try:
                return base64.b64decode(payload, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("payload is not base64") from None
        case None:
            raise ValueError("[{key_missing,payload_encoding}]")
    raise ValueError("payload_encoding is string or base64")


def _header(properties: object, body: bytes) -> bytes:
    """Return the content header for properties given as JSON."""
    if not isinstance(properties, dict):
        if properties != []:  # an empty table of some languages
            raise ValueError("properties is an object")  # of the client's JSON
        properties = {}
    try:
        checked = {name: _property(name, value) for name, value in properties.items()}
        return encode_properties(checked, len(body))
    except ValueError as error:  # InvalidFieldError is one
        raise ValueError(f"properties: {error}") from None


def _property(name: str, value: object) -> object:
    """Return the value of one property's JSON; None is an absent one. Raises ValueError."""
    if value is None:
        return None
    if name == "headers" and isinstance(value, dict):
        return table_of(value)
    if name in WHOLE_NUMBERS and type(value) is int and 0 <= value <= WHOLE_NUMBERS[name]:
        return value
    if name in TEXTS and isinstance(value, str):
        return value
    raise ValueError(f"{name} cannot be {value!r}"[:200])


def got_row(got: Got, encoding: str, truncate: int | None) -> dict[str, Any]:
    """Return a message that was got, with its body in the wanted encoding."""
    properties = {name: plain(value) for name, value in decode_properties(got.header).items()}
    return {
        "payload_bytes": len(got.body),
        "redelivered": got.redelivered,
        "exchange": got.exchange,
        "routing_key": got.routing_key,
        "message_count": got.message_count,
        "properties": properties,
        **payload_row(got.body if truncate is None else got.body[:truncate], encoding),
    }


def payload_row(body: bytes, encoding: str) -> dict[str, Any]:
    """Return a body for JSON: `auto` is text if it is UTF-8, `base64` always Base64."""
    if encoding == "auto":
        try:
            return {"payload": body.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(body).decode(), "payload_encoding": "base64"}
