"""Messages as the routing graph sees them, for routers that need more than the routing key."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_fields, encode_fields, encode_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.definitions import Arguments

__all__ = [
    "BLIND_COPIES",
    "OPEN_COPIES",
    "MadeMessage",
    "Message",
    "StoredMessage",
    "make_header",
    "read_properties",
]

CLASS_BASIC = 60
OPEN_COPIES, BLIND_COPIES = "CC", "BCC"  # headers with more routing keys
# Bits of a content header's property flags.
CONTENT_TYPE_BIT, HEADERS_BIT, DELIVERY_MODE_BIT = 1 << 15, 1 << 13, 1 << 12
CORRELATION_ID_BIT, TIMESTAMP_BIT = 1 << 10, 1 << 6
DELIVERY_MODE_PERSISTENT = 2
FIXED_BYTES = 14  # of a content header, before its properties
# Properties in the order of their flags, from bit 15 down, with their field kinds
# (leveret.ports.tables).
PROPERTIES = {
    "content_type": "r",
    "content_encoding": "r",
    "headers": "t",
    "delivery_mode": "o",
    "priority": "o",
    "correlation_id": "r",
    "reply_to": "r",
    "expiration": "r",
    "message_id": "r",
    "timestamp": "T",
    "type": "r",
    "user_id": "r",
    "app_id": "r",
    "cluster_id": "r",
}


def read_properties(header: bytes, *, raw_headers: bool = False) -> dict[str, Any]:
    """Return the properties in a content header by name. Raises MalformedFieldError.

    With `raw_headers` the values of the headers table are RawValues.
    """
    flags = int.from_bytes(header[FIXED_BYTES - 2 : FIXED_BYTES])
    names = [name for bit, name in enumerate(PROPERTIES) if flags & 1 << 15 - bit]
    kinds = "".join(PROPERTIES[name] for name in names)
    if raw_headers:
        kinds = kinds.replace("t", "w")
    return dict(zip(names, decode_fields(header, FIXED_BYTES, kinds), strict=True))


def make_header(properties: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the content header of a message with these properties; None means absent.

    Raises ValueError for a value that its property cannot hold.
    """
    flags, kinds, values = 0, "", []
    for bit, (name, kind) in enumerate(PROPERTIES.items()):
        value = properties.get(name)
        if value is not None:
            flags |= 1 << 15 - bit
            kinds += kind
            values.append(value)
    head = struct.pack(">HHQH", CLASS_BASIC, 0, body_bytes, flags)
    return head + encode_fields(kinds, values)


class Message(Protocol):
    """One message. Its content header is parsed on demand."""

    @property
    def exchange(self) -> bytes:
        """Name of the exchange it was published to, as on the wire."""
        ...

    @property
    def routing_key(self) -> bytes:
        """Routing key it was published with, as on the wire."""
        ...

    @property
    def header(self) -> bytes:
        """Payload of its content header."""
        ...

    @property
    def body(self) -> bytes:
        """Payload of the message."""
        ...

    @property
    def flags(self) -> int:
        """RecordFlag bits of the message."""
        ...

    @property
    def headers(self) -> Arguments:
        """Headers of the message, empty if it has none."""
        ...

    def property(self, name: str) -> Any:
        """Return one property by its AMQP name (`message_id`); None if absent."""
        ...


@dataclass(frozen=True, slots=True)
class MadeMessage:
    """A message made by the broker."""

    exchange: bytes
    routing_key: bytes
    headers: Arguments
    body: bytes = b""
    persistent: bool = False
    timestamp_seconds: int | None = None
    content_type: str = ""
    correlation_id: str = ""

    @property
    def header(self) -> bytes:
        """Content header, built anew for each call."""
        bits, fields = HEADERS_BIT, encode_table(self.headers)
        if self.content_type:
            bits |= CONTENT_TYPE_BIT
            fields = bytes((len(self.content_type),)) + self.content_type.encode() + fields
        if self.persistent:
            bits |= DELIVERY_MODE_BIT
            fields += bytes((DELIVERY_MODE_PERSISTENT,))
        if self.correlation_id:
            bits |= CORRELATION_ID_BIT
            text = self.correlation_id.encode()
            fields += bytes((len(text),)) + text
        if self.timestamp_seconds is not None:
            bits |= TIMESTAMP_BIT
            fields += struct.pack(">Q", self.timestamp_seconds)
        return struct.pack(">HHQH", CLASS_BASIC, 0, len(self.body), bits) + fields

    @property
    def flags(self) -> int:
        """RecordFlag bits; PUT_BACK, as the broker's messages are never duplicates."""
        own = RecordFlag.HAS_HEADERS | RecordFlag.PUT_BACK
        return own | (RecordFlag.PERSISTENT if self.persistent else 0)

    def property(self, name: str) -> Any:
        """Return one property by its AMQP name; None if absent."""
        return read_properties(self.header).get(name)


class StoredMessage:
    """A message as stored in a queue. Malformed properties count as absent."""

    __slots__ = ("_properties", "body", "exchange", "flags", "header", "routing_key")

    def __init__(
        self, exchange: bytes, routing_key: bytes, header: bytes, body: bytes, flags: int
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.header = header
        self.body = body
        self.flags = flags
        self._properties: dict[str, Any] | None = None

    @property
    def headers(self) -> Arguments:
        """Headers of the message, empty if it has none."""
        return self.property("headers") or {}

    @property
    def open_headers(self) -> Arguments:
        """Headers to show and to search: without BCC."""
        headers = self.headers
        if not self.flags & RecordFlag.BLIND_COPIED:
            return headers
        return {name: value for name, value in headers.items() if name != BLIND_COPIES}

    @property
    def properties(self) -> dict[str, Any]:
        """All properties by name."""
        if self._properties is None:
            try:
                self._properties = read_properties(self.header)
            except MalformedFieldError:
                self._properties = {}
        return self._properties

    def property(self, name: str) -> Any:
        """Return one property by its AMQP name; None if absent."""
        return self.properties.get(name)
