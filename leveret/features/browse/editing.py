"""Editing of a message: its body, routing key, headers and most of its properties.

A stored message is immutable: an edited copy is appended to its queue by the atomic write that
settles the original. What the broker has recorded about it (deaths, user-id) stays. A copy
published to elsewhere is a message of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.core.definitions.validation import AdministrationError
from leveret.core.queues.expiration import expiration_fault
from leveret.core.routing.message import StoredMessage
from leveret.errors import ChannelError
from leveret.features.retry.retrying import check_retry_headers
from leveret.ports.contents import (
    PROPERTIES,
    decode_properties,
    encode_properties,
    open_header,
)
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.features.browse.browsing import BrowsedMessage

__all__ = ["Changes", "edited", "sent_anew"]

SHORT_BYTES_MAX = 255
# Properties that the broker reads, and the record flags of messages that have them.
FLAGS = {
    "headers": RecordFlag.HAS_HEADERS,
    "priority": RecordFlag.HAS_PRIORITY,
    "reply_to": RecordFlag.HAS_REPLY_TO,
    "expiration": RecordFlag.HAS_EXPIRATION,
    "user_id": RecordFlag.HAS_USER_ID,
}
# Other flags stay as they are: tags are computed anew when the copy is packed.
NOTED = RecordFlag.PERSISTENT | RecordFlag.HAS_GROUP | RecordFlag.HAS_RETRY | sum(FLAGS.values())
PERSISTENT = 2  # a delivery mode
GROUP = "x-message-group"
RETRIES = {"x-retry-delays", "x-retry-max-attempts"}  # its own retry policy
FIXED = {"user_id", "cluster_id", "headers"}  # not changeable, or only by `headers`


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to a message; a header or property that is None is removed."""

    body: bytes | None = None
    routing_key: str | None = None
    headers: Mapping[str, Any] | None = None
    properties: Mapping[str, Any] | None = None


def edited(seen: BrowsedMessage, changes: Changes) -> BrowsedMessage:
    """Return the edited message. Raises AdministrationError if it is invalid."""
    message = seen.message
    properties = _properties(message.header, changes)
    body = message.body if changes.body is None else changes.body
    header = _packed(properties, len(body))
    key = message.routing_key if changes.routing_key is None else _short(changes.routing_key)
    flags = seen.flags & ~NOTED | _flags_of(properties)
    return seen._replace(
        flags=flags, message=StoredMessage(message.exchange, key, header, body, flags)
    )


def sent_anew(seen: BrowsedMessage, changes: Changes) -> tuple[bytes, bytes]:
    """Return content header and body of an edited copy to be published by another user.

    The user-id and BCC of the original are removed. Raises AdministrationError if it is invalid.
    """
    properties = _properties(seen.message.header, changes)
    properties.pop("user_id", None)
    body = seen.message.body if changes.body is None else changes.body
    return open_header(_packed(properties, len(body))), body


def _properties(header: bytes, changes: Changes) -> dict[str, Any]:
    """Return the edited properties; unchanged headers keep their bytes."""
    try:
        properties = decode_properties(header, raw_headers=True)
    except MalformedFieldError:
        raise AdministrationError("invalid", "the message's properties cannot be read") from None
    _merge(properties, _checked(changes.properties or {}))
    if changes.headers is not None:
        headers = dict(properties.get("headers", {}))
        _merge(headers, changes.headers)
        _merge(properties, {"headers": headers or None})
    return properties


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value


def _checked(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in properties.items():
        if name not in PROPERTIES or name in FIXED:
            raise AdministrationError("invalid", f"property '{name}' cannot be changed")
        if value is not None and not _fits(PROPERTIES[name], value):
            raise AdministrationError("invalid", f"bad property '{name}'")
    expiration = properties.get("expiration")
    if expiration is not None:
        problem = expiration_fault(expiration.encode())
        if problem is not None:
            raise AdministrationError("invalid", f"bad property 'expiration': {problem}")
    return properties


def _fits(kind: str, value: object) -> bool:
    if kind == "r":
        return isinstance(value, str) and len(value.encode()) <= SHORT_BYTES_MAX
    limit = 1 << (8 if kind == "o" else 63)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _short(key: str) -> bytes:
    encoded = key.encode()
    if len(encoded) > SHORT_BYTES_MAX:
        raise AdministrationError("invalid", f"a routing key has at most {SHORT_BYTES_MAX} bytes")
    return encoded


def _packed(properties: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return an encoded content header. Raises AdministrationError."""
    try:
        header = encode_properties(properties, body_bytes)
        check_retry_headers(header)
    except (ValueError, TypeError) as error:
        raise AdministrationError("invalid", str(error)) from None
    except ChannelError as error:
        raise AdministrationError("invalid", error.explanation) from None
    return header


def _flags_of(properties: Mapping[str, Any]) -> int:
    """Return the record flags of a message with these properties."""
    flags: int = sum(flag for name, flag in FLAGS.items() if name in properties)
    headers = properties.get("headers", {})
    if properties.get("delivery_mode") == PERSISTENT:
        flags |= RecordFlag.PERSISTENT
    if GROUP in headers:
        flags |= RecordFlag.HAS_GROUP
    if not RETRIES.isdisjoint(headers):
        flags |= RecordFlag.HAS_RETRY
    return flags
